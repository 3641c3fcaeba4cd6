"""MXFP8 fake quantisation: worked scale bytes, the E4M3 grid, and both scale rules."""

from __future__ import annotations

import math

import pytest
import torch

from openk3.ops.mxfp8.reference import dequantize, fake_quantize, quantize

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
E4M3_GRID = E4M3[~E4M3.isnan()].unique()


def block_with(amax: float) -> torch.Tensor:
    x = torch.zeros(1, 32)
    x[0, 7] = amax
    return x


@pytest.mark.parametrize(
    ("amax", "ceil", "floor"),
    [(448.0, 127, 127), (449.0, 128, 127), (1.0, 119, 119), (0.9, 119, 118), (3.5, 120, 120), (448.00003, 128, 127)],
)
def test_worked_scale_bytes(amax: float, ceil: int, floor: int) -> None:
    assert int(quantize(block_with(amax), "ceil")[1]) == ceil
    assert int(quantize(block_with(amax), "floor")[1]) == floor


def test_ceil_rule_floors_the_block_maximum() -> None:
    least = math.ceil(math.log2(1e-4 / 448)) + 127
    assert int(quantize(block_with(0.0), "ceil")[1]) == least
    assert int(quantize(block_with(1e-30), "ceil")[1]) == least


@pytest.mark.parametrize("rule", ["ceil", "floor"])
def test_elements_are_the_nearest_of_the_grid(rule: str) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)) * 3.7
    elements, scale = quantize(x, rule)
    power = torch.pow(2.0, scale.double() - 127).repeat_interleave(32, dim=-1)
    scaled = (x.double() / power).clamp(-448, 448)
    best = (scaled.unsqueeze(-1) - E4M3_GRID).abs().amin(-1)
    assert torch.equal((scaled - elements.double()).abs(), best)


def test_only_the_floor_rule_clips() -> None:
    x = block_with(500.0)
    assert fake_quantize(x, "floor").max() == 448.0
    assert fake_quantize(x, "ceil").max() == 512.0  # 500 / 2 is between 240 and 256, nearer to 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fake_quantize_keeps_dtype_and_is_idempotent(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(2)).to(dtype)
    once = fake_quantize(x)
    assert once.dtype == dtype and once.shape == x.shape
    assert torch.equal(fake_quantize(once), once)
    assert torch.equal(dequantize(*quantize(x), dtype), once)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_values_poison_their_block_only(bad: float) -> None:
    x = torch.ones(1, 64)
    x[0, 3] = bad
    result = fake_quantize(x)
    assert result[0, :32].isnan().all() and torch.equal(result[0, 32:], x[0, 32:])


def test_indivisible_width_is_named() -> None:
    with pytest.raises(ValueError, match="last dimension is 40"):
        quantize(torch.zeros(2, 40))
