"""Who holds which block of the arena: reference counts and a list of free blocks.

Unusual: every call checks before it changes anything, so a call that raises has done nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from openk3.errors import ConfigError, EngineError

Blocks = Sequence[int] | NDArray[np.int64]
"""Numbers of blocks."""


class BlockPool:
    """Reference counts of ``num_blocks`` blocks, all free at first."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a pool of {num_blocks} blocks, expected at least 1")
        self.num_blocks = num_blocks
        self._counts = np.zeros(num_blocks, dtype=np.int64)
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many holders each block has, [num_blocks], as a read-only view."""
        view = self._counts.view()
        view.flags.writeable = False
        return view

    def allocate(self, n: int) -> list[int] | None:
        """Return ``n`` blocks, each with one holder, or None (and take none) if fewer are free."""
        if n < 0:
            raise EngineError(f"{n} blocks were asked for, expected 0 or more")
        if n > len(self._free):
            return None
        cut = len(self._free) - n
        taken = self._free[cut:]
        del self._free[cut:]
        self._counts[taken] = 1
        return taken

    def retain(self, blocks: Blocks) -> None:
        """Add one holder to each of ``blocks``; raises EngineError if one of them is free."""
        ids, times = self._checked(blocks)
        if ids.size and not (counts := self._counts[ids]).all():
            raise EngineError(f"block {ids[counts == 0][0]} is free, only a block in use can get one more holder")
        self._counts[ids] += times

    def release(self, blocks: Blocks) -> int:
        """Take one holder from each of ``blocks`` and return how many became free; EngineError if one had none."""
        ids, times = self._checked(blocks)
        left = self._counts[ids] - times
        if (left < 0).any():
            raise EngineError(f"block {ids[left < 0][0]} was released more often than it was held")
        self._counts[ids] = left
        freed = ids[left == 0].tolist()
        self._free += freed
        return len(freed)

    def _checked(self, blocks: Blocks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids, times = np.unique(np.asarray(blocks, dtype=np.int64), return_counts=True)
        if ids.size and not 0 <= ids[0] <= ids[-1] < self.num_blocks:
            raise EngineError(f"blocks {ids[0]} to {ids[-1]} were named, expected 0 to {self.num_blocks - 1}")
        return ids, times
