"""The weighted sum over each token's experts: tokens are grouped by expert, each expert runs once.

Unusual: the sum is float32 over ascending expert numbers and stays float32, so that ranks holding different experts
can add their parts before the one rounding; a token's result does not depend on which other tokens chose the same
expert.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import torch
from torch import Tensor

from openk3.ops.precision import widen

ExpertFunction = Callable[[int, Tensor], Tensor]


def routed_sum(
    latent: Tensor, experts: Tensor, weights: Tensor, run_expert: ExpertFunction, held: Container[int] | None = None
) -> Tensor:
    """Return ``sum_e weights_e * E_e(latent)`` [N, L] in float32.

    ``latent`` [N, L]; ``experts`` [N, k] int64; ``weights`` [N, k] float32; ``run_expert(e, rows [n, L]) -> [n, L]``;
    experts outside ``held`` (None: all are held) contribute nothing.
    """
    top_k = experts.shape[1]
    by_expert = experts.flatten().argsort(stable=True)
    rows = latent.index_select(0, by_expert // top_k)
    numbers, counts = experts.flatten().unique(return_counts=True)
    outputs = []
    for expert, group in zip(numbers.tolist(), rows.split(counts.tolist()), strict=True):
        outputs.append(run_expert(expert, group) if held is None or expert in held else torch.zeros_like(group))
    places = torch.empty_like(by_expert)
    places[by_expert] = torch.arange(by_expert.numel(), device=places.device)
    per_choice = torch.cat(outputs).index_select(0, places).unflatten(0, experts.shape)
    return (widen(per_choice) * weights[..., None]).sum(1)
