"""The router: sigmoid scores, a bias that only selects, weights from the unbiased scores.

Unusual: ties go to the lower expert number, and the product is in float32 whatever the model's dtype, because
rounding it to bfloat16 sends one token in twenty to other experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from openk3.ops.precision import widen
from openk3.ops.row_independent import elementwise, linear


class Routing(NamedTuple):
    """Chosen experts of N tokens."""

    experts: Tensor  # [N, k] int64, ascending
    weights: Tensor  # [N, k] float32, in the same order
    scores: Tensor  # [N, E] float32 in (0, 1), before the bias
    margin: Tensor  # [N] float32: biased score of the last chosen minus that of the first rejected


def route(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    top_k: int,
    *,
    renormalize: bool = True,
    scaling_factor: float = 1.0,
    imposed: Tensor | None = None,
) -> Routing:
    """Choose ``top_k`` experts per token of ``x`` [N, d] (Kimi K3 report, section 2.3).

    ``weight`` [E, d]; ``bias`` [E] float32; ``imposed`` [N, k] replaces the choice, for comparing implementations.
    """
    scores = elementwise(torch.sigmoid, linear(widen(x), widen(weight)))
    biased = scores.detach() + bias
    ranked, order = biased.sort(dim=-1, descending=True, stable=True)
    experts = (order[:, :top_k] if imposed is None else imposed.to(order.dtype)).sort(-1).values
    weights = scores.gather(-1, experts)
    if renormalize and top_k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    none_rejected = top_k == scores.shape[-1]
    margin = torch.full_like(ranked[:, 0], torch.inf) if none_rejected else ranked[:, top_k - 1] - ranked[:, top_k]
    return Routing(experts, weights * scaling_factor, scores, margin)
