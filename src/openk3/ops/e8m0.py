"""E8M0 block scales, shared by the MX formats: a byte ``s`` means ``2**(s - 127)`` and 255 means NaN.

Unusual: byte 0 is ``2**-127``, an FP32 subnormal, so scales come from a table and never from shifted bits.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import torch

ScaleRule = Literal["ceil", "floor"]
BLOCK = 32
_BIAS = 127
_NAN = 255


def decode(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the scales of bytes ``scale`` (uint8, any shape) as ``dtype``; OCP MX section 5.4.1."""
    return _table(dtype, scale.device).index_select(0, scale.reshape(-1).int()).reshape(scale.shape)


def choose(amax: torch.Tensor, largest: float, rule: ScaleRule, *, least: int = 0) -> torch.Tensor:
    """Return the scale byte for blocks whose largest magnitude is ``amax`` (float32, any shape), as uint8.

    ``largest`` is the element format's largest value. ``floor`` aligns the exponents (OCP MX section 6.3) and may
    clip the top of a block; ``ceil`` takes the smallest scale that clips nothing. Blocks with NaN or infinity
    get 255; other bytes stay in ``least``..254.
    """
    if rule not in ("ceil", "floor"):
        raise ValueError(f"scale rule is {rule!r}, expected 'ceil' or 'floor'")
    # frexp instead of log2: exact at powers of two, and right for subnormals
    fraction, exponent = torch.frexp(amax)
    top_fraction, top_exponent = math.frexp(largest)
    shift = exponent - top_exponent
    if rule == "ceil":
        shift = shift + (fraction > top_fraction)
    byte = (shift + _BIAS).clamp(least, _NAN - 1)
    return torch.where(torch.isfinite(amax), byte, _NAN).to(torch.uint8)


@cache
def _table(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    powers = [math.ldexp(1.0, byte - _BIAS) for byte in range(_NAN)]
    return torch.tensor([*powers, math.nan], dtype=dtype, device=device)
