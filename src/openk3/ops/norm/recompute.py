"""RMS norm whose forward is the reference and whose backward is written by hand.

Unusual: nothing but the input is kept for the backward pass, which recomputes the rest: on a CPU these elementwise
operations are bound by memory traffic, not arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from openk3.ops.norm import reference
from openk3.ops.precision import widen


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise [..., d] as `reference.rms_norm` does, bit for bit, with a cheaper gradient."""
    y: Tensor = _RMSNorm.apply(x, weight, eps)
    return y


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps  # type: ignore[attr-defined]
        return reference.rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        wide, g = widen(x), widen(grad)
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)  # type: ignore[attr-defined]
        normed = wide * inverse
        grad_weight = (g * normed).flatten(0, -2).sum(0)
        g = g * weight
        grad_x = inverse * torch.addcmul(g, normed, (g * normed).mean(-1, keepdim=True), value=-1)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None
