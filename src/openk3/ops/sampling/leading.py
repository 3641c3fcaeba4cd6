"""Sampling that sorts the likeliest tokens only; the same token as the reference's, bit for bit.

Unusual: a draw goes through the tokens from the likeliest on, so it is decided as soon as a section of that order is
known which holds it. Sections grow until it is, at last to the whole vocabulary.

Legend: V vocabulary size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from openk3.ops.sampling.reference import Ids, Row, Weights, boltzmann
from openk3.protocol.sampling import SamplingParams

# Sizes of the sections that are tried: the first holds nearly every nucleus of a trained model.
_SECTIONS = (256, 4096, 32768)
# A threshold for n values is looked for among this many times n maxima of groups.
_GROUPS_PER_VALUE = 8


def sample(values: Row, params: SamplingParams, number: float, weights: Weights | None = None) -> int:
    """Return the index in ``values`` [V] that the reference chooses at a temperature that is not 0.

    ``weights`` [V] are theirs, `boltzmann(values, params.temperature)`, if they are known already.
    """
    if weights is None:
        weights = boltzmann(values, params.temperature)
    total = float(weights.sum())
    sizes = (params.top_k,) if params.top_k else _SECTIONS
    for size in (*sizes, values.size):
        order = leading(values, size)
        index = _find(weights[order], values.size, total, params, number)
        if index is not None:
            return int(order[index])
    raise AssertionError("the whole vocabulary holds every draw")


def leading(values: Row, count: int) -> Ids:
    """Return the indices of the ``count`` largest ``values`` [V] or a few more, largest first, equals by index."""
    if count >= values.size:
        return _descending(values)
    indices = np.flatnonzero(values >= _threshold(values, count))
    return indices[_descending(values[indices])]


def _threshold(values: Row, count: int) -> np.float32:
    """Return a number that at least ``count`` values reach: so many maxima of groups of values do."""
    height = max(1, values.size // (count * _GROUPS_PER_VALUE))
    width = values.size // height
    maxima = values[: height * width].reshape(height, width).max(axis=0)
    return np.partition(maxima, width - count)[width - count]


def _descending(values: Row) -> Ids:
    """Return the stable descending order, by sorting numbers of 64 bits that hold value and index."""
    # Adding 0 makes -0 equal to 0. Bits of negative floats fall as these rise; inverting all but the sign mends that.
    bits = (values + np.float32(0)).view(np.int32)
    ascending = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    keys: npt.NDArray[np.int64] = (-ascending.astype(np.int64) << 32) | np.arange(values.size)
    keys.sort()
    return keys & 0xFFFFFFFF


def _find(section: Weights, num_all: int, total: float, params: SamplingParams, number: float) -> int | None:
    """Return the place in a leading ``section`` of ``num_all`` weights that is drawn, None if it may lie beyond."""
    cumulative = section.cumsum()
    is_whole = section.size == num_all
    count = _count_kept(section, params)
    is_bounded = is_whole or count < section.size or count == params.top_k
    if not is_bounded and (params.min_p > 0.0 or params.top_k):
        return None  # the sum of what stays is not known yet
    if count < num_all and is_bounded:
        total = float(cumulative[count - 1])
    if params.top_p < 1.0:
        reached = int(np.searchsorted(cumulative[:count], params.top_p * total))
        if reached < count:
            count, total, is_bounded = reached + 1, float(cumulative[reached]), True
        elif not is_bounded:
            return None
    index = int(np.searchsorted(cumulative[:count], number * total, side="right"))
    if index < count:
        return index
    return int(np.searchsorted(cumulative[:count], cumulative[count - 1])) if is_bounded else None


def _count_kept(section: Weights, params: SamplingParams) -> int:
    """Return how many weights of a ``section`` min-p and top-k keep."""
    count = min(params.top_k, section.size) if params.top_k else section.size
    if params.min_p > 0.0:
        too_small = section[:count] < params.min_p
        first = int(too_small.argmax())
        return first if too_small[first] else count
    return count
