"""Where a text is cut before merging: the split pattern, and the guards against very long runs.

Unusual: the pattern is tried through a vocabulary that holds just the pieces in question, so the engine that really
runs it is the one that is tested.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.tokenizer.split import MAX_RUN, SLICE_LENGTH, guarded


def pieces(text: str) -> list[str]:
    """Cut ``text`` by the pattern: every run of bytes that occurs in it is a token, so that a piece is one token."""
    raw = text.encode()
    bytes_ = [bytes([byte]) for byte in range(256)]
    runs = {raw[start:end] for start in range(len(raw)) for end in range(start + 2, len(raw) + 1)}
    tokens = [*bytes_, *sorted(runs, key=lambda run: (len(run), run))]
    tokenizer = Tokenizer(tokens, SpecialTokens.block(len(tokens)))
    return [tokenizer.decode([token]) for token in tokenizer.encode(text)]


@pytest.mark.parametrize(
    "expected",
    [
        ["你好", "World"],
        ["World", "你好"],
        ["Hello", " World"],
        ["HTTPServer"],
        ["camel", "Case"],
        ["CAMELcase", "Again"],
        ["don't", " WE'LL", " x'D"],
        ["'s"],
        ["(word", ")"],
        ["123", "456", "7"],
        ["٣٤٥", "٦"],
        ["a", "1", "b"],
        [" !?\r\n\n", "x"],
        ["  ", " !!"],
        ["a", " \n \n", "  ", " b"],
        ["a", "   "],
        ["a", "  ", " b"],
        ["a", "\tb"],
        ["a", " ", "\tb"],
        ["e\u0301tude"],
        ["ǅungla"],
        ["に", "日本", "は"],
        [" ", "你"],
        ["€", "5"],
        ["\u2028", "\u2028x"],
    ],
    ids=ascii,
)
def test_pieces(expected: list[str]) -> None:
    assert pieces("".join(expected)) == expected


def guarded_by_the_book(text: str) -> list[str]:
    """Walk over the characters as the guard is described, one by one."""
    stretches: list[str] = []
    for begin in range(0, len(text), SLICE_LENGTH):
        slice_ = text[begin : begin + SLICE_LENGTH]
        start, length, kind = 0, 0, slice_[0].isspace()
        for position, character in enumerate(slice_):
            if character.isspace() != kind:
                kind, length = not kind, 0
            length += 1
            if length > MAX_RUN:
                stretches.append(slice_[start:position])
                start, length = position, 1
        stretches.append(slice_[start:])
    return stretches


RUNS = st.lists(
    st.tuples(
        st.sampled_from("a \n\x1c\u00a0\u0085\u3000é🙂"),
        st.sampled_from([1, 2, 7, MAX_RUN - 1, MAX_RUN, MAX_RUN + 1, 2 * MAX_RUN + 3]),
    ),
    min_size=1,
    max_size=12,
)


@given(RUNS)
def test_guards_cut_where_a_walk_over_the_characters_does(runs: list[tuple[str, int]]) -> None:
    text = "".join(character * count for character, count in runs)
    assert list(guarded(text)) == guarded_by_the_book(text)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a" * MAX_RUN, [MAX_RUN]),
        ("a" * (MAX_RUN + 1), [MAX_RUN, 1]),
        ("a" * MAX_RUN + " " * MAX_RUN, [2 * MAX_RUN]),
        ("x " + "a" * (MAX_RUN + 1) + " x", [MAX_RUN + 2, 3]),
        ("\x1c" * (MAX_RUN + 1), [MAX_RUN, 1]),
        ("a\x1c" * MAX_RUN, [2 * MAX_RUN]),
        ("ab " * 140_000, [SLICE_LENGTH, 20_000]),
        # The count starts anew with a slice.
        ("ab " * 126_667 + "c" * 40_000, [SLICE_LENGTH, 20_001]),
    ],
    ids=["limit", "over", "two kinds", "amid", "separators", "alternating", "slices", "run over slices"],
)
def test_guards(text: str, lengths: list[int]) -> None:
    assert [len(stretch) for stretch in guarded(text)] == lengths
