"""MXFP8 (E4M3) in plain PyTorch: quantise, dequantise, and the two in one for simulated activations.

Unusual: the default scale rule is ``ceil``, which never clips; the OCP text's own rule is ``floor``.
"""

from __future__ import annotations

import torch

from openk3.ops import e8m0
from openk3.ops.e8m0 import BLOCK, ScaleRule

LARGEST = 448.0
# the ceil rule's kernels floor the block maximum, so that a block of zeros has an ordinary scale
_LEAST_AMAX = 1e-4


def quantize(x: torch.Tensor, rule: ScaleRule = "ceil") -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise ``x`` (float [..., C]) to float8_e4m3fn [..., C] and ``scale`` uint8 [..., C/32].

    Rounds to nearest, ties to even, and saturates at ±448 times the scale (which only the ``floor`` rule can reach).
    A block that holds NaN or infinity gets the NaN scale. OCP MX section 6.3.

    Raises:
        ValueError: the last dimension is not a multiple of 32, or an unknown rule.
    """
    if x.shape[-1] % BLOCK:
        raise ValueError(f"last dimension is {x.shape[-1]}, expected a multiple of {BLOCK}")
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    amax = blocks.abs().amax(-1)
    scale = e8m0.choose(amax.clamp(min=_LEAST_AMAX) if rule == "ceil" else amax, LARGEST, rule, least=1)
    scaled = blocks / e8m0.decode(scale, torch.float32).unsqueeze(-1)
    return scaled.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).flatten(-2), scale


def dequantize(elements: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return float8_e4m3fn ``elements`` [..., C] times ``scale`` (uint8 [..., C/32]) as ``dtype`` [..., C]."""
    blocks = elements.float().unflatten(-1, (-1, BLOCK))
    return (blocks * e8m0.decode(scale, torch.float32).unsqueeze(-1)).flatten(-2).to(dtype)


def fake_quantize(x: torch.Tensor, rule: ScaleRule = "ceil") -> torch.Tensor:
    """Round ``x`` (float [..., C]) to what MXFP8 can hold, in the dtype and shape of ``x``; no gradient."""
    return dequantize(*quantize(x.detach(), rule), x.dtype)
