"""Quantile balancing: the router's selection bias is solved for, once per step, and used from the next step on.

Unusual: exact quantiles of the step's tokens instead of the histogram that many ranks would have to share; no learning
rate, no auxiliary loss (Kimi K3 report, section 2.3.3).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from openk3.model.model import K3ForCausalLM

_SCORES = re.compile(r"layer(\d+)\.router_(scores|experts)")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What the routing of a step came to: the worst overload of any layer, and the share of experts without a token."""

    max_over_mean: float
    unused: float


class Balancer:
    """Collects router scores while the model runs, then moves each layer's bias."""

    def __init__(self, model: K3ForCausalLM) -> None:
        self._top_k = model.config.moe.num_experts_per_token
        moe_layers = [i for i in range(model.config.num_hidden_layers) if model.config.is_moe(i)]
        name = "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias"
        self._biases: dict[int, Tensor] = {i: model.get_buffer(name.format(i)) for i in moe_layers}
        self._scores: dict[int, list[Tensor]] = {layer: [] for layer in self._biases}
        self._loads: dict[int, Tensor] = {}

    def observe(self, name: str, value: Tensor) -> None:
        """Take what the forward pass shows; only router scores and choices are kept."""
        match = _SCORES.fullmatch(name)
        if match is None or not torch.is_grad_enabled():
            return
        layer = int(match[1])
        if match[2] == "scores":
            self._scores[layer].append(value.detach())
        else:
            chosen = torch.bincount(value.flatten(), minlength=len(self._biases[layer]))
            self._loads[layer] = self._loads[layer] + chosen if layer in self._loads else chosen

    @torch.no_grad()
    def step(self) -> Load:
        """Set every bias from the scores collected since the last call, and return the load that the old ones gave."""
        for layer, bias in self._biases.items():
            if self._scores[layer]:
                bias.copy_(balanced_bias(torch.cat(self._scores[layer]), bias, self._top_k))
                self._scores[layer].clear()
        loads = list(self._loads.values())
        self._loads = {}
        overload = max((float(load.max() / load.float().mean()) for load in loads), default=1.0)
        unused = sum(int((load == 0).sum()) for load in loads) / max(1, sum(len(load) for load in loads))
        return Load(max_over_mean=overload, unused=unused)


def balanced_bias(scores: Tensor, bias: Tensor, top_k: int) -> Tensor:
    """Return the bias [E] giving each expert its share of ``scores`` [N, E], if the cutoffs stay as ``bias`` has
    them.
    """
    num_tokens, num_experts = scores.shape
    if top_k == num_experts:
        return torch.zeros_like(bias)
    cutoff = (scores + bias).topk(top_k + 1, dim=-1).values[:, -1:]
    required = cutoff - scores  # the bias at which the expert would just be chosen
    quota = max(1, math.ceil(num_tokens * top_k / num_experts))
    solved = required.kthvalue(quota, dim=0).values
    return solved - solved.mean()
