"""Choosing the next token from one row of logits: the definition of correct.

Unusual: everything from the temperature on is float64 and in a fixed order, ties going to the lower id, so that a seed
gives the same token on every machine whose logits agree.

Legend: V vocabulary size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.errors import NumericsError


def sample(
    logits: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, generator: torch.Generator
) -> tuple[int, float]:
    """Choose a token from ``logits`` [V]; return its id and its log-probability before any restriction.

    Temperature 0 takes the most likely token and leaves ``generator`` untouched. Otherwise one number is drawn from it.
    Raises `NumericsError` if a logit is NaN or infinite.
    """
    logits = logits.to("cpu", torch.float64)
    _require_finite(logits)
    if temperature == 0.0:
        token = int(logits.argmax())
    else:
        token = draw(probabilities(logits, temperature=temperature, top_p=top_p, top_k=top_k), generator)
    return token, float(logits[token] - logits.logsumexp(0))


def probabilities(logits: Tensor, *, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """Give the distribution [V] (float64) that is drawn from: temperature, then top-k, then top-p of what is left.

    Top-p keeps the fewest tokens, most likely first, whose probabilities sum to at least ``top_p``.
    """
    logits = logits.double()
    # Subtracting first keeps a tiny temperature from overflowing: the largest exponent is 0.
    probs = torch.softmax((logits - logits.max()) / temperature, dim=0)
    if top_k == 0 and top_p == 1.0:
        return probs
    ordered, ids = probs.sort(descending=True, stable=True)
    if 0 < top_k < ordered.numel():
        ordered[top_k:] = 0.0
        ordered /= ordered.sum()
    if top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        ordered[before >= top_p] = 0.0
        ordered /= ordered.sum()
    return torch.zeros_like(probs).scatter_(0, ids, ordered)


def draw(probs: Tensor, generator: torch.Generator) -> int:
    """Draw an index from ``probs`` [V] (float64, sums to 1) by inverting its cumulative sum at one uniform number."""
    cumulative = probs.cumsum(0)
    uniform = torch.rand((), generator=generator, dtype=torch.float64) * cumulative[-1]
    # right=True steps over impossible tokens; the bound does so at the end, where rounding may have reached the sum.
    last_possible = int(probs.nonzero()[-1])
    return min(int(torch.searchsorted(cumulative, uniform, right=True)), last_possible)


def _require_finite(logits: Tensor) -> None:
    wrong = (~logits.isfinite()).nonzero().flatten()
    if wrong.numel():
        first = int(wrong[0])
        raise NumericsError(
            f"{wrong.numel()} of {logits.numel()} logits are not finite; the first is token {first} "
            f"with {float(logits[first])}",
            hint="check the weights with `openk3 verify MODEL --deep`",
        )
