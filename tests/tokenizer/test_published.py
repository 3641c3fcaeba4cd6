"""Kimi K3's own vocabulary: texts whose ids are known.

Unusual: the expected ids were made by another implementation from the same file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.vocabulary import VOCABULARY_FILE

TEXTS = {
    "Hello, world!": [19180, 11, 2695, 0],
    "你好世界": [33845, 2243],
    "It's 2026-07-27\n\n  done  ": [15881, 220, 2975, 21, 12, 5435, 12, 2728, 382, 220, 4179, 256],
    "3.14159 café naïve": [18, 13, 18702, 6276, 70591, 7915, 44187, 367],
    "🙂👍🏽": [5885, 46813, 64390, 235, 92949, 121],
    "<|open|>": [27, 91, 4454, 91, 29],
    "\tindent\r\nx": [197, 41414, 462, 87],
    "HTTPServer don't": [88148, 4022, 4536],
    "   ": [274],
    "ＡＢＣ가나다": [320, 94, 320, 95, 320, 96, 18437, 41055, 11005],
    "aaa": [45421],
    "": [],
}
SINGLE = {
    "message": 2778,
    "think": 39964,
    "response": 12092,
    "tools": 25385,
    "call": 10257,
    "argument": 47185,
    "json": 5534,
    " role": 6244,
    " type": 1798,
    " name": 1530,
    " tool": 4453,
    " index": 4002,
    " key": 2355,
    '="': 878,
    '"': 1,
    "user": 2482,
    "assistant": 69702,
    "system": 14062,
    "tool": 20960,
    "string": 2033,
    "number": 10006,
    "object": 3721,
    "1": 16,
    "2": 17,
}
# Texts with runs beyond the guards: how many ids, and a digest of them.
LONG = [
    ("a" * 25_000, 3125, "6002afe5271d27c7"),
    ("a" * 25_001, 3126, "9bbf3fefec76f6e1"),
    ("a" * 60_000, 7500, "c93fef4f33bd0db2"),
    (" " * 25_001 + "x", 100, "7d462d5f219d05c8"),
    ("ab " * 200_000, 200_002, "eefbc85ea8121cd6"),
]


def digest(ids: list[int]) -> str:
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def test_the_file_is_the_published_one(shared: Path) -> None:
    raw = (shared / "data" / "tokenizer" / VOCABULARY_FILE).read_bytes()
    assert len(raw) == 2_795_286
    assert hashlib.sha256(raw).hexdigest() == "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103"


@pytest.mark.parametrize(("text", "ids"), TEXTS.items(), ids=ascii)
def test_known_text(published: Tokenizer, text: str, ids: list[int]) -> None:
    assert published.encode(text) == ids
    assert published.decode(ids) == text


@pytest.mark.parametrize(("text", "token"), SINGLE.items())
def test_text_of_one_token(published: Tokenizer, text: str, token: int) -> None:
    assert published.encode(text) == [token]


@pytest.mark.parametrize(("text", "count", "expected"), LONG, ids=["a25000", "a25001", "a60000", "spaces", "slices"])
def test_long_text(published: Tokenizer, text: str, count: int, expected: str) -> None:
    ids = published.encode(text)
    assert (len(ids), digest(ids)) == (count, expected)
    assert published.decode(ids) == text


def test_a_cut_run_ends_in_a_token_of_its_own(published: Tokenizer) -> None:
    assert published.encode("a" * 25_001)[-1] == 64


def test_sizes_and_special_ids(published: Tokenizer) -> None:
    special = published.special
    assert (published.num_base_tokens, published.vocab_size) == (163_584, 163_840)
    assert (special.bos, special.eos, special.unk, special.pad) == (163584, 163585, 163838, 163839)
    assert (special.end_of_msg, special.open, special.close, special.sep) == (163586, 163587, 163588, 163589)
    media = (special.media_begin, special.media_content, special.media_end, special.media_pad)
    assert media == (163602, 163603, 163604, 163605)
    assert special.id_of("[start_header_id]") == 163590
    assert special.id_of("[end_header_id]") == 163591
    assert special.id_of("[EOT]") == 163593
    assert special.id_of("<osagent_mode>") == 163649


def test_no_special_token_can_be_typed(published: Tokenizer) -> None:
    everything = "".join(published.special.names.values())
    assert max(published.encode(everything)) < published.num_base_tokens
    assert published.decode(published.encode(everything)) == everything
