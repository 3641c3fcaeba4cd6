"""Routed experts rounded to MXFP4 in the forward pass, with the gradient of the unrounded weights.

Unusual: what is exported is bit for bit what the last steps were trained with, so packing the experts costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openk3.model.model import K3ForCausalLM
from openk3.ops.mxfp4.reference import pack, unpack
from openk3.ops.straight_through import straight_through
from openk3.quant.experts import PlainExperts


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor) -> Tensor:
        return unpack(*pack(weights), dtype=weights.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def rounded_to_mxfp4(weights: Tensor) -> Tensor:
    """Round ``weights`` [..., C] to MXFP4 (C a multiple of 32); the gradient passes as if they were not."""
    return straight_through(weights, unpack(*pack(weights.detach()), dtype=weights.dtype))


def quantize_experts(model: K3ForCausalLM, enabled: bool) -> None:
    """Switch rounding of all routed experts on or off."""
    for module in model.modules():
        if isinstance(module, PlainExperts):
            module.quantizer = rounded_to_mxfp4 if enabled else None
