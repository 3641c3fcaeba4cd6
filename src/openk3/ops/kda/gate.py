"""KDA's bounded decay: one rate per head times a biased logit per channel, squashed into (bound, 0).

Unusual: there is neither softplus nor clamp; `A_log` is one scalar per head even where its stored length equals
head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.ops.precision import widen
from openk3.ops.row_independent import elementwise


def bounded_log_decay(z: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    """Return ``lower_bound * sigmoid(exp(A_log) * (z + dt_bias))``, the log of the decay, in float32.

    ``z`` [N, H, K] decay logits; ``A_log`` [H]; ``dt_bias`` [H * K]; result [N, H, K] in (lower_bound, 0).
    """
    s = widen(z) + widen(dt_bias).view(z.shape[-2:])
    return lower_bound * elementwise(torch.sigmoid, widen(A_log).exp()[:, None] * s)
