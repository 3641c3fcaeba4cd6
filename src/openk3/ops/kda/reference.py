"""Kimi Delta Attention as its recurrence: the definition that every faster form is compared with.

Legend: N tokens, B sequences, H heads, K key = V value dimension. Unusual: the decay acts before the prediction error
is formed, and the read-out comes after the write.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.ops.packed import ChunkPlan, PackedSequences
from openk3.ops.precision import wide_dtype


def kda_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    packed: PackedSequences,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule token by token (Kimi K3 report, section 2.1).

    ``q`` ``k`` [N, H, K] L2-normalised; ``v`` [N, H, V]; ``log_decay`` [N, H, K] <= 0; ``beta`` [N, H] in (0, 1);
    ``state`` [B, H, K, V] float32 (zeros if None). Returns the read-out [N, H, V] and the new state, both float32
    (float64 if the inputs are).
    """
    plan = packed.chunks(1)
    dtype = wide_dtype(q.dtype)
    scale = q.shape[-1] ** -0.5
    q, k, v, log_decay, beta = (plan.split(x.to(dtype)).squeeze(1) for x in (q, k, v, log_decay, beta))
    state = first_state(state, plan, k.shape[1], (k.shape[-1], v.shape[-1]), v)
    outputs, finished, at = [], [], 0
    for running in plan.running:
        finished.append(state[running:])
        rows = slice(at, at + running)
        at += running
        decayed = state[:running] * log_decay[rows].exp()[..., None]
        error = v[rows] - _read(decayed, k[rows])
        state = decayed + k[rows][..., None] * (beta[rows][..., None] * error)[..., None, :]
        outputs.append(_read(state, q[rows] * scale))
    return plan.join(torch.cat(outputs)[:, None]), in_sequence_order([*finished, state], plan.order)


def _read(state: Tensor, key: Tensor) -> Tensor:
    """Return ``S^T k`` for state [B, H, K, V] and key [B, H, K], [B, H, V]."""
    return (state * key[..., None]).sum(-2)


def first_state(state: Tensor | None, plan: ChunkPlan, heads: int, shape: tuple[int, int], like: Tensor) -> Tensor:
    """Return the states [B, H, K, V] to begin with, longest sequence first: zeros, or ``state`` reordered."""
    if state is None:
        return like.new_zeros(len(plan.order), heads, *shape)
    return state.to(like.dtype).index_select(0, plan.order)


def in_sequence_order(finished: list[Tensor], order: Tensor) -> Tensor:
    """Join the states in the order in which sequences ended (longest last) and undo the sorting by length."""
    by_length = torch.cat(finished[::-1])
    return torch.empty_like(by_length).index_copy(0, order, by_length)
