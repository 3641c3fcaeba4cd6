"""Latent attention without positions, of one sequence, expanded (keys and values rebuilt) and absorbed (they are not).

Legend: T new tokens, S cached tokens including the new ones, H heads, R latent rank, n/p/v head dimensions of the
nope part, the shared unrotated part and the value. Unusual: both forms scale by (n + p)^-1/2, whatever the width they
multiply.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from openk3.ops.precision import widen

QUERY_BLOCK = 512  # bounds the score matrix to H x 512 x S; rows do not interact, so results do not depend on it


def mla_expanded(q: Tensor, entries: Tensor, kv_b: Tensor, nope: int) -> Tensor:
    """Attend with keys and values expanded from the latents.

    ``q`` [T, H, n + p]; ``entries`` [S, R + p], normalised latent then shared key, the last T rows being the new
    tokens; ``kv_b`` [H, n + v, R]. Returns [T, H, v] in q's dtype: float32 inside, rounded once.
    """
    rank = kv_b.shape[-1]
    latent, shared_key = entries[:, :rank], entries[:, rank:]
    kv = F.linear(latent, kv_b.flatten(0, 1)).unflatten(-1, kv_b.shape[:2]).transpose(0, 1)  # [H, S, n + v]
    k = torch.cat([kv[..., :nope], shared_key.expand(kv.shape[0], -1, -1)], dim=-1)
    return _causal_attention(q, widen(k), widen(kv[..., nope:]), q.shape[-1] ** -0.5)


def mla_absorbed(q: Tensor, entries: Tensor, kv_b: Tensor, nope: int) -> Tensor:
    """Attend in latent space, with ``kv_b`` applied to the query and to the result; arguments as `mla_expanded`."""
    rank = kv_b.shape[-1]
    key_part, value_part = widen(kv_b[:, :nope]), widen(kv_b[:, nope:])
    q_latent = torch.einsum("thn,hnr->thr", widen(q[..., :nope]), key_part)
    query = torch.cat([q_latent, widen(q[..., nope:])], dim=-1)
    keys = widen(entries)[None]
    mixed = _causal_attention(query, keys, keys[..., :rank], q.shape[-1] ** -0.5)
    return torch.einsum("thr,hvr->thv", mixed, value_part).to(q.dtype)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Softmax attention in float32: q [T, H, d], k [H or 1, S, d], v [H or 1, S, v]; q's row t sees S - T + t + 1
    keys.
    """
    num_new, num_all = q.shape[0], k.shape[-2]
    past = num_all - num_new
    blocks = []
    for first in range(0, num_new, QUERY_BLOCK):
        rows = widen(q[first : first + QUERY_BLOCK]).transpose(0, 1)
        seen = past + first + rows.shape[1]
        scores = rows @ k[:, :seen].transpose(-1, -2) * scale
        hidden = torch.ones(rows.shape[1], seen, dtype=torch.bool, device=q.device).triu(past + first + 1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        blocks.append((weights @ v[:, :seen]).transpose(0, 1).to(q.dtype))
    return torch.cat(blocks)
