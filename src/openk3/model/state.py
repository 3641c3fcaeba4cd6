"""What a sequence carries from token to token: KDA states and convolution tails, and cached latents of the MLA layers.

Unusual: layers only see `BatchState`, four calls; whoever stores states differently (slots, pages) implements those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from openk3.errors import ConfigError
from openk3.model.config import K3Config
from openk3.ops.packed import PackedSequences
from openk3.ops.precision import wide_dtype


class KDAState(NamedTuple):
    """State of one KDA layer, for one sequence or stacked for B."""

    recurrent: Tensor  # [(B,) H, K, V] float32
    conv: Tensor  # [(B,) taps - 1, 3 * H * K] raw inputs q|k|v, oldest first, activation dtype


class BatchState(Protocol):
    """The states of a packed batch, as the layers read and write them; layer numbers are zero-based."""

    def read_kda(self, layer: int) -> KDAState | None:
        """Return the stacked state before this pass, or None for fresh sequences."""
        ...

    def write_kda(self, layer: int, state: KDAState) -> None:
        """Store the stacked state after this pass."""
        ...

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> Sequence[Tensor]:
        """Append the new tokens' entries [N, width] and return each sequence's whole cache [S, width]."""
        ...

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return how many tokens each sequence has cached in an MLA layer before this pass."""
        ...


class Stateless:
    """Fresh sequences of which nothing is kept, as in training."""

    def __init__(self, num_sequences: int) -> None:
        self._num_sequences = num_sequences

    def read_kda(self, layer: int) -> None:
        """Return None: every sequence is fresh."""

    def write_kda(self, layer: int, state: KDAState) -> None:
        """Keep nothing."""

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> Sequence[Tensor]:
        """Return the new entries alone, cut by sequence."""
        return entries.split(packed.lengths)

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return zeros."""
        return [0] * self._num_sequences


class LatentCache:
    """Rows of one MLA layer, one per token, in a buffer that grows by doubling."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(0, width, dtype=dtype, device=device)
        self.num_tokens = 0

    @property
    def entries(self) -> Tensor:
        """The cached rows [S, width], as a view."""
        return self._buffer[: self.num_tokens]

    def append(self, rows: Tensor) -> Tensor:
        """Add rows [T, width] and return all [S, width]."""
        total = self.num_tokens + rows.shape[0]
        if total > self._buffer.shape[0]:
            grown = self._buffer.new_zeros(max(total, 2 * self._buffer.shape[0], 64), self._buffer.shape[1])
            grown[: self.num_tokens] = self.entries
            self._buffer = grown
        self._buffer[self.num_tokens : total] = rows
        self.num_tokens = total
        return self.entries

    def clone(self) -> LatentCache:
        """Return an independent copy."""
        copy = LatentCache(self._buffer.shape[1], self._buffer.dtype, self._buffer.device)
        copy._buffer, copy.num_tokens = self.entries.clone(), self.num_tokens
        return copy


class SequenceState:
    """Everything one sequence carries; starts at position 0."""

    def __init__(self, config: K3Config, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        kda, mla = config.kda, config.mla
        shape = (kda.num_heads, kda.head_dim, kda.head_dim)
        tail = (kda.short_conv_kernel_size - 1, 3 * kda.width)
        self.num_tokens = 0
        self.kda = {
            layer: KDAState(
                torch.zeros(shape, dtype=wide_dtype(dtype), device=device),
                torch.zeros(tail, dtype=dtype, device=device),
            )
            for layer in config.kda_layers
        }
        self.mla = {
            layer: LatentCache(mla.cache_width, dtype, device) for layer in (*config.mla_layers, *config.mtp_layers)
        }

    def clone(self) -> SequenceState:
        """Return an independent copy, to go back to or to continue twice."""
        copy = object.__new__(SequenceState)
        copy.num_tokens = self.num_tokens
        copy.kda = {layer: KDAState(*(t.clone() for t in state)) for layer, state in self.kda.items()}
        copy.mla = {layer: cache.clone() for layer, cache in self.mla.items()}
        return copy


class SequenceStates:
    """`BatchState` over separate `SequenceState` objects, stacked and unstacked at each layer."""

    def __init__(self, states: Sequence[SequenceState], packed: PackedSequences) -> None:
        if len(states) != len(packed):
            raise ConfigError(f"{len(states)} states for {len(packed)} sequences, expected one each")
        if len({id(state) for state in states}) != len(states):
            raise ConfigError("the same state is given for two sequences of one batch; clone it first")
        self._states = states

    def read_kda(self, layer: int) -> KDAState:
        """Return the stacked states."""
        states = [state.kda[layer] for state in self._states]
        return KDAState(torch.stack([s.recurrent for s in states]), torch.stack([s.conv for s in states]))

    def write_kda(self, layer: int, state: KDAState) -> None:
        """Give each sequence its own copy, so that none keeps the whole batch's tensor alive."""
        for i, sequence in enumerate(self._states):
            sequence.kda[layer] = KDAState(state.recurrent[i].clone(), state.conv[i].clone())

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> Sequence[Tensor]:
        """Append to each sequence's cache and return the caches."""
        parts = entries.split(packed.lengths)
        return [state.mla[layer].append(part) for state, part in zip(self._states, parts, strict=True)]

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return each sequence's number of cached rows."""
        return [state.mla[layer].num_tokens for state in self._states]
