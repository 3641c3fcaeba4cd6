"""Rounding that the backward pass does not see: the value is the rounded one, the gradient that of the exact one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """Return ``rounded``, passing its gradient on to ``x`` (same shape)."""
    y: Tensor = _StraightThrough.apply(x, rounded)
    return y


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.view_as(rounded)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
