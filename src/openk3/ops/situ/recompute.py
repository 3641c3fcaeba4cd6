"""SiTU-GLU whose forward is the reference and whose backward recomputes it from the two inputs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from openk3.ops.precision import widen
from openk3.ops.situ import reference


def situ_glu(gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    """Compute `reference.situ_glu`, bit for bit, keeping only its inputs for the gradient."""
    y: Tensor = _SituGLU.apply(gate, up, beta, linear_beta)
    return y


class _SituGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.betas = (beta, linear_beta)  # type: ignore[attr-defined]
        return reference.situ_glu(gate, up, beta, linear_beta)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        gate, up = ctx.saved_tensors  # type: ignore[attr-defined]
        beta, linear_beta = ctx.betas  # type: ignore[attr-defined]
        g, u, dy = widen(gate), widen(up), widen(grad)
        cap, sigmoid, linear = torch.tanh(g / beta), torch.sigmoid(g), torch.tanh(u / linear_beta)
        # d/dg [beta tanh(g/beta) sigma(g)] = sigma (1 - cap^2) + beta cap sigma (1 - sigma)
        d_gate = sigmoid * (1 - cap.square() + beta * cap * (1 - sigmoid)) * (linear_beta * linear) * dy
        d_up = beta * cap * sigmoid * (1 - linear.square()) * dy
        return d_gate.to(gate.dtype), d_up.to(up.dtype), None, None
