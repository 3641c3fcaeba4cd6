"""Attention residuals: worked values, order does not matter, both forms agree, gradients."""

from __future__ import annotations

import pytest
import torch

from openk3.ops.attn_res import recompute
from openk3.ops.attn_res.reference import mix, pseudo_query, source_logit
from openk3.ops.attn_res.two_phase import merge_partial, mix_stored
from tests.tolerances import FLOAT32

EPS = 1e-5


def random_sources(
    count: int, width: int = 12, tokens: int = 5, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(tokens, width, generator=generator, dtype=dtype) * 2.0**i for i in range(count)]


def random_query(width: int = 12, seed: int = 9) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed))


def test_worked_values() -> None:
    sources = [torch.tensor([row]) for row in ([3.0, 4, 0, 0], [1.0, -1, 1, -1], [0.0, 0, 0, 2])]
    query = pseudo_query(torch.tensor([[0.5, -0.25, 1.0, 0.1]]), torch.tensor([1.0, 2.0, 0.5, 1.0]))
    assert query.tolist() == pytest.approx([0.5, -0.5, 0.5, 0.1])
    logits = [source_logit(source, query, EPS).item() for source in sources]
    assert logits == pytest.approx([-0.199999840, 1.399993000, 0.199999000], abs=1e-6)
    expected = [1.068259144, -0.128008061, 0.665294394, -0.264526348]
    assert mix(sources, query, EPS)[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_order_of_sources_does_not_matter() -> None:
    sources, query = random_sources(5), random_query()
    shuffled = [sources[i] for i in (3, 0, 4, 1, 2)]
    torch.testing.assert_close(mix(shuffled, query, EPS), mix(sources, query, EPS), rtol=0, atol=1e-5)


def test_a_large_source_does_not_win_by_its_size() -> None:
    small, query = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)), random_query(8)
    logit = source_logit(small, query, EPS)
    torch.testing.assert_close(source_logit(1e4 * small, query, EPS), logit, rtol=1e-4, atol=1e-4)


def test_a_zero_query_takes_the_mean() -> None:
    sources = random_sources(4)
    torch.testing.assert_close(mix(sources, torch.zeros(12), EPS), torch.stack(sources).mean(0))


@pytest.mark.parametrize("stored", [1, 2, 8])
def test_two_phase_equals_plain(stored: int) -> None:
    *sources, partial = random_sources(stored + 1)
    queries = [random_query(seed=seed) * 3 for seed in range(4)]
    for query, mixed in zip(queries, mix_stored(sources, queries, EPS), strict=True):
        got = merge_partial(mixed, partial, query, EPS)
        expected = mix([*sources, partial], query, EPS)
        assert (got - expected).abs().max() <= FLOAT32["attn_res"] * expected.abs().max()


@pytest.mark.parametrize("logit", [-80.0, 80.0])
def test_two_phase_survives_extreme_logits(logit: float) -> None:
    sources, partial, query = [torch.ones(1, 4)], -torch.ones(1, 4), torch.full((4,), logit / 4)
    [stored] = mix_stored(sources, [query], EPS)
    expected = mix([*sources, partial], query, EPS)
    torch.testing.assert_close(merge_partial(stored, partial, query, EPS), expected)
    assert torch.isfinite(expected).all()


def test_hand_written_gradient() -> None:
    leaves = [x.requires_grad_() for x in (random_query().double(), *random_sources(3, dtype=torch.float64))]

    def run(query: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        return recompute.mix(sources, query, 1e-2)

    assert torch.autograd.gradcheck(run, leaves)
    query, *sources = leaves
    assert torch.equal(recompute.mix(sources, query, EPS), mix(sources, query, EPS))


def test_bfloat16_is_mixed_in_float32_and_rounded_once() -> None:
    sources, query = [s.bfloat16() for s in random_sources(4)], random_query()
    wide = mix([s.float() for s in sources], query, EPS)
    assert torch.equal(mix(sources, query, EPS), wide.bfloat16())
