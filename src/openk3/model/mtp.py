"""Multi-token prediction: one ordinary layer that reads the backbone's output and the next token's embedding.

Unusual: its residuals are plain (no attention residuals), its attention is always MLA, and it shares embedding and
head with the backbone. The published K3 checkpoint has none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openk3.model.batch import ForwardBatch
from openk3.model.config import K3Config
from openk3.model.layer import Sublayers
from openk3.model.options import ModelOptions
from openk3.model.parts import Linear, RMSNorm
from openk3.quant.experts import ExpertFormat


class SharedHead(nn.Module):
    """The norm before the shared `lm_head`, under the checkpoint's name."""

    def __init__(self, config: K3Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)


class MTPLayer(Sublayers):
    """One draft layer."""

    def __init__(
        self, config: K3Config, layer: int, dtype: torch.dtype, options: ModelOptions, experts: ExpertFormat
    ) -> None:
        super().__init__(config, layer, dtype, options, experts)
        d, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = RMSNorm(d, eps, dtype)
        self.hnorm = RMSNorm(d, eps, dtype)
        self.eh_proj = Linear(2 * d, d, dtype)
        self.shared_head = SharedHead(config, dtype)

    def forward(self, hidden: Tensor, embedding: Tensor, batch: ForwardBatch) -> Tensor:
        """Map token t's hidden state and token t + 1's embedding to the state that predicts t + 2, all [N, d].

        Both states are taken before their norm, so that drafts can be chained.
        """
        z = self.eh_proj(torch.cat([self.enorm(self._without_first(embedding, batch)), self.hnorm(hidden)], dim=-1))
        z = z + self.attend(z, batch)
        return z + self.feed_forward(z, batch)

    def _without_first(self, embedding: Tensor, batch: ForwardBatch) -> Tensor:
        """Zero the embedding where the position is 0, as public engines do."""
        cached = batch.state.num_cached(self.layer)
        firsts = [start for start, past in zip(batch.packed.starts, cached, strict=True) if past == 0]
        return embedding.index_fill(0, torch.tensor(firsts, dtype=torch.int64, device=embedding.device), 0.0)
