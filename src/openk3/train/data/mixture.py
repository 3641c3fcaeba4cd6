"""A weighted mixture of token shards, in an order that a seed fixes and a few integers describe.

Unusual: no random choice between sources; the one that is furthest behind its weight is next, so any stretch of the
run has the wanted shares, and the cursor is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openk3.errors import TrainingError
from openk3.train.data.shards import Document, TokenShard


@dataclass(frozen=True, kw_only=True)
class WeightedShard:
    """A shard and its share of the mixture's tokens (shares need not sum to 1)."""

    name: str
    weight: float
    shard: TokenShard


@dataclass
class _Position:
    """Where a source stands: in epoch ``epoch`` at document ``index``, of which ``start`` tokens are done."""

    epoch: int = 0
    index: int = 0
    start: int = 0
    tokens: int = 0


class _Source:
    """One shard's training documents, in a new order each epoch."""

    def __init__(self, weighted: WeightedShard, window: int, held_out: float, seed: int) -> None:
        self.name, self.weight, self.shard = weighted.name, weighted.weight, weighted.shard
        self.window, self.seed = window, seed
        chosen = held_out_documents(self.shard, held_out)
        self.training = np.setdiff1d(np.arange(len(self.shard)), chosen)
        if not len(self.training):
            raise TrainingError(
                f"source {self.name!r} has {len(self.shard)} documents, none left for training",
                hint="lower data.held_out or give it more documents (a text file is one, a line of JSONL is one)",
            )
        self.position = _Position()
        self._order = self._shuffled(0)

    @property
    def progress(self) -> float:
        return self.position.tokens / self.weight

    def peek(self) -> Document:
        document = self.shard[int(self._order[self.position.index])]
        return document.piece(self.position.start, self.window)

    def advance(self) -> None:
        at, document = self.position, self.shard[int(self._order[self.position.index])]
        taken = len(self.peek())
        at.tokens += taken
        at.start += taken
        if len(document) - at.start >= 2:
            return
        at.start, at.index = 0, at.index + 1
        if at.index == len(self._order):
            at.index, at.epoch = 0, at.epoch + 1
            self._order = self._shuffled(at.epoch)

    def restore(self, position: Mapping[str, int]) -> None:
        self.position = _Position(**position)
        if not 0 <= self.position.index < len(self.training):
            raise TrainingError(
                f"source {self.name!r} was at document {self.position.index} of its order, but has "
                f"{len(self.training)} for training",
                hint="resume with the data the run was started with",
            )
        self._order = self._shuffled(self.position.epoch)

    def _shuffled(self, epoch: int) -> NDArray[np.int64]:
        digest = hashlib.blake2s(f"{self.seed}|{self.name}|{epoch}".encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "big")).permutation(self.training)


class Mixture:
    """An endless stream of documents of at most ``window`` tokens; longer ones come as consecutive pieces.

    Raises:
        TrainingError: a source has no documents for training.
    """

    def __init__(self, shards: Sequence[WeightedShard], *, window: int, held_out: float, seed: int) -> None:
        self._sources = [_Source(shard, window, held_out, seed) for shard in shards]

    def peek(self) -> Document:
        """Return the next document without taking it."""
        return self._next.peek()

    def take(self) -> Document:
        """Return the next document and move on."""
        source = self._next
        document = source.peek()
        source.advance()
        return document

    def cursor(self) -> dict[str, dict[str, int]]:
        """Return the position as plain integers, for `restore`."""
        return {source.name: vars(source.position).copy() for source in self._sources}

    def restore(self, cursor: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from ``cursor``; raise `TrainingError` if it belongs to other sources."""
        names = [source.name for source in self._sources]
        if sorted(cursor) != sorted(names):
            raise TrainingError(
                f"the checkpoint's data sources are {sorted(cursor)}, the configuration's {sorted(names)}",
                hint="resume with the configuration the run was started with",
            )
        for source in self._sources:
            source.restore(cursor[source.name])

    @property
    def _next(self) -> _Source:
        return min(self._sources, key=lambda source: source.progress)


def held_out_documents(shard: TokenShard, share: float) -> NDArray[np.int64]:
    """Return the indices of the documents that are never trained on: evenly spread, about ``share`` of them."""
    return np.arange(0, len(shard), round(1 / share)) if share else np.arange(0)


def held_out_pieces(shard: TokenShard, share: float, window: int, max_tokens: int) -> Iterator[Document]:
    """Yield the beginnings of held-out documents, about ``max_tokens`` in all."""
    left = max_tokens
    for index in held_out_documents(shard, share):
        if left <= 0:
            return
        piece = shard[int(index)].piece(0, window)
        left -= len(piece)
        yield piece
