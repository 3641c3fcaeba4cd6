"""SiTU-GLU: worked values, caps, gradients."""

from __future__ import annotations

import pytest
import torch

from openk3.ops.situ import recompute
from openk3.ops.situ.reference import situ_glu


@pytest.mark.parametrize(
    ("gate", "up", "expected"),
    [
        (1.0, 1.0, 0.715817828),
        (-2.0, 3.0, -0.657873819),
        (10.0, 50.0, 95.108021534),
        (0.5, -0.25, -0.077402106),
    ],
)
def test_worked_values(gate: float, up: float, expected: float) -> None:
    y = situ_glu(torch.tensor(gate, dtype=torch.float64), torch.tensor(up, dtype=torch.float64))
    assert y.item() == pytest.approx(expected, abs=1e-8)


def test_a_closed_gate_lets_nothing_through() -> None:
    assert situ_glu(torch.tensor(-20.0), torch.tensor(5.0)).item() == pytest.approx(-4.1e-8, rel=0.02)


def test_no_result_exceeds_the_product_of_the_caps() -> None:
    g, u = torch.meshgrid(torch.linspace(-1e3, 1e3, 101), torch.linspace(-1e3, 1e3, 101), indexing="ij")
    y = situ_glu(g, u)
    assert y.abs().max() <= 100.0 and torch.isfinite(y).all()
    y = situ_glu(g.bfloat16(), u.bfloat16())
    assert y.abs().max() <= 100.0


def test_hand_written_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    leaves = [(10 * torch.randn(4, 5, generator=generator, dtype=torch.float64)).requires_grad_() for _ in range(2)]
    assert torch.autograd.gradcheck(recompute.situ_glu, leaves)
    assert torch.equal(recompute.situ_glu(*leaves), situ_glu(*leaves))
