"""Latent attention: against softmax written out, expanded = absorbed, continuation = whole."""

from __future__ import annotations

import pytest
import torch

from openk3.ops.mla import reference
from openk3.ops.mla.reference import mla_absorbed, mla_expanded
from tests.tolerances import FLOAT32, relative_gap

HEADS, NOPE, SHARED, VALUE, RANK = 2, 6, 4, 5, 7


def case(
    new: int, past: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(new + past)
    q = torch.randn(new, HEADS, NOPE + SHARED, generator=generator)
    entries = torch.randn(past + new, RANK + SHARED, generator=generator)
    kv_b = torch.randn(HEADS, NOPE + VALUE, RANK, generator=generator)
    return q.to(dtype), entries.to(dtype), kv_b.to(dtype)


def by_definition(q: torch.Tensor, entries: torch.Tensor, kv_b: torch.Tensor) -> torch.Tensor:
    past, out = entries.shape[0] - q.shape[0], torch.zeros(q.shape[0], HEADS, VALUE)
    for t in range(q.shape[0]):
        for h in range(HEADS):
            seen = entries[: past + t + 1]
            k, v = (seen[:, :RANK] @ kv_b[h].T).split([NOPE, VALUE], dim=-1)
            scores = (k @ q[t, h, :NOPE] + seen[:, RANK:] @ q[t, h, NOPE:]) / (NOPE + SHARED) ** 0.5
            out[t, h] = scores.softmax(0) @ v
    return out


@pytest.mark.parametrize("form", [mla_expanded, mla_absorbed])
@pytest.mark.parametrize(("new", "past"), [(1, 0), (7, 0), (1, 9), (5, 9)])
def test_against_its_definition(form: object, new: int, past: int) -> None:
    tensors = case(new, past)
    got = form(*tensors, NOPE)  # type: ignore[operator]
    assert relative_gap(got, by_definition(*tensors)) < FLOAT32["mla"]


def test_query_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = case(23, 4)
    whole = mla_expanded(*tensors, NOPE)
    monkeypatch.setattr(reference, "QUERY_BLOCK", 5)
    assert relative_gap(mla_expanded(*tensors, NOPE), whole) < FLOAT32["mla"]


def test_continuation_equals_the_whole() -> None:
    q, entries, kv_b = case(12)
    whole = mla_expanded(q, entries, kv_b, NOPE)
    for cut in (1, 5, 11):
        first = mla_expanded(q[:cut], entries[:cut], kv_b, NOPE)
        rest = mla_expanded(q[cut:], entries, kv_b, NOPE)
        assert relative_gap(torch.cat([first, rest]), whole) < FLOAT32["mla"]


def test_rows_after_the_last_are_never_read() -> None:
    """A cache buffer is longer than what it holds; its unused rows may be anything."""
    q, entries, kv_b = case(4, 3)
    buffer = torch.full((20, RANK + SHARED), float("nan"))
    buffer[:7] = entries
    assert torch.equal(mla_absorbed(q, buffer[:7], kv_b, NOPE), mla_absorbed(q, entries, kv_b, NOPE))


@pytest.mark.parametrize("form", [mla_expanded, mla_absorbed])
def test_bfloat16_rounds_near_float32(form: object) -> None:
    tensors = case(9, 3, torch.bfloat16)
    got = form(*tensors, NOPE)  # type: ignore[operator]
    wide = form(*(x.float() for x in tensors), NOPE)  # type: ignore[operator]
    assert got.dtype == torch.bfloat16
    # expanding rounds keys and values to bfloat16, and a score of order 10 moves by its rounding
    assert relative_gap(got.float(), wide) < 0.05


def test_gradients() -> None:
    leaves = [x.double().requires_grad_() for x in case(5, 2)]
    for form in (mla_expanded, mla_absorbed):
        assert torch.autograd.gradcheck(lambda q, e, w, form=form: form(q, e, w, NOPE), leaves, fast_mode=True)
