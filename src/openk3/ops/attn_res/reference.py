"""Block attention residuals: a softmax over the stored block sums decides what a sublayer reads.

Unusual: keys are RMS-normalised sources, values are the raw sources; the query is one static vector per sublayer; there
is no 1/sqrt(d).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from openk3.ops.precision import widen
from openk3.ops.row_independent import linear


def pseudo_query(proj: Tensor, norm: Tensor) -> Tensor:
    """Fold the key norm's weight [d] into the projection [1, d]: one static query [d] in float32."""
    return widen(proj).flatten() * widen(norm)


def source_logit(source: Tensor, query: Tensor, eps: float) -> Tensor:
    """Return the logit [N] of ``source`` [N, d] under ``query`` [d], in float32."""
    wide = widen(source)
    return linear(wide, query.to(wide.dtype)[None])[:, 0] * torch.rsqrt(wide.square().mean(-1) + eps)


def mix(sources: Sequence[Tensor], query: Tensor, eps: float) -> Tensor:
    """Return the softmax-weighted sum of ``sources``, each [N, d]; float32 inside, rounded once to their dtype."""
    logits = torch.stack([source_logit(source, query, eps) for source in sources], dim=-1)
    weights = logits.softmax(-1)  # over the last axis each token is computed by itself
    total = sum(weights[:, i, None] * source for i, source in enumerate(sources))
    assert isinstance(total, Tensor)
    return total.to(sources[0].dtype)
