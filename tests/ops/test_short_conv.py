"""Short convolution: taps in order, state of raw inputs, sequences apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from openk3.ops.packed import PackedSequences
from openk3.ops.short_conv import recompute
from openk3.ops.short_conv.reference import short_conv
from tests.tolerances import BFLOAT16

CHANNELS, TAPS = 32, 4  # whole vector registers: torch computes a remainder by another, differently rounded exp


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_definition(u: torch.Tensor, weight: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    rows = torch.cat([tail, u])
    y = [sum(weight[:, j] * rows[t + j] for j in range(TAPS)) for t in range(len(u))]
    return F.silu(torch.stack(y))  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 15])
def test_against_its_definition(length: int) -> None:
    u, weight, tail = random(length, CHANNELS), random(CHANNELS, TAPS, seed=1), random(1, TAPS - 1, CHANNELS, seed=2)
    y, new_tail = short_conv(u, weight, PackedSequences([length]), tail)
    torch.testing.assert_close(y, by_definition(u, weight, tail[0]))
    assert torch.equal(new_tail[0], torch.cat([tail[0], u])[-3:])  # shifted, not zero-filled, when length < 3


def test_last_tap_multiplies_the_current_token() -> None:
    weight = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    u = random(5, 1)
    y, _ = short_conv(u, weight, PackedSequences([5]))
    torch.testing.assert_close(y, F.silu(u))


@given(cuts=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_any_split_gives_the_whole_bit_for_bit(cuts: list[int]) -> None:
    total = sum(cuts)
    u, weight = random(total, CHANNELS), random(CHANNELS, TAPS, seed=1)
    whole, whole_tail = short_conv(u, weight, PackedSequences([total]))
    tail, parts = None, []
    for piece in u.split(cuts):
        y, tail = short_conv(piece, weight, PackedSequences([len(piece)]), tail)
        parts.append(y)
    assert torch.equal(torch.cat(parts), whole)
    assert tail is not None and torch.equal(tail, whole_tail)


def test_packed_sequences_do_not_see_each_other() -> None:
    lengths = [2, 1, 5, 3]
    packed, weight = PackedSequences(lengths), random(CHANNELS, TAPS, seed=1)
    u, tail = random(11, CHANNELS), random(4, TAPS - 1, CHANNELS, seed=2)
    u[3:8] = float("nan")
    y, new_tail = short_conv(u, weight, packed, tail)
    for i, (start, length) in enumerate(zip(packed.starts, lengths, strict=True)):
        alone, alone_tail = short_conv(u[start : start + length], weight, PackedSequences([length]), tail[i : i + 1])
        torch.testing.assert_close(y[start : start + length], alone, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(new_tail[i : i + 1], alone_tail, rtol=0, atol=0, equal_nan=True)
    assert torch.isfinite(y[8:]).all()


def test_bfloat16_is_summed_in_float32_and_rounded_once() -> None:
    u, weight = random(9, CHANNELS).bfloat16(), random(CHANNELS, TAPS, seed=1)
    y, tail = short_conv(u, weight, PackedSequences([9]))
    wide, _ = short_conv(u.float(), weight, PackedSequences([9]))
    assert y.dtype == tail.dtype == torch.bfloat16
    assert torch.equal(y, wide.bfloat16())
    assert ((y.float() - wide).abs() <= BFLOAT16["rounding"] * wide.abs()).all()


def test_hand_written_gradient() -> None:
    leaves = [random(11, 5).double().requires_grad_(), random(5, TAPS, seed=1).double().requires_grad_()]
    packed = PackedSequences([2, 9])

    def run(u: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return short_conv(u, weight, packed, None, recompute.taps_and_silu)

    assert torch.autograd.gradcheck(run, leaves)
    assert torch.equal(run(*leaves)[0], short_conv(*leaves, packed)[0])
