"""One decoder layer: two sublayers, each reading a mix of the residual stream and adding to its running sum.

Unusual: a block closes between a layer's first read and its first write, and the feed-forward part has one of two
names in the checkpoint (`mlp`, `block_sparse_moe`), which tell its kind.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openk3.model.attn_res import ResidualStream
from openk3.model.batch import ForwardBatch
from openk3.model.config import K3Config
from openk3.model.kda import KimiDeltaAttention
from openk3.model.mla import GatedMLA
from openk3.model.moe import LatentMoE, SituMLP
from openk3.model.options import ModelOptions
from openk3.model.parts import RMSNorm, Weight
from openk3.ops.attn_res.reference import pseudo_query
from openk3.quant.experts import ExpertFormat


class Sublayers(nn.Module):
    """A layer's attention and feed-forward parts with their input norms, as backbone and MTP layers share them."""

    def __init__(
        self, config: K3Config, layer: int, dtype: torch.dtype, options: ModelOptions, experts: ExpertFormat
    ) -> None:
        super().__init__()
        self.layer = layer
        d, eps = config.hidden_size, config.rms_norm_eps
        is_kda = layer < config.num_hidden_layers and config.layer_kinds[layer] == "kda"
        attention = KimiDeltaAttention if is_kda else GatedMLA
        self.input_layernorm = RMSNorm(d, eps, dtype)
        self.self_attn = attention(config, layer, dtype, options)
        self.post_attention_layernorm = RMSNorm(d, eps, dtype)
        if config.is_moe(layer):
            self.block_sparse_moe = LatentMoE(config, layer, dtype, options, experts)
        else:
            self.mlp = SituMLP(config, config.intermediate_size, dtype)

    def attend(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Normalise [N, d] and run the attention sublayer."""
        normed = self.input_layernorm(x)
        y: Tensor = self.self_attn(normed, batch)
        batch.observe_layer(self.layer, attn_mix=x, attn_in=normed, attn_out=y)
        return y

    def feed_forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Normalise [N, d] and run the feed-forward sublayer."""
        normed = self.post_attention_layernorm(x)
        y: Tensor = self.block_sparse_moe(normed, batch) if hasattr(self, "block_sparse_moe") else self.mlp(normed)
        batch.observe_layer(self.layer, mlp_mix=x, mlp_in=normed, ffn_out=y)
        return y


class DecoderLayer(Sublayers):
    """A backbone layer (Kimi K3 report, section 2.2)."""

    def __init__(
        self, config: K3Config, layer: int, dtype: torch.dtype, options: ModelOptions, experts: ExpertFormat
    ) -> None:
        super().__init__(config, layer, dtype, options, experts)
        d = config.hidden_size
        self.starts_block = config.starts_block(layer)
        self.self_attention_res_proj = Weight(1, d, dtype=dtype)
        self.self_attention_res_norm = Weight(d, dtype=dtype)
        self.mlp_res_proj = Weight(1, d, dtype=dtype)
        self.mlp_res_norm = Weight(d, dtype=dtype)

    def pseudo_queries(self) -> tuple[Tensor, Tensor]:
        """Return the static queries [d] float32 of the attention and the feed-forward sublayer."""
        attention = pseudo_query(self.self_attention_res_proj.weight, self.self_attention_res_norm.weight)
        return attention, pseudo_query(self.mlp_res_proj.weight, self.mlp_res_norm.weight)

    def forward(self, stream: ResidualStream, queries: tuple[Tensor, Tensor], batch: ForwardBatch) -> None:
        """Advance the stream by this layer."""
        attention_query, mlp_query = queries
        a = stream.mix(attention_query)
        if self.starts_block:
            stream.close_block()
        stream.add(self.attend(a, batch))
        stream.add(self.feed_forward(stream.mix(mlp_query), batch))
        assert stream.partial is not None
        batch.observe_layer(self.layer, prefix_sum=stream.partial)
