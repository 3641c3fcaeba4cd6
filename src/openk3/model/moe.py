"""Feed-forward parts: the dense SiTU MLP, the router, and the latent mixture of experts.

Unusual: routed experts work in a narrower latent, normalised once, after the weighted sum and before the projection
back; the router reads the full-width input. The sum over ranks must come before that norm, which is not linear.
Legend: N tokens, d hidden, L latent, F expert width, E experts, k chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openk3.model.batch import ForwardBatch
from openk3.model.config import K3Config
from openk3.model.options import ModelOptions
from openk3.model.parts import KeepsFloat32, Linear, PartialSum, RMSNorm
from openk3.ops.experts.reference import routed_sum
from openk3.ops.mxfp8.reference import fake_quantize
from openk3.ops.router.reference import Routing, route
from openk3.ops.row_independent import linear
from openk3.ops.situ.recompute import situ_glu
from openk3.ops.straight_through import straight_through
from openk3.quant.experts import ExpertFormat, ExpertMatrices, make_experts


class SituMLP(nn.Module):
    """``down(SiTU(gate(x), up(x)))``: layer 0's dense MLP, and the shared experts as one MLP."""

    def __init__(self, config: K3Config, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        d = config.hidden_size
        self.betas = (config.situ_beta, config.situ_linear_beta)
        self.gate_proj = Linear(d, width, dtype)
        self.up_proj = Linear(d, width, dtype)
        self.down_proj = Linear(width, d, dtype)
        self.partial_sum = PartialSum()

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, d] to [N, d]."""
        return self.partial_sum(self.down_proj(situ_glu(self.gate_proj(x), self.up_proj(x), *self.betas)))


class Router(KeepsFloat32):
    """Scores all experts; the correction bias is a buffer, moved by balancing and never by an optimiser."""

    float32_names = ("e_score_correction_bias",)
    e_score_correction_bias: Tensor

    def __init__(self, config: K3Config, dtype: torch.dtype) -> None:
        super().__init__()
        self.moe = config.moe
        self.weight = nn.Parameter(torch.empty(config.moe.num_experts, config.hidden_size, dtype=dtype))
        self.register_buffer("e_score_correction_bias", torch.empty(config.moe.num_experts, dtype=torch.float32))

    def forward(self, x: Tensor, imposed: Tensor | None = None) -> Routing:
        """Choose experts for x [N, d]."""
        return route(
            x,
            self.weight,
            self.e_score_correction_bias,
            self.moe.num_experts_per_token,
            renormalize=self.moe.renormalize,
            scaling_factor=self.moe.routed_scaling_factor,
            imposed=imposed,
        )


class LatentMoE(nn.Module):
    """Routed experts in the latent, plus shared experts at full width (Kimi K3 report, section 2.3)."""

    def __init__(
        self, config: K3Config, layer: int, dtype: torch.dtype, options: ModelOptions, experts: ExpertFormat
    ) -> None:
        super().__init__()
        moe, d = config.moe, config.hidden_size
        self.layer, self.activations = layer, options.expert_activations
        self.betas = (config.situ_beta, config.situ_linear_beta)
        self.held_experts = range(moe.num_experts)
        self.gate = Router(config, dtype)
        self.routed_expert_down_proj = Linear(d, moe.latent_size, dtype)
        self.experts = make_experts(experts, moe.num_experts, moe.latent_size, moe.intermediate_size, dtype)
        self.partial_sum = PartialSum()
        self.routed_expert_norm = RMSNorm(moe.latent_size, config.rms_norm_eps, dtype)
        self.routed_expert_up_proj = Linear(moe.latent_size, d, dtype)
        self.shared_experts = SituMLP(config, moe.shared_intermediate_size, dtype) if moe.num_shared_experts else None

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map the normed layer input [N, d] to [N, d]."""
        routing = self.gate(x, batch.imposed_experts.get(self.layer))
        latent = self.routed_expert_down_proj(x)  # [N, L]
        total = self.partial_sum(self._routed_sum(latent, routing)).to(x.dtype)
        routed = self.routed_expert_up_proj(self.routed_expert_norm(total))
        shared = torch.zeros_like(routed) if self.shared_experts is None else self.shared_experts(x)
        batch.observe_layer(self.layer, **{f"router_{name}": value for name, value in routing._asdict().items()})
        batch.observe_layer(self.layer, moe_latent_in=latent, moe_latent_sum=total, moe_shared_out=shared)
        return routed + shared

    def _routed_sum(self, latent: Tensor, routing: Routing) -> Tensor:
        """Return the weighted sum of the held experts' outputs, [N, L] float32."""
        matrices_of = self.experts.opened(latent.dtype)

        def run(expert: int, rows: Tensor) -> Tensor:
            return self._run_expert(matrices_of(expert), rows)

        return routed_sum(self._rounded(latent), routing.experts, routing.weights, run, self.held_experts)

    def _run_expert(self, weights: ExpertMatrices, rows: Tensor) -> Tensor:
        """Run one expert on its rows [n, L]."""
        hidden = situ_glu(linear(rows, weights.w1), linear(rows, weights.w3), *self.betas)
        return linear(self._rounded(hidden), weights.w2)

    def _rounded(self, x: Tensor) -> Tensor:
        """Round what enters an expert matrix as the options say."""
        if self.activations == "native":
            return x
        return straight_through(x, fake_quantize(x, "ceil" if self.activations == "mxfp8-ceil" else "floor"))
