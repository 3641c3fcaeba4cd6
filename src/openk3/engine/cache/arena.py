"""One tensor of equal blocks that holds everything: a page of latents is one block, a state is several.

Unusual: nothing is inflated to fit. The block is as large as a page, and a state wastes at most part of its last block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from openk3.errors import CapacityError, ConfigError, EngineError

_ALIGNMENT = 64


class Arena:
    """``num_blocks`` blocks of ``block_bytes`` bytes (rounded up to 64), zero at first.

    Raises:
        CapacityError: there is not that much memory.
    """

    def __init__(self, num_blocks: int, block_bytes: int, device: torch.device | str = "cpu") -> None:
        if num_blocks < 1 or block_bytes < 1:
            raise ConfigError(f"{num_blocks} blocks of {block_bytes} bytes, expected at least 1 of each")
        self.num_blocks = num_blocks
        self.block_bytes = -(-block_bytes // _ALIGNMENT) * _ALIGNMENT
        try:
            self._data = _zeros(num_blocks, self.block_bytes, torch.device(device))
        except (MemoryError, RuntimeError) as error:
            raise CapacityError(
                f"{num_blocks} blocks of {self.block_bytes} bytes cannot be allocated: {error}",
                hint="give the cache less memory",
            ) from None

    def num_blocks_for(self, num_bytes: int) -> int:
        """Return how many blocks ``num_bytes`` bytes take."""
        return -(-num_bytes // self.block_bytes)

    def latents(self, dtype: torch.dtype, layers: int, page_size: int, width: int) -> Tensor:
        """Return all blocks seen as pages, [num_blocks, layers, page_size, width] of ``dtype``, without copying.

        Raises:
            ConfigError: a page does not fit in a block.
        """
        needed = layers * page_size * width * dtype.itemsize
        if needed > self.block_bytes:
            raise ConfigError(f"a page takes {needed} bytes, but a block has {self.block_bytes}")
        values = self._data[:, :needed].view(dtype)
        return values.unflatten(1, (layers, page_size, width))

    def write_bytes(self, blocks: Sequence[int], flat: Tensor) -> None:
        """Copy ``flat`` [n] uint8 into ``blocks``, in order; EngineError unless they are exactly as many as needed."""
        if flat.dtype != torch.uint8 or flat.ndim != 1:
            raise EngineError(f"{flat.dtype} {tuple(flat.shape)} was to be stored, expected uint8 in one dimension")
        self._check(blocks, flat.numel())
        whole = flat.numel() // self.block_bytes
        cut = whole * self.block_bytes
        if whole:
            self._data[list(blocks[:whole])] = flat[:cut].view(whole, self.block_bytes).to(self._data.device)
        if cut < flat.numel():
            self._data[blocks[whole], : flat.numel() - cut] = flat[cut:].to(self._data.device)

    def read_bytes(self, blocks: Sequence[int], n: int) -> Tensor:
        """Return a copy of the first ``n`` bytes of ``blocks``, [n] uint8."""
        self._check(blocks, n)
        return self._data[list(blocks)].reshape(-1)[:n]

    def clear(self, blocks: Sequence[int]) -> None:
        """Fill ``blocks`` with zeros: what others left there may be infinite or not a number."""
        self._data[list(blocks)] = 0

    def _check(self, blocks: Sequence[int], n: int) -> None:
        if len(blocks) != self.num_blocks_for(n):
            raise EngineError(f"{n} bytes in {len(blocks)} blocks, expected {self.num_blocks_for(n)}")


class PageRows:
    """Latents cut by token rather than by page: rows [tokens, row_bytes] uint8, whatever the size of a page."""

    def __init__(self, latents: Tensor) -> None:
        self._pages = latents.view(torch.uint8)
        _, self._layers, self.page_size, self._width = self._pages.shape
        self.row_bytes = self._layers * self._width

    def read(self, pages: Sequence[int], start: int, stop: int) -> Tensor:
        """Return a copy of the rows of tokens ``start`` to ``stop`` of a sequence whose pages are ``pages``."""
        first = start // self.page_size
        used = list(pages[first : -(-stop // self.page_size)])
        rows = self._pages[used].transpose(1, 2).reshape(-1, self.row_bytes)
        return rows[start - first * self.page_size : stop - first * self.page_size]

    def write(self, pages: Sequence[int], start: int, rows: Tensor) -> None:
        """Store ``rows`` as tokens from ``start`` on; no other row of these pages changes."""
        stop = start + rows.shape[0]
        rows = rows.view(-1, self._layers, self._width).to(self._pages.device)
        for number in range(start // self.page_size, -(-stop // self.page_size)):
            origin = number * self.page_size
            low, high = max(start, origin), min(stop, origin + self.page_size)
            part = rows[low - start : high - start].transpose(0, 1)
            self._pages[pages[number], :, low - origin : high - origin] = part


def _zeros(num_blocks: int, block_bytes: int, device: torch.device) -> Tensor:
    """Return zeros; on a CPU the system hands out each page when it is first written, which PyTorch does at once."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros((num_blocks, block_bytes), dtype=np.uint8))
    return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8, device=device)
