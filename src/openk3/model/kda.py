"""Kimi Delta Attention: linear attention with a fixed state per head, a decay per channel and a full-rank output gate.

Unusual: the decay is bounded below and its logits come through a low-rank pair, while the output gate is one full
matrix of the same name (`g_proj`) that the MLA layers use for theirs. Legend: N tokens, P = H * K channels, H heads,
K key = value dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openk3.model.batch import ForwardBatch
from openk3.model.config import K3Config
from openk3.model.options import ModelOptions
from openk3.model.parts import Float32Weight, KeepsFloat32, Linear, PartialSum
from openk3.model.state import KDAState
from openk3.ops.kda.dispatch import kda, kda_continue
from openk3.ops.kda.gate import bounded_log_decay
from openk3.ops.norm.reference import gated_rms_norm, l2_normalize
from openk3.ops.precision import widen
from openk3.ops.row_independent import elementwise
from openk3.ops.short_conv.recompute import taps_and_silu
from openk3.ops.short_conv.reference import short_conv


class KimiDeltaAttention(KeepsFloat32):
    """One KDA layer (Kimi K3 report, section 2.1.1)."""

    float32_names = ("A_log", "dt_bias")

    def __init__(self, config: K3Config, layer: int, dtype: torch.dtype, options: ModelOptions) -> None:
        super().__init__()
        kda_config, d = config.kda, config.hidden_size
        heads, width, taps = kda_config.num_heads, kda_config.width, kda_config.short_conv_kernel_size
        self.layer, self.form, self.eps = layer, options.kda, config.rms_norm_eps
        self.num_heads, self.lower_bound = heads, kda_config.gate_lower_bound
        self.q_proj = Linear(d, width, dtype)
        self.k_proj = Linear(d, width, dtype)
        self.v_proj = Linear(d, width, dtype)
        self.q_conv1d = Float32Weight(width, 1, taps)
        self.k_conv1d = Float32Weight(width, 1, taps)
        self.v_conv1d = Float32Weight(width, 1, taps)
        self.b_proj = Linear(d, heads, dtype)
        self.f_a_proj = Linear(d, kda_config.head_dim, dtype)
        self.f_b_proj = Linear(kda_config.head_dim, width, dtype)
        self.A_log = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.dt_bias = nn.Parameter(torch.empty(width, dtype=torch.float32))
        self.g_proj = Linear(d, width, dtype)
        self.o_norm = Float32Weight(kda_config.head_dim)
        self.o_proj = Linear(width, d, dtype)
        self.partial_sum = PartialSum()

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Map the normed layer input [N, d] to [N, d], reading and writing this layer's state."""
        memory = batch.state.read_kda(self.layer)
        u = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)  # [N, 3P]
        mixed, _ = short_conv(u, self._taps(), batch.packed, memory and memory.conv, taps_and_silu)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in mixed.chunk(3, dim=-1))  # [N, H, K]
        beta = elementwise(torch.sigmoid, widen(self.b_proj(x)))  # [N, H]
        z = self.f_b_proj(self.f_a_proj(x)).unflatten(-1, (self.num_heads, -1))
        log_decay = bounded_log_decay(z, self.A_log, self.dt_bias, self.lower_bound)  # [N, H, K]
        o = self._attend(l2_normalize(q), l2_normalize(k), v, log_decay, beta, u, memory, batch)  # [N, H, V]
        gate = self.g_proj(x).unflatten(-1, (self.num_heads, -1))
        y = gated_rms_norm(o.to(x.dtype), gate, self.o_norm.weight, self.eps)  # [N, H, K]
        batch.observe_layer(self.layer, kda_q=q, kda_k=k, kda_v=v, kda_logdec=log_decay, kda_beta=beta, kda_o=o)
        return self.partial_sum(self.o_proj(y.flatten(-2)))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        beta: Tensor,
        conv_inputs: Tensor,
        memory: KDAState | None,
        batch: ForwardBatch,
    ) -> Tensor:
        """Run the delta rule, from ``memory`` if there is one, which is then advanced."""
        rows = (q, k, v, log_decay, beta, batch.packed)
        if memory is None:
            return kda(*rows, self.form)
        step = kda_continue(*rows, memory.recurrent, memory.opened, batch.state.num_open, self.form)
        batch.state.write_kda(self.layer, step.state, step.rows, conv_inputs, batch.packed)
        return step.output

    def _taps(self) -> Tensor:
        """Return the three convolutions' taps as one [3P, taps] float32 matrix."""
        return torch.cat([conv.weight for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]).squeeze(1)
