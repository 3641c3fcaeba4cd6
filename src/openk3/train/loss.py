"""Next-token cross-entropy over a large vocabulary: float32 logits, a chunk of tokens at a time, never all at once.

Unusual: the gradients are computed together with the loss, so no logits are kept; tokens without a target cost nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openk3.train.data.packing import IGNORED

CHUNK_TOKENS = 1024


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(targets), CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            logits = (hidden[rows] @ weight.T).float()
            chosen = logits.gather(1, targets[rows, None])
            normalizer = logits.logsumexp(-1, keepdim=True)
            total += (normalizer - chosen).sum()
            grad = logits.sub_(normalizer).exp_()
            grad[torch.arange(len(grad)), targets[rows]] -= 1.0
            grad = grad.to(hidden.dtype)
            hidden_grad[rows] = grad @ weight
            weight_grad += (grad.T @ hidden[rows]).float()
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * grads[0], weight_grad * grads[0], None


def next_token_loss(hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Return the summed cross-entropy, float32 [], in nats, and the number of targets.

    ``hidden`` [N, d] is the model's final normed state, ``head`` [V, d] the output matrix, ``targets`` [N] int64 with
    `IGNORED`
    where nothing is predicted.
    """
    kept = (targets != IGNORED).nonzero()[:, 0]
    total: Tensor = _ChunkedCrossEntropy.apply(hidden.index_select(0, kept), head, targets[kept])
    return total, len(kept)
