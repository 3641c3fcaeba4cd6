"""Several sequences of different lengths laid one after another on the token axis.

Unusual: for a recurrence the sequences are ordered by falling length, so that the ones still running at any step are
a prefix, and nothing is ever padded to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from openk3.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class ChunkPlan:
    """How the tokens of a packed batch fall into chunks of ``size``.

    Chunks are numbered step by step: all first chunks (longest sequence first), then all second ones, and so on.
    """

    size: int
    tokens: Tensor  # [num_chunks, size] int64 token index; the number of tokens where a chunk has no token
    positions: Tensor  # [N] int64: where each token went, as chunk * size + row
    order: Tensor  # [B] int64: sequences by falling length
    running: tuple[int, ...]  # per step, how many sequences (a prefix of `order`) have a chunk

    def to(self, device: torch.device) -> ChunkPlan:
        """Return the plan with its index tensors on ``device``."""
        tensors = {name: getattr(self, name).to(device) for name in ("tokens", "positions", "order")}
        return replace(self, **tensors)

    @cached_property
    def is_full(self) -> bool:
        """Whether every chunk is full, so that no padding row exists."""
        return self.tokens.numel() == self.positions.numel()

    def split(self, x: Tensor) -> Tensor:
        """Cut ``x`` [N, ...] into [num_chunks, size, ...], zero where a chunk has no token."""
        if not self.is_full:
            x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return x.index_select(0, self.tokens.flatten()).unflatten(0, self.tokens.shape)

    def join(self, chunks: Tensor) -> Tensor:
        """Undo `split`: [num_chunks, size, ...] to [N, ...]."""
        return chunks.flatten(0, 1).index_select(0, self.positions)


class PackedSequences:
    """Lengths of the sequences of one packed batch, and the index tensors that follow from them."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.lengths = tuple(int(n) for n in lengths)
        self.device = torch.device(device)
        if not self.lengths or min(self.lengths) < 1:
            raise ConfigError(f"sequence lengths are {self.lengths[:8]}, expected at least one, each at least 1")
        self._remembered: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all sequences together (N)."""
        return sum(self.lengths)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Index of each sequence's first token."""
        starts, at = [], 0
        for length in self.lengths:
            starts.append(at)
            at += length
        return tuple(starts)

    @cached_property
    def last_tokens(self) -> Tensor:
        """Index of each sequence's last token, [B] int64."""
        ends = [start + length - 1 for start, length in zip(self.starts, self.lengths, strict=True)]
        return torch.tensor(ends, device=self.device)

    @cached_property
    def sequence_of_token(self) -> Tensor:
        """Number of the sequence that each token belongs to, [N] int64."""
        numbers = torch.arange(len(self), device=self.device)
        return numbers.repeat_interleave(torch.tensor(self.lengths, device=self.device))

    def subset(self, sequences: Sequence[int]) -> tuple[PackedSequences, Tensor]:
        """Return the packing of some sequences alone, and the indices of their tokens here."""
        part = PackedSequences([self.lengths[i] for i in sequences], self.device)
        runs = [torch.arange(self.starts[i], self.starts[i] + self.lengths[i]) for i in sequences]
        return part, torch.cat(runs).to(self.device)

    def chunks(self, size: int) -> ChunkPlan:
        """Return the plan for chunks of ``size`` tokens, made once."""
        return self.remember(size, lambda: self._plan(size))

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` returned the first time for ``key``: all layers of a pass share one packing."""
        if key not in self._remembered:
            self._remembered[key] = make()
        value: T = self._remembered[key]
        return value

    def _plan(self, size: int) -> ChunkPlan:
        lengths = torch.tensor(self.lengths)
        order = torch.argsort(lengths, descending=True, stable=True)
        counts = (lengths[order] + size - 1) // size
        steps = torch.arange(int(counts[0]))
        exists = counts[None, :] > steps[:, None]  # [steps, B]
        first = torch.tensor(self.starts)[order] + steps[:, None] * size
        left = (lengths[order] - steps[:, None] * size)[exists]
        rows = torch.arange(size)
        tokens = torch.where(rows < left[:, None], first[exists][:, None] + rows, self.num_tokens)
        flat = tokens.flatten()
        positions = torch.empty(self.num_tokens + 1, dtype=torch.int64)
        positions[flat] = torch.arange(flat.numel())
        return ChunkPlan(
            size=size,
            tokens=tokens.to(self.device),
            positions=positions[:-1].to(self.device),
            order=order.to(self.device),
            running=tuple(exists.sum(1).tolist()),
        )
