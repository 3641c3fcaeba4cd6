"""Drafts from the text itself: what followed the last time that the latest tokens stood there.

Unusual: the index has one entry per pair of tokens, and links from each place to the place before with the same pair;
longer matches are found by comparing tokens at the latest few of these places.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow

# Tokens that are compared at most; a match has two at least.
_LONGEST = 8
# Places that are compared at most, the latest first: this bounds a step in texts that repeat one pair for ever.
_PLACES = 16
# Tokens that are indexed at most per step, so that a long prompt, or one from the cache, does not stop the others.
_PORTION = 8192


class NgramDrafter:
    """Drafts of repeated text; needs no weights and hardly any time."""

    # A pair's key (32) and place (32), its part of a table that just doubled, old and new (90), and a link (5).
    bytes_per_token = 176
    bytes_per_sequence = 1024

    def __init__(self, max_depth: int) -> None:
        self.max_depth = max_depth
        self._indices: dict[EngineSequence, _Index] = {}

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Return what followed the longest match, for each sequence at most its depth of tokens; no match, no draft."""
        return [self._guess(sequence, depth) for sequence, depth in zip(sequences, depths, strict=True)]

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        """Take note of nothing: `propose` sees all tokens."""

    def release(self, sequence: EngineSequence) -> None:
        """Drop the sequence's index."""
        self._indices.pop(sequence, None)

    def _guess(self, sequence: EngineSequence, depth: int) -> list[int]:
        index = self._indices.setdefault(sequence, _Index())
        index.extend(sequence.tokens)
        return index.continuation(sequence.tokens, min(depth, self.max_depth))


class _Index:
    """Where each pair of tokens stood; a place is the index of the pair's second token."""

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._before = array("i", [-1])  # per place, the place before with the same pair; place 0 has no pair

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the pairs that a token follows, from where it ended before, a portion at most."""
        first = len(self._before)
        for place in range(first, min(len(tokens) - 1, first + _PORTION)):
            pair = _pair(tokens, place)
            self._before.append(self._latest.get(pair, -1))
            self._latest[pair] = place

    def continuation(self, tokens: Sequence[int], depth: int) -> list[int]:
        """Return ``depth`` tokens that followed the best match, which go round where they reach the text's end."""
        if depth < 1 or len(tokens) < 2:
            return []
        best, longest = -1, 0
        for place in self._places(_pair(tokens, len(tokens) - 1)):
            length = _common_suffix(tokens, place)
            if length > longest:
                best, longest = place, length
            if length == _LONGEST:
                break
        if best < 0:
            return []
        period = len(tokens) - 1 - best
        return [tokens[best + 1 + i % period] for i in range(depth)]

    def _places(self, pair: int) -> Iterator[int]:
        place = self._latest.get(pair, -1)
        for _ in range(_PLACES):
            if place < 0:
                return
            yield place
            place = self._before[place]


def _pair(tokens: Sequence[int], place: int) -> int:
    return tokens[place - 1] << 32 | tokens[place]


def _common_suffix(tokens: Sequence[int], place: int) -> int:
    """Return how many tokens up to ``place`` equal the last ones; two do, as the pair is the same."""
    length = 2
    while length < _LONGEST and length <= place and tokens[place - length] == tokens[-1 - length]:
        length += 1
    return length
