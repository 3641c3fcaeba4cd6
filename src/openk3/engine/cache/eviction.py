"""Which checkpoint goes first: the one whose expected saving per block is least, aged (GreedyDual-Size-Frequency).

Unusual: scores are computed when a checkpoint is used and once more before it would go; those in between may be stale,
which costs a little quality and never correctness.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from openk3.engine.cache.checkpoint import Checkpoint


class GreedyDual:
    """A ranking of checkpoints; ``blocks`` says how many blocks one alone keeps in use."""

    def __init__(self, blocks: Callable[[Checkpoint], int]) -> None:
        self._blocks = blocks
        self._clock = 0.0
        self._serial = 0
        self._heap: list[tuple[float, int, Checkpoint]] = []
        self._entry: dict[Checkpoint, int] = {}  # the serial number of the one valid heap entry

    def __len__(self) -> int:
        return len(self._entry)

    def used(self, checkpoint: Checkpoint) -> None:
        """Note that it was published or resumed from just now."""
        checkpoint.clock = self._clock
        self.rescore(checkpoint)

    def score(self, checkpoint: Checkpoint) -> float:
        """Return the tokens it is expected to save per block, on top of the age at its last use."""
        return checkpoint.clock + (checkpoint.hits + 1) * checkpoint.saved_tokens / max(1, self._blocks(checkpoint))

    def rescore(self, checkpoint: Checkpoint) -> None:
        """Rank it anew, as its neighbours in the tree have changed."""
        self._serial += 1
        self._entry[checkpoint] = self._serial
        heapq.heappush(self._heap, (self.score(checkpoint), self._serial, checkpoint))
        if len(self._heap) > 64 + 4 * len(self._entry):
            self._heap = [entry for entry in self._heap if self._valid(entry)]
            heapq.heapify(self._heap)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Forget it."""
        del self._entry[checkpoint]

    def cheapest(self) -> Checkpoint | None:
        """Return the unpinned checkpoint of least score and age the ranking to that score; None if all are pinned."""
        pinned, fresh = [], set()
        victim = None
        while self._heap and victim is None:
            entry = heapq.heappop(self._heap)
            if not self._valid(entry):
                continue
            score, _, checkpoint = entry
            if checkpoint.pins:
                pinned.append(entry)
            elif checkpoint not in fresh and self.score(checkpoint) != score:
                fresh.add(checkpoint)
                self.rescore(checkpoint)
            else:
                heapq.heappush(self._heap, entry)
                self._clock = max(self._clock, score)
                victim = checkpoint
        for entry in pinned:
            heapq.heappush(self._heap, entry)
        return victim

    def _valid(self, entry: tuple[float, int, Checkpoint]) -> bool:
        return self._entry.get(entry[2]) == entry[1]
