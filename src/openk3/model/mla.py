"""Gated multi-head latent attention without positions.

Unusual: the "rope" part of query and key is never rotated, its key is shared by all heads, the output is gated by the
layer's input before `o_proj`, and the two low-rank norms have their own, smaller epsilon. Legend: N tokens, H heads,
n/p/v head dimensions (nope, shared, value), R latent rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from openk3.model.batch import ForwardBatch
from openk3.model.config import K3Config
from openk3.model.options import ModelOptions
from openk3.model.parts import Linear, PartialSum, RMSNorm
from openk3.model.state import Stateless
from openk3.ops.mla.blocks import attend, attention_groups
from openk3.ops.mla.reference import mla_absorbed, mla_expanded
from openk3.ops.precision import widen
from openk3.ops.row_independent import batched_rows, elementwise


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
        past = batch.state.num_cached(self.layer)
        batch.state.extend_latents(self.layer, entries, batch.packed)
        batch.observe_layer(self.layer, mla_cache=entries)
        o = self._attend(q, past, batch)  # [N, H, v]
        gated = o.flatten(-2) * elementwise(torch.sigmoid, self.g_proj(x))  # [N, H * v]
        return self.partial_sum(self.o_proj(gated))

    def _attend(self, q: Tensor, past: Sequence[int], batch: ForwardBatch) -> Tensor:
        kv_b = self.kv_b_proj.weight.unflatten(0, (self.num_heads, -1))  # [H, n + v, R]
        if self.form == "blocks" or (self.form == "auto" and not isinstance(batch.state, Stateless)):
            return self._attend_blocks(q, kv_b, past, batch)
        attend = mla_absorbed if self.form == "absorbed" else mla_expanded
        outputs = []
        for i, (rows, cached) in enumerate(zip(q.split(batch.packed.lengths), past, strict=True)):
            cache = batch.state.latents(self.layer, [i], cached + rows.shape[0])[0]
            outputs.append(attend(rows, cache, kv_b, self.nope))
        return torch.cat(outputs)

    def _attend_blocks(self, q: Tensor, kv_b: Tensor, past: Sequence[int], batch: ForwardBatch) -> Tensor:
        """Attend in the latent space, [N, H, n + p] to [N, H, v]: ``kv_b`` is applied to queries and results."""
        key_part, value_part = widen(kv_b[:, : self.nope]), widen(kv_b[:, self.nope :])
        q_latent = batched_rows(widen(q[..., : self.nope]).transpose(0, 1), key_part).transpose(0, 1)  # [N, H, R]
        query = torch.cat([q_latent, widen(q[..., self.nope :])], dim=-1)
        mixed = torch.empty_like(q_latent)
        for group in attention_groups(batch.packed, past):
            rows = query.index_select(0, group.tokens).unflatten(0, (-1, group.num_new))
            cache = batch.state.latents(self.layer, group.sequences, group.num_rows)
            part = attend(rows, cache, self.rank, group.past, q.shape[-1] ** -0.5)
            mixed = mixed.index_copy(0, group.tokens, part.flatten(0, 1))
        o = batched_rows(mixed.transpose(0, 1), value_part.transpose(1, 2))
        return o.transpose(0, 1).to(q.dtype)
