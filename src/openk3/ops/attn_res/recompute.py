"""The attention-residual mix whose forward is the reference and whose backward recomputes it from the sources.

Unusual: sources are shared by many mixes, so keeping only them makes the mixes nearly free in memory, as the report's
training does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from openk3.ops.attn_res import reference
from openk3.ops.precision import widen


def mix(sources: Sequence[Tensor], query: Tensor, eps: float) -> Tensor:
    """Compute `reference.mix`, bit for bit, keeping only the sources for the gradient."""
    h: Tensor = _Mix.apply(query, eps, *sources)
    return h


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, query: Tensor, eps: float, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(query, *sources)
        ctx.eps = eps  # type: ignore[attr-defined]
        return reference.mix(sources, query, eps)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, *sources = ctx.saved_tensors  # type: ignore[attr-defined]
        wide, g = [widen(source) for source in sources], widen(grad)
        query = query.to(g.dtype)
        inverse = torch.stack([torch.rsqrt(u.square().mean(-1) + ctx.eps) for u in wide])  # type: ignore[attr-defined]
        logits = torch.stack([u @ query for u in wide]) * inverse  # [n, N]
        weights = logits.softmax(0)
        d_weights = torch.stack([(g * u).sum(-1) for u in wide])
        d_logits = weights * (d_weights - (weights * d_weights).sum(0))
        toward = d_logits * inverse  # gradient of u·query
        shrink = -d_logits * logits * inverse.square() / g.shape[-1]  # through the root mean square, times u
        grads: list[Tensor] = []
        for i, u in enumerate(wide):
            d_source = weights[i][:, None] * g
            d_source.addr_(toward[i], query).addcmul_(u, shrink[i][:, None])
            grads.append(d_source.to(sources[i].dtype))
        d_query = sum(toward[i] @ u for i, u in enumerate(wide))
        assert isinstance(d_query, Tensor)
        return d_query, None, *grads
