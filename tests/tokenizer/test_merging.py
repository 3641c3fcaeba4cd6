"""The whole way from text to ids against splitting and merging by hand, hostile texts, and threads.

Unusual: the split pattern is said a second time here, for another regex engine and without class intersections.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens

_UPPER = r"(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
_LOWER = r"(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])"
_SUFFIX = r"(?:'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))?"
SPLIT = regex.compile(
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}|\x20?[^\p{White_Space}\p{L}\p{N}]+[\r\n]*|\p{White_Space}*[\r\n]+"
    r"|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+"
)
WORDS = [b"th", b"he", b"the", b" t", b" th", b" the", b"in", b"ing", b"ab", b"abc", b"bc", b"  ", b"\n\n", b"\xc3\xa9"]
PIECES = [
    "the",
    " thing",
    "abc",
    "'s",
    "'RE",
    "\r\n",
    "  ",
    "\u3000",
    "你好",
    "é",
    "ǅ",
    "१२३४",
    "\u0301",
    "don't",
    "!?",
]


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer([*(bytes([byte]) for byte in range(256)), *WORDS], SpecialTokens.block(256 + len(WORDS)))


def merged_by_hand(text: str) -> list[int]:
    ranks = {bytes([byte]): byte for byte in range(256)} | {word: 256 + rank for rank, word in enumerate(WORDS)}
    return [ranks[part] for piece in SPLIT.findall(text) for part in merge(piece.encode(), ranks)]


def merge(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while pairs := [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]:
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


@given(text=st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=12).map("".join))
def test_same_as_by_hand(small: Tokenizer, text: str) -> None:
    assert small.encode(text) == merged_by_hand(text)


# Each makes the split pattern backtrack as far as the guards let it.
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("가" * 25_001, id="letters without case"),
        pytest.param("a\u0301" * 200_000, id="combining marks"),
        pytest.param("\n" * 30_000 + "x", id="line ends"),
        pytest.param(" \n" * 12_499 + " x", id="line ends among spaces"),
        pytest.param("\x1c" * 60_000, id="whitespace of Python only"),
        pytest.param("'" * 60_000, id="apostrophes"),
        pytest.param("A" * 400_001, id="capitals over a slice"),
        pytest.param("1" * 60_000, id="digits"),
    ],
)
def test_hostile_texts_come_back(published: Tokenizer, text: str) -> None:
    assert published.decode(published.encode(text)) == text


def test_threads_load_and_share_a_tokenizer(published: Tokenizer, shared: Path) -> None:
    texts = [f"{piece} {number}" for number in range(100) for piece in PIECES]
    expected = [published.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(Tokenizer.load, [shared / "data" / "tokenizer"] * 2))
        assert list(pool.map(published.encode, texts)) == expected
        assert list(pool.map(loaded[1].decode, expected)) == texts
