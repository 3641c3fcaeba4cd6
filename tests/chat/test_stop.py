"""Stop strings: the same result however the text is cut, and nothing of a stop string shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.chat.stop import StopStrings


def run(stops: Sequence[str], pieces: Sequence[str]) -> tuple[str, str | None]:
    filter_ = StopStrings(stops)
    shown = "".join(filter_.push(piece) for piece in pieces)
    return shown + filter_.finish(), filter_.found


@pytest.mark.parametrize(
    ("stops", "text", "shown", "found"),
    [
        ((), "anything", "anything", None),
        (("END",), "one END two", "one ", "END"),
        (("END",), "one EN", "one EN", None),
        (("ab", "abc"), "xabc", "x", "ab"),
        (("abcd", "bc"), "abcd", "a", "bc"),
        (("bc", "abc"), "abc", "", "abc"),
        (("aab",), "aaab", "a", "aab"),
        (("\n\n",), "a\nb\n\nc", "a\nb", "\n\n"),
    ],
)
def test_examples(stops: Sequence[str], text: str, shown: str, found: str | None) -> None:
    assert run(stops, [text]) == run(stops, list(text)) == (shown, found)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    filter_ = StopStrings(["stop"])
    shown = [filter_.push(piece) for piece in ("go s", "t", "ay", " sto", "p", "more")]
    assert shown == ["go ", "", "stay", " ", "", ""]
    assert filter_.finish() == ""


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("ab", max_size=5), max_size=8),
)
def test_cuts_do_not_matter_and_no_stop_string_is_shown(stops: list[str], pieces: list[str]) -> None:
    shown, found = run(stops, pieces)
    assert (shown, found) == run(stops, list("".join(pieces)))
    assert not any(stop in shown for stop in stops)
    assert (found is None) == (not any(stop in "".join(pieces) for stop in stops))
