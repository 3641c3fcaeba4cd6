"""The vocabulary file: written and read back, and each damage named with its line."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.errors import TokenizerError
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.tokenizer.vocabulary import order_by_rank, read_vocabulary, write_vocabulary

BYTES = [bytes([byte]) for byte in range(256)]


def lines_of(tokens: list[bytes]) -> list[str]:
    return [f"{b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]


@given(st.sets(st.binary(min_size=2, max_size=9)))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, longer: set[bytes]) -> None:
    folder = tmp_path_factory.mktemp("vocabulary")
    tokens = [*BYTES, *sorted(longer)]
    write_vocabulary(folder, tokens, SpecialTokens.block(len(tokens)))
    assert read_vocabulary(folder / "tiktoken.model") == tokens


def test_published_file_is_written_back_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    source = shared / "data" / "tokenizer" / "tiktoken.model"
    tokens = read_vocabulary(source)
    write_vocabulary(tmp_path, tokens, SpecialTokens.block(len(tokens)))
    assert (tmp_path / "tiktoken.model").read_bytes() == source.read_bytes()


def test_order_of_lines_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "tiktoken.model"
    file.write_text("\n".join(reversed(lines_of(BYTES))))
    assert read_vocabulary(file) == BYTES


def test_ranks_may_come_as_a_mapping_and_to_a_named_file(tmp_path: Path) -> None:
    ranks = {token: rank for rank, token in reversed(list(enumerate(BYTES)))}
    write_vocabulary(tmp_path / "own.model", ranks, SpecialTokens.block(256))
    assert read_vocabulary(tmp_path / "own.model") == BYTES


Damage = Callable[[list[str]], None]


def set_line(number: int, text: str) -> Damage:
    return lambda lines: lines.__setitem__(number - 1, text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (set_line(3, "Ag"), r":3: 'Ag' is not a token in base64, a space and a rank"),
        (set_line(3, "Ag== 2 2"), r":3: 'Ag== 2 2' is not a token"),
        (set_line(3, ""), r":3: '' is not a token"),
        (set_line(3, "Ag== two"), r":3: 'Ag== two' is not a token"),
        (set_line(3, "Ag== -2"), r":3: 'Ag== -2' is not a token"),
        (set_line(3, "A!== 2"), r":3: 'A!==' is not base64"),
        (set_line(3, "Ag= 2"), r":3: 'Ag=' is not base64"),
        (set_line(3, "Ä 2"), r":3: '\\\\xc3\\\\x84' is not base64"),
        (set_line(3, "AQ== 2"), r":3: token b'\\x01' has rank 2, and 1 further up"),
        (set_line(3, "AQ== 1"), r"1 lines repeat another line"),
        (set_line(256, "/w== 256"), r"no token has rank 255, expected ranks 0 to 255, each once"),
        (set_line(256, "/w== 254"), r"two have rank 254, expected ranks 0 to 255"),
        (set_line(256, "YWI= 255"), r"1 of the 256 single bytes are no tokens, the first is 0xff"),
        (lambda lines: lines.clear(), r"256 of the 256 single bytes are no tokens, the first is 0x00"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage(tmp_path: Path, damage: Damage, message: str) -> None:
    lines = lines_of(BYTES)
    damage(lines)
    file = tmp_path / "tiktoken.model"
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TokenizerError, match=message):
        read_vocabulary(file)


def test_a_very_long_line_is_shown_in_part(tmp_path: Path) -> None:
    file = tmp_path / "tiktoken.model"
    file.write_text("x" * 100_000)
    with pytest.raises(TokenizerError) as caught:
        read_vocabulary(file)
    assert len(str(caught.value)) < 400


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        read_vocabulary(tmp_path)


def test_ranks_with_a_gap_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no token has rank 256"):
        write_vocabulary(tmp_path, {**{token: token[0] for token in BYTES}, b"ab": 257}, SpecialTokens.block(257))
    assert not list(tmp_path.iterdir())


def test_special_ids_elsewhere_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="first special id is 300, expected 256"):
        write_vocabulary(tmp_path, BYTES, SpecialTokens.block(300))
    assert not list(tmp_path.iterdir())


def test_order_by_rank_names_its_source() -> None:
    with pytest.raises(TokenizerError, match="merges of mine: "):
        order_by_rank({}, "merges of mine")


@pytest.mark.parametrize("size", [1, 6, 7, 22, 256, 300])
def test_special_tokens_survive_beside_the_vocabulary(tmp_path: Path, size: int) -> None:
    special = SpecialTokens.block(256, size)
    write_vocabulary(tmp_path, BYTES, special)
    assert Tokenizer.load(tmp_path).special == special


def test_roles_survive_too(tmp_path: Path) -> None:
    special = SpecialTokens.block(256, 4, {256: "<s>", 257: "</s>"}, bos_token="<s>", eos_token="</s>")
    write_vocabulary(tmp_path, BYTES, special)
    loaded = Tokenizer.load(tmp_path).special
    assert (loaded.bos, loaded.eos) == (256, 257)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["added_tokens_decoder"]["256"]["content"] == "<s>"
