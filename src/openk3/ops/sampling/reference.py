"""Choosing the next token from one row of logits: the definition of correct.

Unusual: NumPy, whose sums have one order whatever the number of threads, and a draw that goes through the tokens from
the likeliest on, so that a faster form that sorts only the first of them can give the same token.

Legend: V vocabulary size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from openk3.protocol.sampling import SamplingParams

Row = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)


def adjust(logits: Row, params: SamplingParams, prompt_ids: Sequence[int], generated_ids: Sequence[int]) -> Row:
    """Apply penalties, then bias, to finite ``logits`` [V]: in float64, rounded to a finite float32 once."""
    wide = logits.astype(np.float64)
    with np.errstate(over="ignore"):
        for token in {*prompt_ids, *generated_ids}:
            value = wide[token]
            wide[token] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        for token, count in Counter(generated_ids).items():
            wide[token] -= params.presence_penalty + params.frequency_penalty * count
        for token, bias in params.logit_bias.items():
            wide[token] += bias
    return wide.clip(-LARGEST, LARGEST).astype(np.float32)


def sample(logits: Row, params: SamplingParams, number: float, possible: Mask | None = None) -> int:
    """Choose a token from adjusted ``logits`` [V] with a uniform ``number``, among ``possible`` [V], at least one."""
    ids = np.arange(logits.size) if possible is None else np.flatnonzero(possible)
    values = logits[ids]
    if params.temperature == 0.0:
        return int(ids[values.argmax()])
    order, weights, total = restrict(values, params)
    cumulative = weights.cumsum()
    index = int(np.searchsorted(cumulative, number * total, side="right"))
    # Rounding may have reached the sum: then it is the last token that adds to it.
    return int(ids[order[min(index, int(np.searchsorted(cumulative, cumulative[-1])))]])


def restrict(values: Row, params: SamplingParams) -> tuple[Ids, Weights, float]:
    """Apply min-p, top-k and top-p: return the tokens that stay, likeliest first, their weights and what these sum to.

    Weights are relative to the likeliest token's. The sum of all tokens is taken in order of id, any other in this one.
    """
    weights = boltzmann(values, params.temperature)
    order = np.argsort(-values, kind="stable")
    ordered = weights[order]
    cumulative = ordered.cumsum()
    count = values.size if params.top_k == 0 else min(params.top_k, values.size)
    too_small = np.flatnonzero(ordered < params.min_p)
    if too_small.size:
        count = min(count, int(too_small[0]))
    total = float(weights.sum()) if count == values.size else float(cumulative[count - 1])
    if params.top_p < 1.0:
        reached = np.flatnonzero(cumulative[:count] >= params.top_p * total)
        if reached.size:
            count = int(reached[0]) + 1
            total = float(cumulative[count - 1])
    return order[:count], ordered[:count], total


def probabilities(logits: Row, params: SamplingParams, possible: Mask | None = None) -> Weights:
    """Return the distribution [V] that `sample` draws from, at a temperature that is not 0."""
    ids = np.arange(logits.size) if possible is None else np.flatnonzero(possible)
    order, weights, _ = restrict(logits[ids], params)
    distribution = np.zeros(logits.size)
    distribution[ids[order]] = weights / weights.sum()
    return distribution


def boltzmann(values: Row, temperature: float) -> Weights:
    """Return ``exp((values - max) / temperature)`` of finite ``values`` [V]."""
    # Subtracting first keeps a tiny temperature from overflowing upwards: the largest exponent is 0.
    exponents = np.subtract(values, values.max(), dtype=np.float64)
    if temperature != 1.0:
        with np.errstate(over="ignore"):
            exponents /= temperature
    return np.exp(exponents, out=exponents)
