"""Norms in plain PyTorch: RMS norm, the L2 norm of KDA's q and k, and KDA's gated output norm.

Unusual: epsilon is added to the mean of squares in two of them and to the sum of squares in the third.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.ops.precision import widen
from openk3.ops.row_independent import elementwise


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide ``x`` [..., d] by its root mean square, round to x's dtype, then multiply by ``weight`` [d]."""
    wide = widen(x)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide ``x`` [..., d] by its length, ``eps`` being added to the sum of squares; rounded to x's dtype."""
    wide = widen(x)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``RMSNorm(x; weight) * sigmoid(gate)`` over the last axis, in float32 with one rounding to x's dtype."""
    wide = widen(x)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * widen(weight)
    return (normed * elementwise(torch.sigmoid, widen(gate))).to(x.dtype)
