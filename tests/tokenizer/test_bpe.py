"""The tokenizer on any vocabulary: round trips, ids that must not come, texts and ids that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.errors import TokenizerError
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.tokenizer.vocabulary import write_vocabulary

BYTES = [bytes([byte]) for byte in range(256)]
SPELLINGS = sorted(SpecialTokens.block(256).names.values())
# Texts that spell special tokens here and there.
TEXTS = st.lists(st.one_of(st.text(), st.sampled_from(SPELLINGS))).map("".join)


@given(text=TEXTS)
def test_text_survives_and_never_becomes_special(bytewise: Tokenizer, text: str) -> None:
    ids = bytewise.encode(text)
    assert bytewise.decode(ids) == text
    assert all(token < bytewise.num_base_tokens for token in ids)


@given(text=TEXTS)
def test_published_vocabulary_does_too(published: Tokenizer, text: str) -> None:
    ids = published.encode(text)
    assert published.decode(ids) == text
    assert all(token < published.num_base_tokens for token in ids)


def test_merges_go_by_rank() -> None:
    tokens = [*BYTES, b"bc", b"ab", b"abc"]
    tokenizer = Tokenizer(tokens, SpecialTokens.block(len(tokens)))
    assert tokenizer.encode("abc") == [258]
    assert tokenizer.encode("abcd") == [258, ord("d")]
    assert tokenizer.encode("abbc") == [257, 256]
    # Without a token for all of it, the pair of lowest rank is merged, not the leftmost.
    assert Tokenizer(tokens[:-1], SpecialTokens.block(258)).encode("abc") == [ord("a"), 256]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800"], ids=ascii)
def test_half_a_surrogate_pair_becomes_a_replacement(bytewise: Tokenizer, text: str) -> None:
    expected = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert bytewise.decode(bytewise.encode(text)) == expected


def test_two_halves_become_the_character(bytewise: Tokenizer) -> None:
    assert bytewise.decode(bytewise.encode("\ud83d\ude42")) == "🙂"


def test_special_ids_decode_to_their_spelling(bytewise: Tokenizer) -> None:
    special = bytewise.special
    assert bytewise.decode([special.open, ord("x"), special.sep, 264]) == "<|open|>x<|sep|><|reserved_token_264|>"


def test_bytes_that_are_not_text_are_replaced(bytewise: Tokenizer) -> None:
    assert bytewise.decode([0xF0, 0x9F, ord("a"), 0xFF]) == "\ufffda\ufffd"
    assert bytewise.decode_bytes([0xF0, 0x9F]) == b"\xf0\x9f"


@pytest.mark.parametrize("token", [-1, 512, 10**9])
def test_unknown_id(bytewise: Tokenizer, token: int) -> None:
    with pytest.raises(TokenizerError, match=rf"token id is {token}, expected 0 to 511"):
        bytewise.decode([token])


def test_special_ids_must_follow_the_ordinary_ones() -> None:
    with pytest.raises(TokenizerError, match="first special id is 300, expected 256"):
        Tokenizer(BYTES, SpecialTokens.block(300))


def test_load_takes_a_folder_or_a_file(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, [*BYTES, b"ab"], SpecialTokens.block(257))
    for path in (tmp_path, tmp_path / "tiktoken.model", str(tmp_path)):
        tokenizer = Tokenizer.load(path)
        assert tokenizer.encode("ab") == [256]
        assert (tokenizer.vocab_size, tokenizer.special.end_of_msg) == (257 + 256, 259)


def test_load_takes_special_tokens_of_the_caller(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, BYTES, SpecialTokens.block(256))
    assert Tokenizer.load(tmp_path, SpecialTokens.block(256, 10, {260: "<|sep|>"})).special.sep == 260


def test_load_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tiktoken\.model: no such file"):
        Tokenizer.load(tmp_path)
    with pytest.raises(TokenizerError, match=r"elsewhere: no such file"):
        Tokenizer.load(tmp_path / "elsewhere")
