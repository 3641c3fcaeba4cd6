"""Making a row's result independent of how many rows are computed with it, bit for bit.

Unusual: nothing is recomputed or reordered; a few rows of padding are enough. Libraries compute a product of few rows
by other code than one of many, and the last, incomplete vector of an elementwise function by other code than the rest.
`holds` checks the machine at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

# BLAS takes another float32 kernel for fewer rows than this, per thread.
_ROWS_PER_THREAD = 4
# PyTorch leaves bfloat16 products of at most so many multiplications, and those of one row, to other code.
_SMALL_PRODUCT = 4096
# Two vectors of 32 bfloat16 values: a shorter rest is computed by other code than a whole pair.
_WHOLE_VECTORS = 64


def missing_rows(num_rows: int, dtype: torch.dtype, multiplications: int) -> int:
    """Return how many rows of padding a product needs that has ``multiplications`` per row."""
    if dtype == torch.bfloat16:
        return max(2, _SMALL_PRODUCT // multiplications + 1, num_rows) - num_rows
    return -num_rows % (_ROWS_PER_THREAD * torch.get_num_threads())


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x @ weight.T`` of x [N, in] and weight [out, in]."""
    missing = missing_rows(x.shape[0], x.dtype, weight.numel())
    if missing == 0:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, missing)), weight)[: x.shape[0]]


def batched_rows(x: Tensor, right: Tensor) -> Tensor:
    """Return ``x @ right`` of x [B, N, in] and right [B, in, out]."""
    missing = missing_rows(x.shape[1], x.dtype, right[0].numel())
    if missing == 0:
        return x @ right
    return (F.pad(x, (0, 0, 0, missing)) @ right)[:, : x.shape[1]]


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise ``function`` (sigmoid, exp, …) so that a value's place in ``x`` does not matter."""
    missing = -x.numel() % (_WHOLE_VECTORS * torch.get_num_threads())
    if missing == 0:
        return function(x)
    return function(F.pad(x.flatten(), (0, missing)))[: x.numel()].view(x.shape)


def rows_in_whole_vectors(width: int) -> int:
    """Return the number of rows of ``width`` values that a tensor needs a multiple of, to have no incomplete vector."""
    vectors = _WHOLE_VECTORS * torch.get_num_threads()
    return vectors // math.gcd(width, vectors)


def holds(shapes: Iterable[tuple[int, int]], dtype: torch.dtype, seed: int = 0) -> bool:
    """Tell whether `linear` keeps rows independent on this machine, for weights of ``shapes`` [out, in]."""
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        for out, width in shapes:
            weight = (torch.randn(out, width, generator=generator) / math.sqrt(width)).to(dtype)
            x = torch.randn(33, width, generator=generator).to(dtype)
            together = linear(x, weight)
            if any(not torch.equal(linear(x[first:last], weight), together[first:last]) for first, last in _CUTS):
                return False
    return True


_CUTS = ((0, 1), (5, 6), (0, 2), (7, 10), (3, 8), (16, 33))
