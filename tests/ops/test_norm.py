"""Norms: where epsilon goes, in what order roundings come, and the hand-written gradient."""

from __future__ import annotations

import pytest
import torch

from openk3.ops.norm import recompute
from openk3.ops.norm.reference import gated_rms_norm, l2_normalize, rms_norm


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rms_norm_adds_epsilon_to_the_mean() -> None:
    y = rms_norm(torch.tensor([[3e-3, 4e-3]]), torch.tensor([1.0, 2.0]), eps=1e-5)
    inverse = (12.5e-6 + 1e-5) ** -0.5
    torch.testing.assert_close(y, torch.tensor([[3e-3 * inverse, 8e-3 * inverse]]))


def test_l2_norm_adds_epsilon_to_the_sum() -> None:
    y = l2_normalize(torch.full((1, 128), 1e-3))
    assert y[0, 0].item() == pytest.approx(1e-3 / (128e-6 + 1e-6) ** 0.5, rel=1e-6)
    assert torch.equal(l2_normalize(torch.zeros(1, 8)), torch.zeros(1, 8))


def test_rms_norm_rounds_before_the_weight() -> None:
    x, weight = random(4, 64).bfloat16(), random(64, seed=1).bfloat16()
    wide = x.float()
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).bfloat16()
    assert torch.equal(rms_norm(x, weight, 1e-5), weight * normed)


def test_gated_norm_rounds_once() -> None:
    x, gate, weight = random(4, 16).bfloat16(), random(4, 16, seed=1).bfloat16(), random(16, seed=2).float()
    wide = gated_rms_norm(x.float(), gate.float(), weight, 1e-5)
    assert torch.equal(gated_rms_norm(x, gate, weight, 1e-5), wide.bfloat16())


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8)])
def test_hand_written_gradient(shape: tuple[int, ...]) -> None:
    leaves = [random(*shape).requires_grad_(), random(8, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, w: recompute.rms_norm(x, w, 1e-2), leaves)
    assert torch.equal(recompute.rms_norm(*leaves, 1e-5), rms_norm(*leaves, 1e-5))
