"""Decoding as ids come: nothing of half a character, and in the end the same as decoding all at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.detokenizer import IncrementalDetokenizer


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@given(raw=st.lists(st.integers(0, 511)))
def test_any_ids_decode_the_same_in_a_stream(bytewise: Tokenizer, raw: list[int]) -> None:
    assert "".join(streamed(bytewise, raw)) == bytewise.decode(raw)


@given(raw=st.binary())
def test_any_bytes_decode_the_same_in_a_stream(bytewise: Tokenizer, raw: bytes) -> None:
    assert "".join(streamed(bytewise, list(raw))) == raw.decode("utf-8", "replace")


@given(ids=st.lists(st.integers(0, 163_839)))
def test_any_published_ids_decode_the_same_in_a_stream(published: Tokenizer, ids: list[int]) -> None:
    assert "".join(streamed(published, ids)) == published.decode(ids)


@given(text=st.text())
def test_no_half_characters(bytewise: Tokenizer, text: str) -> None:
    expected: list[str] = []
    for character in text:
        expected += [""] * (len(character.encode()) - 1) + [character]
    assert streamed(bytewise, bytewise.encode(text)) == [*expected, ""]


def test_an_emoji_over_two_tokens_comes_with_the_second(published: Tokenizer) -> None:
    assert streamed(published, [5885, 46813, 64390, 235, 92949, 121]) == ["", "🙂", "", "👍", "", "🏽", ""]


def test_an_unfinished_character_is_replaced_at_the_end(bytewise: Tokenizer) -> None:
    assert streamed(bytewise, list("é🙂".encode())[:-1]) == ["", "é", "", "", "", "\ufffd"]


def test_a_character_that_cannot_go_on_is_replaced_at_once(bytewise: Tokenizer) -> None:
    assert streamed(bytewise, [0xF0, 0x9F, bytewise.special.close]) == ["", "", "\ufffd<|close|>", ""]


def test_ready_for_another_text_after_finish(bytewise: Tokenizer) -> None:
    detokenizer = bytewise.detokenizer()
    assert (detokenizer.push(0xC3), detokenizer.finish()) == ("", "\ufffd")
    assert (detokenizer.push(0xA9), detokenizer.finish()) == ("\ufffd", "")


def test_streams_do_not_disturb_each_other(bytewise: Tokenizer) -> None:
    one, other = bytewise.detokenizer(), bytewise.detokenizer()
    assert one.push(0xC3) == other.push(0xC3) == ""
    assert (one.push(0xA9), other.push(0xA4)) == ("é", "ä")
