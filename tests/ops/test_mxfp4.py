"""MXFP4 against tables written out from the format's definition, over every byte and every scale."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openk3.ops.mxfp4.reference import pack, pack_with_scale, unpack

CODES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
EVERY_BYTE = torch.arange(256, dtype=torch.uint8)


def every_byte_with(scale: int) -> tuple[torch.Tensor, torch.Tensor]:
    return EVERY_BYTE.view(16, 16), torch.full((16, 1), scale, dtype=torch.uint8)


def expected_values(scale: int) -> torch.Tensor:
    pairs = [(CODES[byte & 15], CODES[byte >> 4]) for byte in range(256)]
    return torch.tensor(pairs, dtype=torch.float64).view(16, 32) * math.ldexp(1.0, scale - 127)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", range(253))
def test_unpack_is_exact_for_every_byte_and_scale(dtype: torch.dtype, scale: int) -> None:
    values = unpack(*every_byte_with(scale), dtype)
    assert values.dtype == dtype
    assert torch.equal(values.double(), expected_values(scale))
    assert torch.equal(values.signbit(), expected_values(scale).signbit())


@pytest.mark.parametrize("scale", [253, 254])
def test_largest_scales_are_exact_in_double_and_infinite_only_beyond_the_range(scale: int) -> None:
    exact = expected_values(scale)
    assert torch.equal(unpack(*every_byte_with(scale), torch.float64), exact)
    assert torch.equal(unpack(*every_byte_with(scale)), exact.float())
    assert unpack(*every_byte_with(scale)).isinf().any()


def test_scale_byte_255_is_nan_even_for_zero_codes() -> None:
    assert unpack(*every_byte_with(255)).isnan().all()


def test_scale_byte_0_is_the_subnormal_power() -> None:
    packed = torch.zeros(1, 16, dtype=torch.uint8)
    packed[0, 0] = 0x12  # code 2 (1.0) in the even column, code 1 (0.5) in the odd one
    values = unpack(packed, torch.zeros(1, 1, dtype=torch.uint8))
    assert values[0, :3].tolist() == [2.0**-127, 2.0**-128, 0.0]


def test_worked_byte_has_the_low_nibble_first() -> None:
    packed = torch.zeros(1, 16, dtype=torch.uint8)
    packed[0, 3] = 0x7A
    values = unpack(packed, torch.full((1, 1), 128, dtype=torch.uint8))
    assert values[0, 6:8].tolist() == [-2.0, 12.0]


@pytest.mark.parametrize("scale", range(253))
def test_bytes_survive_a_round_trip_with_their_scale(scale: int) -> None:
    packed, scales = every_byte_with(scale)
    assert torch.equal(pack_with_scale(unpack(packed, scales), scales), packed)


@pytest.mark.parametrize("rule", ["ceil", "floor"])
@pytest.mark.parametrize("scale", range(253))
def test_representable_values_survive_pack(rule: str, scale: int) -> None:
    values = unpack(*every_byte_with(scale))
    again = unpack(*pack(values, rule))
    assert torch.equal(again, values) and torch.equal(again.signbit(), values.signbit())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, 0.0),
        (0.75, 1.0),
        (1.25, 1.0),
        (1.75, 2.0),
        (2.5, 2.0),
        (3.5, 4.0),
        (5.0, 4.0),
        (5.0000005, 6.0),
        (0.24999999, 0.0),
        (0.25000003, 0.5),
        (0.74999994, 0.5),
        (3.4999998, 3.0),
        (6.0, 6.0),
        (7.9, 6.0),
        (100.0, 6.0),
    ],
)
def test_rounds_to_nearest_even_and_saturates(value: float, expected: float) -> None:
    values = torch.zeros(1, 32)
    values[0, :2] = torch.tensor([value, -value])
    unit = torch.full((1, 1), 127, dtype=torch.uint8)
    assert unpack(pack_with_scale(values, unit), unit)[0, :2].tolist() == [expected, -expected]


@pytest.mark.parametrize(
    ("amax", "ceil", "floor"),
    [
        (6.0, 127, 127),
        (6.0000005, 128, 127),
        (7.99, 128, 127),
        (8.0, 128, 128),
        (4.0, 127, 127),
        (3.0, 126, 126),
        (1.0, 125, 125),
        (2.0**-126, 0, 0),
        (2.0**-149, 0, 0),
        (3.0e38, 253, 252),
        (0.0, 124, 124),
    ],
)
def test_scale_rules(amax: float, ceil: int, floor: int) -> None:
    values = torch.zeros(1, 32)
    values[0, 5] = -amax
    assert int(pack(values, "ceil")[1]) == ceil
    assert int(pack(values, "floor")[1]) == floor


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_poison_their_block_only(bad: float) -> None:
    values = torch.ones(1, 64)
    values[0, 40] = bad
    again = unpack(*pack(values))
    assert torch.equal(again[0, :32], values[0, :32]) and again[0, 32:].isnan().all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100),
        min_size=32,
        max_size=32,
    )
)
def test_ceil_rule_never_errs_by_more_than_half_a_step(values: list[float]) -> None:
    x = torch.tensor([values])
    packed, scale = pack(x, "ceil")
    step = 2.0 * math.ldexp(1.0, int(scale) - 127)
    assert (unpack(packed, scale).double() - x.double()).abs().max() <= step / 2


@pytest.mark.parametrize(("rule", "uniform"), [("ceil", 0.099), ("floor", 0.144)])
def test_measured_relative_error(rule: str, uniform: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for x, expected in (
        (torch.randn(4096, 256, generator=generator), 0.115),
        (torch.rand(4096, 256, generator=generator) * 2 - 1, uniform),
    ):
        error = (unpack(*pack(x, rule)) - x).norm() / x.norm()
        assert error.item() == pytest.approx(expected, abs=1e-3)


def test_mismatched_inputs_are_named() -> None:
    packed, scale = every_byte_with(127)
    with pytest.raises(ValueError, match=r"expected \[..., C/2\] and \[..., C/32\]"):
        unpack(packed, scale[:8])
    with pytest.raises(ValueError, match="torch.float16"):
        unpack(packed, scale, torch.float16)
    with pytest.raises(ValueError, match="multiple of 32"):
        pack(torch.zeros(1, 48))
    with pytest.raises(ValueError, match="'nearest'"):
        pack(torch.zeros(1, 32), "nearest")  # type: ignore[arg-type]
