"""SiTU-GLU: a gated unit whose gate and linear part are both capped by a tanh.

Unusual: the sigmoid takes the raw gate, not the capped one, and no result exceeds beta * linear_beta.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openk3.ops.precision import widen
from openk3.ops.row_independent import elementwise


def situ_glu(gate: Tensor, up: Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> Tensor:
    """Return ``beta*tanh(gate/beta)*sigmoid(gate) * linear_beta*tanh(up/linear_beta)``.

    Any equal shapes; float32 inside, rounded once to gate's dtype (Kimi K3 report, section 2.3.2).
    """
    g, u = widen(gate), widen(up)
    cap, linear = elementwise(torch.tanh, g / beta), elementwise(torch.tanh, u / linear_beta)
    return (beta * cap * elementwise(torch.sigmoid, g) * (linear_beta * linear)).to(gate.dtype)
