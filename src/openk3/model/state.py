"""What a sequence carries from token to token: KDA states with the rows of their open chunk, and latents of MLA layers.

Unusual: a KDA state stands at a multiple of 16 tokens, and the rows since are kept beside it, so that any split of a
text gives the same bits. Layers only see `BatchState`; whoever stores states differently (slots, pages) implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from openk3.errors import ConfigError
from openk3.model.config import K3Config
from openk3.ops.kda.chunk import CHUNK_SIZE
from openk3.ops.kda.dispatch import KDAForm
from openk3.ops.kda.stream import MAX_OPEN, settle
from openk3.ops.mla.blocks import whole_blocks
from openk3.ops.packed import PackedSequences
from openk3.ops.precision import wide_dtype


class KDAState(NamedTuple):
    """What one KDA layer carries, for one sequence or stacked for B."""

    recurrent: Tensor  # [(B,) H, K, V] float32, at the last multiple of 16 tokens
    opened: Tensor  # [(B,) 15, H, 2K + V + 1] float32, rows since then: k | v | log_decay | beta
    conv: Tensor  # [(B,) taps - 1, 3 * H * K] raw inputs q|k|v of the last tokens, oldest first, activation dtype


class KDAShapes(NamedTuple):
    """Shapes of one sequence's `KDAState`."""

    recurrent: tuple[int, ...]
    opened: tuple[int, ...]
    conv: tuple[int, ...]


def kda_shapes(config: K3Config) -> KDAShapes:
    """Return the shapes of a KDA layer's state."""
    heads, dim = config.kda.num_heads, config.kda.head_dim
    taps = config.kda.short_conv_kernel_size
    return KDAShapes((heads, dim, dim), (MAX_OPEN, heads, 3 * dim + 1), (taps - 1, 3 * config.kda.width))


class BatchState(Protocol):
    """The states of a packed batch, as the layers read and write them; layer numbers are zero-based."""

    @property
    def num_open(self) -> Sequence[int]:
        """How many opened rows each sequence's KDA states have."""
        ...

    def read_kda(self, layer: int) -> KDAState | None:
        """Return the stacked state before this pass, or None for fresh sequences of which nothing is kept."""
        ...

    def write_kda(self, layer: int, recurrent: Tensor, rows: Tensor, inputs: Tensor, packed: PackedSequences) -> None:
        """Store the new recurrent states [B, ...], and add the new tokens' rows and raw convolution inputs [N, ...]."""
        ...

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return how many tokens each sequence has cached in an MLA layer."""
        ...

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> None:
        """Append the new tokens' entries [N, width]."""
        ...

    def latents(self, layer: int, sequences: Sequence[int], num_rows: int) -> Tensor:
        """Return cached entries [len(sequences), num_rows, width], zero after each sequence's last."""
        ...


class Stateless:
    """Fresh sequences of which nothing is kept, as in training."""

    def __init__(self, packed: PackedSequences) -> None:
        self.num_open = [0] * len(packed)
        self._entries: tuple[Tensor, ...] = ()

    def read_kda(self, layer: int) -> None:
        """Return None: every sequence is fresh."""

    def write_kda(self, layer: int, recurrent: Tensor, rows: Tensor, inputs: Tensor, packed: PackedSequences) -> None:
        """Keep nothing."""

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return zeros."""
        return self.num_open

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> None:
        """Hold the new entries until the next layer's."""
        self._entries = entries.split(packed.lengths)

    def latents(self, layer: int, sequences: Sequence[int], num_rows: int) -> Tensor:
        """Return the new entries alone."""
        return stack_rows([self._entries[i] for i in sequences], num_rows)


def stack_rows(parts: Sequence[Tensor], num_rows: int) -> Tensor:
    """Stack tensors [S_i, width] as [n, num_rows, width], zeros after each one's rows."""
    if all(part.shape[0] == num_rows for part in parts):
        return torch.stack(list(parts))
    stacked = parts[0].new_zeros(len(parts), num_rows, parts[0].shape[1])
    for row, part in zip(stacked, parts, strict=True):
        row[: part.shape[0]] = part
    return stacked


class LatentCache:
    """Rows of one MLA layer, one per token, in a buffer that grows by doubling."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(0, width, dtype=dtype, device=device)
        self.num_tokens = 0

    @property
    def entries(self) -> Tensor:
        """The cached rows [S, width], as a view."""
        return self._buffer[: self.num_tokens]

    def append(self, rows: Tensor) -> None:
        """Add rows [T, width]."""
        total = self.num_tokens + rows.shape[0]
        if total > self._buffer.shape[0]:
            grown = self._buffer.new_zeros(whole_blocks(max(total, 2 * self.num_tokens)), self._buffer.shape[1])
            grown[: self.num_tokens] = self.entries
            self._buffer = grown
        self._buffer[self.num_tokens : total] = rows
        self.num_tokens = total

    def truncate(self, num_tokens: int) -> None:
        """Forget all rows after the first ``num_tokens``."""
        self.num_tokens = min(self.num_tokens, num_tokens)

    def padded(self, num_rows: int) -> Tensor:
        """Return [num_rows, width]: the cached rows and zeros, without a copy where the buffer is long enough."""
        if num_rows > self._buffer.shape[0]:
            return stack_rows([self.entries], num_rows)[0]
        self._buffer[self.num_tokens : num_rows] = 0  # rows taken back, or memory that held something else
        return self._buffer[:num_rows]

    def clone(self) -> LatentCache:
        """Return an independent copy."""
        copy = LatentCache(self._buffer.shape[1], self._buffer.dtype, self._buffer.device)
        copy._buffer, copy.num_tokens = self.entries.clone(), self.num_tokens
        return copy


@dataclass(frozen=True)
class Mark:
    """A point that a `SequenceState` can go back to, as long as only later tokens were added since."""

    num_tokens: int
    kda: Mapping[int, KDAState]
    num_latents: Mapping[int, int]


class SequenceState:
    """Everything one sequence carries; starts at position 0."""

    def __init__(
        self, config: K3Config, dtype: torch.dtype, device: torch.device | str = "cpu", kda_form: KDAForm = "chunk"
    ) -> None:
        device = torch.device(device)
        self.kda_form = kda_form
        self.num_tokens = 0
        self.kda = {layer: _empty_kda(kda_shapes(config), dtype, device) for layer in config.kda_layers}
        self.mla = {
            layer: LatentCache(config.mla.cache_width, dtype, device)
            for layer in (*config.mla_layers, *config.mtp_layers)
        }

    @property
    def num_open(self) -> int:
        """Opened rows of the KDA states; the recurrent form has none."""
        return self.num_tokens % CHUNK_SIZE if self.kda_form == "chunk" else 0

    def settled(self, layer: int) -> Tensor:
        """Return a KDA layer's recurrent state [H, K, V] after the last token, opened rows included."""
        state = self.kda[layer]
        return settle(state.recurrent, state.opened[: self.num_open])

    def mark(self) -> Mark:
        """Return the present point, at the cost of a few references."""
        return Mark(self.num_tokens, dict(self.kda), {layer: cache.num_tokens for layer, cache in self.mla.items()})

    def rewind(self, mark: Mark) -> None:
        """Take back every token since ``mark``."""
        self.num_tokens, self.kda = mark.num_tokens, dict(mark.kda)
        for layer, cache in self.mla.items():
            cache.truncate(mark.num_latents[layer])

    def clone(self) -> SequenceState:
        """Return an independent copy, to go back to or to continue twice."""
        copy = object.__new__(SequenceState)
        copy.num_tokens, copy.kda_form = self.num_tokens, self.kda_form
        copy.kda = {layer: KDAState(*(t.clone() for t in state)) for layer, state in self.kda.items()}
        copy.mla = {layer: cache.clone() for layer, cache in self.mla.items()}
        return copy


def _empty_kda(shapes: KDAShapes, dtype: torch.dtype, device: torch.device) -> KDAState:
    wide = wide_dtype(dtype)
    dtypes = (wide, wide, dtype)
    return KDAState(*(torch.zeros(s, dtype=t, device=device) for s, t in zip(shapes, dtypes, strict=True)))


class SequenceStates:
    """`BatchState` over separate `SequenceState` objects, stacked and unstacked at each layer."""

    def __init__(self, states: Sequence[SequenceState], packed: PackedSequences) -> None:
        if len(states) != len(packed):
            raise ConfigError(f"{len(states)} states for {len(packed)} sequences, expected one each")
        if len({id(state) for state in states}) != len(states):
            raise ConfigError("the same state is given for two sequences of one batch; clone it first")
        self._states = states
        self.num_open = [state.num_open for state in states]

    def read_kda(self, layer: int) -> KDAState:
        """Return the stacked states."""
        return KDAState(*(torch.stack(tensors) for tensors in zip(*(s.kda[layer] for s in self._states), strict=True)))

    def write_kda(self, layer: int, recurrent: Tensor, rows: Tensor, inputs: Tensor, packed: PackedSequences) -> None:
        """Give each sequence its own new tensors, so that marks stay valid and none keeps the whole batch alive."""
        parts = zip(self._states, recurrent, rows.split(packed.lengths), inputs.split(packed.lengths), strict=True)
        for state, new_recurrent, new_rows, new_inputs in parts:
            old = state.kda[layer]
            opened = add_rows(old.opened, state.num_open, new_rows) if state.kda_form == "chunk" else old.opened
            conv = torch.cat([old.conv, new_inputs])[-old.conv.shape[0] :].clone()
            state.kda[layer] = KDAState(new_recurrent.clone(), opened, conv)

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return each sequence's number of cached rows."""
        return [state.mla[layer].num_tokens for state in self._states]

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> None:
        """Append to each sequence's cache."""
        for state, part in zip(self._states, entries.split(packed.lengths), strict=True):
            state.mla[layer].append(part)

    def latents(self, layer: int, sequences: Sequence[int], num_rows: int) -> Tensor:
        """Return the caches of some sequences, padded with zeros."""
        padded = [self._states[i].mla[layer].padded(num_rows) for i in sequences]
        return padded[0][None] if len(padded) == 1 else torch.stack(padded)


def add_rows(opened: Tensor, num_open: int, rows: Tensor) -> Tensor:
    """Return the opened rows [15, ...] after new tokens' ``rows`` [T, ...]: those since the last multiple of 16."""
    new = torch.zeros_like(opened)
    kept = (num_open + rows.shape[0]) % CHUNK_SIZE
    from_old = max(0, kept - rows.shape[0])
    new[:from_old] = opened[:from_old]
    new[from_old:kept] = rows[rows.shape[0] - (kept - from_old) :]
    return new
