"""Attention residuals in two phases: what a block's stored sources give to all its queries, computed once at its start.

Unusual: the softmax is merged with the running partial sum by log-sum-exp, so the stored sources are read once per
block and not once per sublayer. Costs one float32 vector per query and token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openk3.ops.attn_res.reference import source_logit
from openk3.ops.precision import widen


@dataclass(frozen=True)
class StoredMix:
    """One query's softmax over the stored sources, not yet divided: all float32."""

    peak: Tensor  # [N] largest logit
    mass: Tensor  # [N] sum of exp(logit - peak)
    numerator: Tensor  # [N, d] sum of exp(logit - peak) * source


def mix_stored(sources: Sequence[Tensor], queries: Sequence[Tensor], eps: float) -> list[StoredMix]:
    """Evaluate every query of a block over the stored sources, each [N, d]."""
    mixes = []
    wide = [widen(source) for source in sources]
    for query in queries:
        logits = torch.stack([source_logit(source, query, eps) for source in wide])
        peak = logits.amax(0)
        weights = (logits - peak).exp()
        numerator = sum(weight[:, None] * source for weight, source in zip(weights, wide, strict=True))
        assert isinstance(numerator, Tensor)
        mixes.append(StoredMix(peak, weights.sum(0), numerator))
    return mixes


def merge_partial(stored: StoredMix, partial: Tensor, query: Tensor, eps: float) -> Tensor:
    """Add the running partial sum [N, d] as one more source and divide; rounded once to its dtype."""
    logit = source_logit(partial, query, eps)
    peak = torch.maximum(stored.peak, logit)
    old, new = (stored.peak - peak).exp(), (logit - peak).exp()
    numerator = old[:, None] * stored.numerator + new[:, None] * widen(partial)
    return (numerator / (old * stored.mass + new)[:, None]).to(partial.dtype)
