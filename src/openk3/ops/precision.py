"""The one rule of widths: what must not be rounded to bfloat16 is computed in float32, or wider if the input is."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 for a float64 input, so that a whole model can be evaluated in float64."""
    return torch.promote_types(dtype, torch.float32)


def widen(x: Tensor) -> Tensor:
    """Return ``x`` in float32 (float64 stays float64)."""
    return x.to(wide_dtype(x.dtype))
