"""The tolerance table: how far a faster or differently ordered path may be from its reference, per operation and dtype.

Each number stands beside its reason. A test that needs another number changes it here, with a reason.
"""

from __future__ import annotations

import torch

FLOAT32 = {
    # 16-token chunks re-associate sums of up to 300 terms whose factors differ by up to e^40; outputs are of order 1
    "kda": 1e-5,
    # gradients add the same sums once more over all later tokens; relative to the largest gradient of the tensor
    "kda_gradient": 1e-5,
    # two products in another order over at most 576 terms of order 1
    "mla": 1e-5,
    # a softmax merged by log-sum-exp instead of at once
    "attn_res": 2e-6,
    # one packed batch against its sequences alone: matrix products may tile differently by the number of rows
    "packed": 5e-6,
    # logits of tiny random models after several layers, where a norm can amplify a small read-out's rounding
    "model": 1e-3,
    "model_median": 3e-5,
}
BFLOAT16 = {
    # one rounding of the output: half a unit in the last place of 8 bits, relative
    "rounding": 2**-8,
    # forced-routing rms difference to float32 logits, as a multiple of the reference implementation's own
    "golden_rms_ratio": 1.5,
}


def relative_gap(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest absolute difference over the largest expected magnitude."""
    assert torch.isfinite(actual).all() and torch.isfinite(expected).all()
    return ((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-12)).item()
