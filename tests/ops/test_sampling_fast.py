"""The fast forms of sampling give the reference's results to the last bit: penalties, the leading tokens, draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openk3.ops.sampling import leading as fast
from openk3.ops.sampling import reference
from openk3.ops.sampling.penalties import Penalties
from openk3.ops.sampling.reference import LARGEST, Row
from openk3.protocol.sampling import SamplingParams

ALMOST_ONE = 1.0 - 2.0**-53
EDGES = (0.0, 0.5, 0.95, 0.999999, ALMOST_ONE)


def make_row(seed: int, size: int, spread: float, levels: int) -> Row:
    """Normal logits; with ``levels`` only so many different ones, among them the largest there are and both zeros."""
    values = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    if levels:
        choices = np.array([0.0, -0.0, spread, -spread, LARGEST, -LARGEST, 1.0], dtype=np.float32)[:levels]
        values = np.random.default_rng(seed).choice(choices, size)
    return values


rows = st.builds(
    make_row,
    seed=st.integers(0, 2**32),
    size=st.integers(1, 2000),
    spread=st.sampled_from([0.01, 0.5, 2.0, 6.0, 50.0]),
    levels=st.sampled_from([0, 0, 0, 1, 2, 4, 7]),
)
chances = st.one_of(st.sampled_from(EDGES), st.floats(0, ALMOST_ONE))
choices = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(1.0), st.floats(0.05, 3), st.sampled_from([5e-324, 1e-30, 1e30, 1e300])),
    top_k=st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 2500)),
    top_p=st.one_of(st.just(1.0), st.just(0.95), st.floats(1e-9, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 1e-3)),
)


@settings(max_examples=400)
@given(values=rows, params=choices, number=chances)
@example(make_row(0, 1, 1.0, 1), SamplingParams(), ALMOST_ONE)
@example(make_row(0, 2000, 1.0, 1), SamplingParams(top_p=0.5), 0.9)  # all are equal
@example(make_row(1, 2000, 0.01, 0), SamplingParams(min_p=1e-9), ALMOST_ONE)  # beyond the first section
def test_the_same_token_as_the_reference(values: Row, params: SamplingParams, number: float) -> None:
    assert fast.sample(values, params, number) == reference.sample(values, params, number)
    known = reference.boltzmann(values, params.temperature)
    assert fast.sample(values, params, number, known) == reference.sample(values, params, number)


@settings(max_examples=200)
@given(values=rows, params=choices, number=chances, small=st.integers(1, 30))
def test_sections_of_any_size_give_the_same_token(
    values: Row, params: SamplingParams, number: float, small: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast, "_SECTIONS", (small, 3 * small, 10 * small))
        assert fast.sample(values, params, number) == reference.sample(values, params, number)


@pytest.mark.parametrize("spread", [3.0, 0.3])
@pytest.mark.parametrize(
    "setting",
    [{}, {"top_p": 0.95}, {"top_p": 0.95, "temperature": 0.6}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.02}],
    ids=str,
)
def test_the_same_token_as_the_reference_in_the_published_vocabulary(spread: float, setting: dict[str, Any]) -> None:
    values, params = make_row(7, 163_840, spread, 0), SamplingParams(**setting)
    order, weights, total = reference.restrict(values, params)
    for number in EDGES:
        cumulative = weights.cumsum()
        index = min(int((cumulative <= number * total).sum()), order.size - 1)
        assert fast.sample(values, params, number) == order[index]


@given(values=rows, count=st.integers(1, 2500))
def test_leading_is_the_start_of_the_stable_order(values: Row, count: int) -> None:
    found = fast.leading(values, count)
    assert found.size >= min(count, values.size)
    assert found.tolist() == np.argsort(-values, kind="stable")[: found.size].tolist()


def test_leading_sorts_few_tokens_of_many() -> None:
    # Not even with all equal neighbours, which share their groups with nobody alike.
    for values in (make_row(1, 163_840, 1.0, 0), np.sort(make_row(1, 163_840, 1.0, 0))):
        assert fast.leading(values, 256).size < 512


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 50),
    repetition=st.one_of(st.just(1.0), st.floats(0.5, 2), st.sampled_from([1e-300, 1e300])),
    presence=st.one_of(st.just(0.0), st.floats(-2, 2)),
    frequency=st.one_of(st.just(0.0), st.floats(-2, 2)),
    bias=st.dictionaries(st.integers(0, 49), st.one_of(st.floats(-100, 100), st.sampled_from([1e308, -1e308]))),
    num_prompt=st.integers(0, 20),
    num_generated=st.integers(0, 20),
)
def test_penalties_equal_the_reference(
    seed: int,
    size: int,
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
    num_prompt: int,
    num_generated: int,
) -> None:
    random = np.random.default_rng(seed)
    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias={token: number for token, number in bias.items() if token < size},
    )
    prompt_ids, generated_ids = (random.integers(0, size, count).tolist() for count in (num_prompt, num_generated))
    penalties = Penalties(params, prompt_ids, size)
    for token in generated_ids:
        penalties.append(token)
    values = make_row(seed, size, 5.0, seed % 8)
    before = values.copy()
    adjusted = penalties.adjust(values)
    assert adjusted.dtype == np.float32
    assert adjusted.tolist() == reference.adjust(values, params, prompt_ids, generated_ids).tolist()
    assert values.tolist() == before.tolist()


def test_without_penalties_a_row_is_not_even_copied() -> None:
    values = make_row(0, 9, 1.0, 0)
    assert Penalties(SamplingParams(), [1, 2], 9).adjust(values) is values
