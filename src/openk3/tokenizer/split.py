"""How a text is cut before byte-pair encoding: the split pattern, and guards for very long runs.

Unusual: the guards change ids (a token never spans a cut), so they belong to the vocabulary, not to the implementation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SLICE_LENGTH = 400_000
"""Characters that are looked at together."""
MAX_RUN = 25_000
"""Characters of one kind, whitespace or not, that may follow each other without a cut."""

_OPENING = r"[^\r\n\p{L}\p{N}]?"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

SPLIT_PATTERN = "|".join(
    (
        r"\p{Han}+",
        f"{_OPENING}{_UPPER}*{_LOWER}+{_CONTRACTION}",
        f"{_OPENING}{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Pieces that are encoded alone, in the syntax of Rust's regex crate; the first alternative that matches counts."""

# Python's own idea of whitespace, as the published tokenizer's guard has it: U+001C to U+001F are part of it.
_RUN = re.compile(r"\s+|\S+")


def guarded(text: str) -> Iterator[str]:
    """Cut ``text`` into stretches that are encoded one by one."""
    if len(text) <= MAX_RUN:
        yield text
        return
    for start in range(0, len(text), SLICE_LENGTH):
        yield from _cut_runs(text[start : start + SLICE_LENGTH])


def _cut_runs(text: str) -> Iterator[str]:
    start = 0
    for run in _RUN.finditer(text):
        for cut in range(run.start() + MAX_RUN, run.end(), MAX_RUN):
            yield text[start:cut]
            start = cut
    yield text[start:]
