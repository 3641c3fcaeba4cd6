"""Sampling against distributions worked out by hand, and its promises: seeds, ties, no silent NaN."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openk3.errors import NumericsError
from openk3.ops.sampling.reference import draw, probabilities, sample

# Probabilities 1/15, 8/15, 2/15, 4/15: every partial sum is exact enough to name.
LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0]) * math.log(2.0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_greedy_takes_the_lowest_id_among_equals_and_no_random_number() -> None:
    generator = seeded()
    before = generator.get_state()
    token, logprob = sample(torch.tensor([1.0, 5.0, 5.0, 0.0]), temperature=0.0, generator=generator)
    assert token == 1
    assert logprob == pytest.approx(5.0 - math.log(math.e + 2 * math.exp(5.0) + 1.0), abs=1e-12)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "expected"),
    [
        (1.0, 1.0, 0, [1, 8, 2, 4]),
        (0.5, 1.0, 0, [1, 64, 4, 16]),
        (1.0, 1.0, 2, [0, 8, 0, 4]),
        (1.0, 1.0, 4, [1, 8, 2, 4]),
        (1.0, 1.0, 9, [1, 8, 2, 4]),
        (1.0, 0.5, 0, [0, 1, 0, 0]),
        (1.0, 0.54, 0, [0, 8, 0, 4]),
        (1.0, 0.81, 0, [0, 8, 2, 4]),
        (1.0, 0.95, 0, [1, 8, 2, 4]),
        (1.0, 0.6, 2, [0, 1, 0, 0]),  # after top-k the first has 2/3, so it suffices alone
        (1.0, 1e-9, 0, [0, 1, 0, 0]),
        (1e-6, 1.0, 0, [0, 1, 0, 0]),
    ],
)
def test_distribution(temperature: float, top_p: float, top_k: int, expected: list[float]) -> None:
    probs = probabilities(LOGITS, temperature=temperature, top_p=top_p, top_k=top_k)
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(probs, wanted / wanted.sum(), rtol=0, atol=1e-7)
    assert torch.equal(probs == 0, wanted == 0) or temperature < 1e-3


def test_top_k_prefers_lower_ids_among_equals() -> None:
    probs = probabilities(torch.tensor([1.0, 2.0, 1.0, 1.0]), temperature=1.0, top_k=2)
    assert (probs > 0).tolist() == [True, True, False, False]


def test_draws_follow_the_distribution() -> None:
    generator = seeded(7)
    counts = torch.zeros(4)
    for _ in range(3000):
        counts[sample(LOGITS, generator=generator)[0]] += 1
    # Four standard deviations of the largest count, and the seed is fixed.
    assert (counts / 3000 - torch.tensor([1, 8, 2, 4]) / 15).abs().max() < 4 * math.sqrt(8 / 15 * 7 / 15 / 3000)


def test_impossible_tokens_are_never_drawn() -> None:
    probs = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0], dtype=torch.float64)
    generator = seeded(1)
    assert {draw(probs, generator) for _ in range(100)} == {1, 3}


def test_a_draw_at_the_very_top_stays_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(1.0, dtype=torch.float64))
    assert draw(torch.tensor([0.3, 0.7, 0.0], dtype=torch.float64), seeded()) == 1


def test_the_same_seed_gives_the_same_tokens_and_another_gives_others() -> None:
    logits = torch.zeros(1000)
    runs = [[sample(logits, generator=g)[0] for _ in range(20)] for g in (seeded(3), seeded(3), seeded(4))]
    assert runs[0] == runs[1] != runs[2]


def test_logprob_is_the_models_own_whatever_the_settings() -> None:
    token, logprob = sample(LOGITS, temperature=0.3, top_k=1, generator=seeded())
    assert (token, logprob) == (1, pytest.approx(math.log(8 / 15), abs=1e-6))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error(wrong: float, temperature: float) -> None:
    with pytest.raises(NumericsError, match="1 of 3 logits are not finite; the first is token 1"):
        sample(torch.tensor([0.0, wrong, 1.0]), temperature=temperature, generator=seeded())


@given(
    logits=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.01, 5),
    top_p=st.floats(0.001, 1),
    top_k=st.integers(0, 45),
)
def test_any_setting_keeps_a_distribution_that_holds_the_most_likely_token(
    logits: list[float], temperature: float, top_p: float, top_k: int
) -> None:
    row = torch.tensor(logits)
    probs = probabilities(row, temperature=temperature, top_p=top_p, top_k=top_k)
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-9)
    assert float(probs[row.argmax()]) == float(probs.max()) > 0
    assert int((probs > 0).sum()) <= (top_k or len(logits))
