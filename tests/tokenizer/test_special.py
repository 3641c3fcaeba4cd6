"""Special tokens: published names, offsets, reserved spellings, and what the files beside a vocabulary say of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from openk3.errors import TokenizerError
from openk3.tokenizer.config import read_special_tokens
from openk3.tokenizer.special import PUBLISHED_NAMES, SpecialTokens


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_small_vocabularies_shift_the_published_ids() -> None:
    special = SpecialTokens.block(3840)
    assert list(special.names) == list(range(3840, 4096))
    assert special.end_of_msg == 163586 - 163584 + 3840
    assert special.media_pad == 163605 - 163584 + 3840
    assert special.pad == 4095


def test_every_id_has_one_spelling() -> None:
    special = SpecialTokens.block(163_584)
    assert len(special.names) == len(set(special.names.values())) == 256
    assert all(special.id_of(name) == token for token, name in special.names.items())
    unnamed = [token for token in special.names if token - 163_584 not in PUBLISHED_NAMES]
    assert all(special.names[token] == f"<|reserved_token_{token}|>" for token in unnamed)


def test_a_named_id_has_no_reserved_spelling() -> None:
    special = SpecialTokens.block(163_584)
    with pytest.raises(TokenizerError, match="no special token '<|reserved_token_163839|>'".replace("|", r"\|")):
        special.id_of("<|reserved_token_163839|>")
    assert special.id_of("<|reserved_token_163592|>") == 163592


@pytest.mark.parametrize("name", ["<|im_user|>", "<|im_end|>", "<think>", "<|tool_calls_section_begin|>"])
def test_tokens_of_earlier_models_do_not_exist(name: str) -> None:
    with pytest.raises(TokenizerError, match="no special token"):
        SpecialTokens.block(163_584).id_of(name)


def test_a_missing_token_is_an_error_only_when_asked_for() -> None:
    special = SpecialTokens.block(256, 3)
    assert special.end_of_msg == 258
    with pytest.raises(TokenizerError, match=r"no special token '<\|open\|>'"):
        _ = special.open


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({1: "a", 3: "b"}, r"special ids are \[1, 3\], expected one id after the other"),
        ({1: "a", 2: "a"}, "special id 2 is spelled like id 1: 'a'"),
        ({1: ""}, "special id 1 has an empty spelling"),
    ],
)
def test_blocks_that_make_no_sense(names: dict[int, str], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        SpecialTokens(names)


def test_nothing_beside_the_vocabulary_means_the_published_block(tmp_path: Path) -> None:
    assert read_special_tokens(tmp_path, 163_584) == SpecialTokens.block(163_584)
    assert read_special_tokens(tmp_path, 300) == SpecialTokens.block(300)


def test_names_come_from_the_tokenizer_config(tmp_path: Path) -> None:
    listed = {"300": {"content": "<s>", "special": True}, "303": "<|open|>", "305": {"content": "[PAD]"}}
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": listed, "bos_token": {"content": "<s>"}})
    special = read_special_tokens(tmp_path, 300)
    assert (special.bos, special.open, special.pad) == (300, 303, 305)
    assert special.names[301] == "<|reserved_token_301|>"
    assert list(special.names) == list(range(300, 306))


def test_the_model_says_how_many_ids_there_are(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": {"300": "<s>"}})
    write(tmp_path, "config.json", {"text_config": {"vocab_size": 320}})
    assert list(read_special_tokens(tmp_path, 300).names) == list(range(300, 320))


def test_ids_come_from_the_model_config(tmp_path: Path) -> None:
    ids = {"bos_token_id": 310, "eos_token_id": 312, "pad_token_id": 399, "media_placeholder_token_id": 331}
    write(tmp_path, "config.json", {**ids, "vocab_size": 400})
    special = read_special_tokens(tmp_path, 300)
    assert (special.bos, special.end_of_msg, special.pad, special.media_pad) == (310, 312, 399, 331)
    assert (special.open, special.close, special.sep) == (313, 314, 315)
    assert list(special.names) == list(range(300, 400))


def test_ids_may_stand_beside_the_sizes(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"text_config": {"eos_token_id": 312, "vocab_size": 400}})
    assert read_special_tokens(tmp_path, 300).end_of_msg == 312
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": {"302": "<|end_of_msg|>"}})
    with pytest.raises(TokenizerError, match="has id 302, .*: eos_token_id is 312, expected the same id"):
        read_special_tokens(tmp_path, 300)


def test_eos_of_the_tokenizer_is_not_the_end_of_a_message(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", {"eos_token": "[EOS]"})
    write(tmp_path, "config.json", {"eos_token_id": 163586, "vocab_size": 163_840})
    special = read_special_tokens(tmp_path, 163_584)
    assert (special.eos, special.end_of_msg) == (163585, 163586)


@pytest.mark.parametrize(
    ("key", "name"), [("bos_token_id", "<s>"), ("eos_token_id", "<|end_of_msg|>"), ("pad_token_id", "[PAD]")]
)
def test_files_that_place_a_token_differently(tmp_path: Path, key: str, name: str) -> None:
    listed = {"300": "<s>", "301": "[EOS]", "302": "<|end_of_msg|>", "303": "[PAD]"}
    ids = {"bos_token_id": 300, "eos_token_id": 302, "pad_token_id": 303, "vocab_size": 310}
    roles = {"bos_token": "<s>", "eos_token": "[EOS]", "pad_token": "[PAD]"}
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": listed, **roles})
    write(tmp_path, "config.json", ids)
    assert read_special_tokens(tmp_path, 300).end_of_msg == 302
    write(tmp_path, "config.json", {**ids, key: 305})
    with pytest.raises(TokenizerError, match=rf"{re.escape(name)} has id {ids[key]}, .*: {key} is 305, expected the"):
        read_special_tokens(tmp_path, 300)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: not JSON"),
        ("tokenizer_config.json", "[" * 100_000, r"tokenizer_config\.json: not JSON"),
        ("tokenizer_config.json", "[]", "holds a list, expected an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": []}, r"added_tokens_decoder is \[\], expected an object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "y"}}, "holds 'x', expected token ids"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"300": {}}}, r"token 300 is \{\}, expected a spelling"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"300": ""}}, "token 300 is '', expected a spelling"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": "y"}}, "special token 'y' has id 7, expected 300"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"300": "y", "301": "y"}}, "301 is spelled like id 300"),
        ("tokenizer_config.json", {"pad_token": 5}, "pad_token is 5, expected a spelling"),
        ("config.json", {"vocab_size": 299}, "vocab_size is 299, expected at least 300"),
        ("config.json", {"vocab_size": "many"}, "vocab_size is 'many', expected at least 300"),
        ("config.json", {"vocab_size": 400, "pad_token_id": 400}, r"id of \[PAD\] is 400, expected 300 to 399"),
        ("config.json", {"vocab_size": 400, "eos_token_id": 2}, r"end_of_msg\|> is 2, expected 300 to 399"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_files_that_make_no_sense(tmp_path: Path, file: str, value: Any, message: str) -> None:
    write(tmp_path, file, value)
    with pytest.raises(TokenizerError, match=message):
        read_special_tokens(tmp_path, 300)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"99999999999": "a"}}, "special ids follow 256 tokens"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: "a"}}, "expected token ids"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"256": "\\ud800"}}', "expected a spelling"),
        ("config.json", {"vocab_size": 10**12}, "special ids follow 256 tokens"),
    ],
)
def test_blocks_without_end_and_half_characters_are_refused(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    write(tmp_path, name, value)
    with pytest.raises(TokenizerError, match=message):
        read_special_tokens(tmp_path, 256)
