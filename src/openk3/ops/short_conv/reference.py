"""Causal depthwise convolution of a few taps with SiLU, over a packed batch, with a state of the last inputs.

Unusual: the last tap multiplies the current token, and the state keeps the raw inputs, one fewer than there are taps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from openk3.ops.packed import PackedSequences
from openk3.ops.precision import widen
from openk3.ops.row_independent import rows_in_whole_vectors

TapsAndSilu = Callable[[Tensor, Tensor], Tensor]


def weighted_taps(extended: Tensor, weight: Tensor) -> Tensor:
    """Return ``sum_j weight[:, j] * extended[r + j]`` for every window of rows: [M, C], [C, taps] to [M - taps + 1,
    C].
    """
    windows = extended.shape[0] - weight.shape[1] + 1
    first, *others = weight.unbind(1)
    total = extended[:windows] * first
    for j, tap in enumerate(others, start=1):
        total = torch.addcmul(total, extended[j : j + windows], tap)
    return total


def taps_and_silu(extended: Tensor, weight: Tensor) -> Tensor:
    """Return SiLU of `weighted_taps` in float32, rounded once to extended's dtype."""
    return F.silu(weighted_taps(widen(extended), widen(weight))).to(extended.dtype)


def short_conv(
    u: Tensor,
    weight: Tensor,
    packed: PackedSequences,
    tail: Tensor | None = None,
    taps_and_silu: TapsAndSilu = taps_and_silu,
) -> tuple[Tensor, Tensor]:
    """Return ``SiLU(sum_j weight[:, j] * u[t - taps + 1 + j])`` and the new tail.

    ``u`` [N, C]; ``weight`` [C, taps] float32; ``tail`` [B, taps - 1, C] raw inputs before each sequence, oldest first
    (zeros if None). Windows that begin in another sequence are computed too and never read.
    """
    before = weight.shape[1] - 1
    extended, token_rows, tail_rows = _with_tails(u, packed, tail, before)
    y = taps_and_silu(extended, weight).index_select(0, token_rows - before)
    return y, extended.index_select(0, tail_rows.flatten()).unflatten(0, tail_rows.shape)


def _with_tails(u: Tensor, packed: PackedSequences, tail: Tensor | None, before: int) -> tuple[Tensor, Tensor, Tensor]:
    """Insert each sequence's tail before it; return that, the rows of the tokens, and the rows of the new tails."""
    num_sequences, device = len(packed), u.device
    if tail is None:
        tail = u.new_zeros(num_sequences, before, u.shape[1])
    token_rows = torch.arange(packed.num_tokens, device=device) + before * (packed.sequence_of_token + 1)
    last_rows = packed.last_tokens + before * torch.arange(1, num_sequences + 1, device=device)
    starts = torch.tensor(packed.starts, device=device) + before * torch.arange(num_sequences, device=device)
    insert_rows = starts[:, None] + torch.arange(before, device=device)
    num_rows = packed.num_tokens + before * num_sequences
    # windows in whole vectors: the rest of a tensor is computed by other code, with other rounding
    spare = -(num_rows - before) % rows_in_whole_vectors(u.shape[1])
    extended = u.new_zeros(num_rows + spare, u.shape[1])
    extended = extended.index_copy(0, token_rows, u).index_copy(
        0, insert_rows.flatten(), tail.to(u.dtype).flatten(0, 1)
    )
    tail_rows = last_rows[:, None] + torch.arange(1 - before, 1, device=device)
    return extended, token_rows, tail_rows
