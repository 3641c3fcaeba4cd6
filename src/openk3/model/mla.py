"""Gated multi-head latent attention without positions.

Unusual: the "rope" part of query and key is never rotated, its key is shared by all heads, the output is gated by the
layer's input before `o_proj`, and the two low-rank norms have their own, smaller epsilon. Legend: N tokens, H heads,
n/p/v head dimensions (nope, shared, value), R latent rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openk3.model.batch import ForwardBatch
from openk3.model.config import K3Config
from openk3.model.options import ModelOptions
from openk3.model.parts import Linear, PartialSum, RMSNorm
from openk3.ops.mla.reference import mla_absorbed, mla_expanded


class GatedMLA(nn.Module):
    """One full-attention layer (Kimi K3 report, section 2.1.2)."""

    def __init__(self, config: K3Config, layer: int, dtype: torch.dtype, options: ModelOptions) -> None:
        super().__init__()
        mla, d, eps = config.mla, config.hidden_size, config.mla.low_rank_norm_eps
        self.layer, self.form = layer, options.mla
        self.num_heads, self.nope, self.rank = mla.num_heads, mla.qk_nope_head_dim, mla.kv_lora_rank
        self.q_a_proj = Linear(d, mla.q_lora_rank, dtype)
        self.q_a_layernorm = RMSNorm(mla.q_lora_rank, eps, dtype)
        self.q_b_proj = Linear(mla.q_lora_rank, mla.num_heads * mla.qk_head_dim, dtype)
        self.kv_a_proj_with_mqa = Linear(d, mla.cache_width, dtype)
        self.kv_a_layernorm = RMSNorm(mla.kv_lora_rank, eps, dtype)
        self.kv_b_proj = Linear(mla.kv_lora_rank, mla.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim), dtype)
        self.g_proj = Linear(d, mla.num_heads * mla.v_head_dim, dtype)
        self.o_proj = Linear(mla.num_heads * mla.v_head_dim, d, dtype)
        self.partial_sum = PartialSum()

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map the normed layer input [N, d] to [N, d], extending this layer's latent cache."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (self.num_heads, -1))  # [N, H, n + p]
        latent, shared_key = self.kv_a_proj_with_mqa(x).tensor_split([self.rank], dim=-1)
        entries = torch.cat([self.kv_a_layernorm(latent), shared_key], dim=-1)  # [N, R + p]
        caches = batch.state.extend_latents(self.layer, entries, batch.packed)
        batch.observe_layer(self.layer, mla_cache=entries)
        o = torch.cat([self._attend(*pair) for pair in zip(q.split(batch.packed.lengths), caches, strict=True)])
        gated = o.flatten(-2) * torch.sigmoid(self.g_proj(x))  # [N, H * v]
        return self.partial_sum(self.o_proj(gated))

    def _attend(self, q: Tensor, cache: Tensor) -> Tensor:
        """Attend with one sequence's new queries [T, H, n + p] over its cache [S, R + p], giving [T, H, v]."""
        kv_b = self.kv_b_proj.weight.unflatten(0, (self.num_heads, -1))  # [H, n + v, R]
        # one token over a cache: expanding every cached key would cost S times as much as absorbing
        absorb = self.form == "absorbed" or (self.form == "auto" and q.shape[0] == 1)
        attend = mla_absorbed if absorb else mla_expanded
        return attend(q, cache, kv_b, self.nope)
