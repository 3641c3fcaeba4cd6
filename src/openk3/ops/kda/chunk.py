"""Kimi Delta Attention in chunks of 16 tokens: matrix products inside a chunk, one state step between chunks.

Unusual: within a chunk, exp(G_r - G_j) is factored around the middle row; the decay bound of -5 per token keeps both
factors within e^40, so float32 can neither overflow nor lose the product. Larger chunks would need tiles for that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.ops.kda.reference import first_state, in_sequence_order
from openk3.ops.packed import PackedSequences
from openk3.ops.precision import wide_dtype

CHUNK_SIZE = 16


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
    q, k, v, log_decay = (plan.split(x.to(dtype)).transpose(1, 2) for x in (q, k, v, log_decay))  # [chunks, H, C, K]
    beta = plan.split(beta.to(dtype)).transpose(1, 2)[..., None]  # [chunks, H, C, 1]
    q = q * q.shape[-1] ** -0.5
    G = log_decay.cumsum(-2)
    reads, writes = _pair_products(q, k, G)
    # [W | U]: what the chunk's writes take from the incoming state, and what they are without it
    targets = beta * torch.cat([k * G.exp(), v], dim=-1)
    W, U = _solve_unit_lower(beta * writes, targets).split([k.shape[-1], v.shape[-1]], dim=-1)
    probes = torch.cat([W, q * G.exp()], dim=-2)
    to_end = (k * _sum_of_later(log_decay).exp()).transpose(-1, -2)
    end_decay = G[..., -1:, :].exp().transpose(-1, -2)

    state = first_state(state, plan, q.shape[1], (k.shape[-1], v.shape[-1]), v)
    values, carried, finished, at = [], [], [], 0
    for running in plan.running:
        finished.append(state[running:])
        rows = slice(at, at + running)
        at += running
        state = state[:running]
        from_state, read = (probes[rows] @ state).split(CHUNK_SIZE, dim=-2)
        values.append(U[rows] - from_state)
        carried.append(read)
        state = end_decay[rows] * state + to_end[rows] @ values[-1]
    output = torch.cat(carried) + reads @ torch.cat(values)
    return plan.join(output.transpose(1, 2)), in_sequence_order([*finished, state], plan.order)


def _pair_products(q: Tensor, k: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """Return q_r·k_j·exp(G_r - G_j) for j <= r, and k_r·k_j·exp(G_r - G_j) for j < r; zero elsewhere."""
    middle = G[..., CHUNK_SIZE // 2 - 1 : CHUNK_SIZE // 2, :]
    rise, fall = (G - middle).exp(), (middle - G).exp()
    products = (torch.cat([q * rise, k * rise], dim=-2) @ (k * fall).transpose(-1, -2)).unflatten(-2, (2, -1)).tril(-1)
    reads, writes = products.unbind(-3)
    # the diagonal has no decay: leaving it in the product would give the decay's gradient two large terms that cancel
    return reads + torch.diag_embed((q * k).sum(-1)), writes


def _sum_of_later(log_decay: Tensor) -> Tensor:
    """Return for each row the sum of the rows after it; as a difference of prefix sums its gradient would cancel."""
    later = log_decay[..., 1:, :].flip(-2).cumsum(-2).flip(-2)
    return torch.nn.functional.pad(later, (0, 0, 0, 1))


def _solve_unit_lower(strictly_lower: Tensor, right: Tensor) -> Tensor:
    """Solve ``(I + L) x = right`` by forward substitution; products of powers of L would cancel catastrophically."""
    return torch.linalg.solve_triangular(strictly_lower, right, upper=False, unitriangular=True)
