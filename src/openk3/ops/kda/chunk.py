"""Kimi Delta Attention in chunks of 16 tokens: matrix products inside a chunk, one state step between chunks.

Unusual: a row of a chunk never depends on later rows, not even in its rounding, so a chunk may be computed again as it
fills up, one token at a time, with the same bits. Inside a half of 8 rows exp(G_r - G_j) is factored around what came
before the half: the decay bound of -5 per token keeps both factors of what is used within e^40, and what is not used
within float32's range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.ops.kda.reference import first_state, in_sequence_order
from openk3.ops.packed import ChunkPlan, PackedSequences
from openk3.ops.precision import wide_dtype

CHUNK_SIZE = 16
_HALF = CHUNK_SIZE // 2


def kda_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    packed: PackedSequences,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule chunk by chunk; arguments and results as `kda_recurrent`, ``log_decay`` >= -5."""
    plan = packed.chunks(CHUNK_SIZE)
    dtype = wide_dtype(q.dtype)
    state = first_state(state, plan, q.shape[1], (k.shape[-1], v.shape[-1]), v.to(dtype))
    q, k, v, log_decay, beta = (plan.split(x.to(dtype)) for x in (q, k, v, log_decay, beta))
    output, new_state = run_chunks(q, k, v, log_decay, beta, state, plan)
    return plan.join(output), new_state


def run_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    plan: ChunkPlan,
    whole: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run chunks [chunks, 16, H, ...] from ``state`` [B, H, K, V], longest sequence first.

    Rows without a token are zero. ``whole`` [chunks] bool: chunks that are complete; the others leave the state as it
    is (None: every chunk moves it). Returns the read-out [chunks, 16, H, V] and the states in sequence order.
    """
    q, k, v, log_decay = (x.transpose(1, 2) for x in (q, k, v, log_decay))  # [chunks, H, C, K]
    beta = beta.transpose(1, 2)[..., None]  # [chunks, H, C, 1]
    q = q * q.shape[-1] ** -0.5
    G = log_decay.cumsum(-2)
    decayed = G.exp()
    reads, writes = _pair_products(q, k, G)
    # [W | U]: what the chunk's writes take from the incoming state, and what they are without it
    targets = beta * torch.cat([k * decayed, v], dim=-1)
    W, U = _solve_unit_lower(beta * writes, targets).split([k.shape[-1], v.shape[-1]], dim=-1)
    probes = torch.cat([W, q * decayed], dim=-2)
    moves = whole is None or bool(whole.any())
    if moves:
        to_end = (k * _sum_of_later(log_decay).exp()).transpose(-1, -2)
        end_decay = decayed[..., -1:, :].transpose(-1, -2)

    values, carried, finished, at = [], [], [], 0
    for running in plan.running:
        finished.append(state[running:])
        rows = slice(at, at + running)
        at += running
        state = state[:running]
        from_state, read = (probes[rows] @ state).split(CHUNK_SIZE, dim=-2)
        values.append(U[rows] - from_state)
        carried.append(read)
        if moves:
            moved = end_decay[rows] * state + to_end[rows] @ values[-1]
            state = moved if whole is None else torch.where(whole[rows, None, None, None], moved, state)
    output = torch.cat(carried) + reads @ torch.cat(values)
    return output.transpose(1, 2), in_sequence_order([*finished, state], plan.order)


def _pair_products(q: Tensor, k: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Return q_r·k_j·exp(G_r - G_j) for j <= r, and k_r·k_j·exp(G_r - G_j) for j < r; zero elsewhere."""
    before_half = torch.stack([torch.zeros_like(G[..., 0, :]), G[..., _HALF - 1, :]], dim=-2)[..., None, :]
    rise = (G.unflatten(-2, (2, _HALF)) - before_half).exp()  # [chunks, H, 2, 8, K]
    fall = (before_half - G[..., None, :, :]).exp()  # [chunks, H, 2, 16, K]
    probes = torch.cat([q.unflatten(-2, (2, _HALF)) * rise, k.unflatten(-2, (2, _HALF)) * rise], dim=-2)
    products = probes @ (k[..., None, :, :] * fall).transpose(-1, -2)  # [chunks, H, 2, 16, 16]
    reads, writes = (half.flatten(-3, -2).tril(-1) for half in products.split(_HALF, dim=-2))
    # the diagonal has no decay: leaving it in the product would give the decay's gradient two large terms that cancel
    return reads + torch.diag_embed((q * k).sum(-1)), writes


def _sum_of_later(log_decay: Tensor) -> Tensor:
    """Return for each row the sum of the rows after it; as a difference of prefix sums its gradient would cancel."""
    later = log_decay[..., 1:, :].flip(-2).cumsum(-2).flip(-2)
    return torch.nn.functional.pad(later, (0, 0, 0, 1))


def _solve_unit_lower(strictly_lower: Tensor, right: Tensor) -> Tensor:
    """Solve ``(I + L) x = right`` by forward substitution; products of powers of L would cancel catastrophically."""
    return torch.linalg.solve_triangular(strictly_lower, right, upper=False, unitriangular=True)
