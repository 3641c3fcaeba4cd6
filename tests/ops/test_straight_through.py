"""Rounding with the gradient of the exact value: the value is the rounded one to the bit."""

from __future__ import annotations

import torch

from openk3.ops.straight_through import straight_through


def test_value_is_the_rounded_one_and_gradient_the_exact_ones() -> None:
    x = torch.tensor([0.1, 1e8, -3.3], requires_grad=True)
    rounded = torch.tensor([0.0, 1.5, -3.0])
    y = straight_through(x, rounded)
    assert torch.equal(y, rounded)  # x + (rounded - x) would not be, for the second
    (y * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 2.0, 3.0]
