"""The smallest parts: a linear map without bias, an RMS norm, a convolution's taps, and the point where ranks meet.

Unusual: parameters are created unfilled, in their stored dtype; some are float32 whatever the model's dtype and
survive a blanket cast, because rounding them to bfloat16 visibly changes the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from openk3.ops.norm.recompute import rms_norm
from openk3.ops.row_independent import linear


class Linear(nn.Module):
    """``x @ weight.T`` with weight [out, in]; nothing in the text model has a bias."""

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        return linear(x, self.weight)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis; weight [d] as stored (not 1 + w)."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., d]."""
        return rms_norm(x, self.weight, self.eps)


class KeepsFloat32(nn.Module):
    """A module some of whose tensors (``float32_names``) are never narrowed, not even by ``.to(dtype)``."""

    float32_names: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KeepsFloat32:
        before = {name: getattr(self, name).detach() for name in self.float32_names}
        super()._apply(fn, recurse)
        for name, exact in before.items():
            tensor = getattr(self, name)
            if tensor.dtype.itemsize < exact.dtype.itemsize:
                tensor.data = exact.to(tensor.device)
        return self


class Float32Weight(KeepsFloat32):
    """A lone float32 ``weight``: short-convolution taps, or the norm inside KDA's output gate."""

    float32_names = ("weight",)

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float32))


class Weight(nn.Module):
    """A lone ``weight`` in the model's dtype that is used by another module's equation."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype))


class PartialSum(nn.Module):
    """The point where ranks that hold parts of a layer add their results; alone, there is nothing to add."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over ranks of ``x``."""
        return x
