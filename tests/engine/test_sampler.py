"""One row at a time: the reference's token at every setting, log-probabilities, masks, seeds, guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from openk3.engine.sampler import RowSampler, logit_rows
from openk3.errors import ConfigError, NumericsError
from openk3.ops.sampling import reference
from openk3.ops.sampling.uniform import uniform
from openk3.protocol.sampling import SamplingParams

VOCAB = 300
STOP = 7
GREEDY = SamplingParams(temperature=0.0)


def random_logits(seed: int, *shape: int, spread: float = 3.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def sampler(
    params: SamplingParams, prompt: Sequence[int] = (), said: Sequence[int] = (), size: int = VOCAB
) -> RowSampler:
    made = RowSampler(params, prompt, [STOP] if size > STOP else [], size)
    for token in said:
        made.append(token)
    return made


def choose(params: SamplingParams, logits: Tensor, said: Sequence[int] = (), allowed: Tensor | None = None) -> int:
    return sampler(params, said=said, size=logits.numel()).choose(logit_rows(logits[None])[0], allowed).token_id


ids = st.lists(st.integers(0, VOCAB - 1), max_size=12)
params_of_any_kind = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.05, 3), st.just(1e-30)),
    top_k=st.one_of(st.just(0), st.integers(1, 400)),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
    presence_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
    frequency_penalty=st.one_of(st.just(0.0), st.floats(-2, 2)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2)),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=3),
    seed=st.integers(0, 2**64 - 1),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.sampled_from([(), (0, 299)]),
)


@settings(max_examples=300)
@given(
    params=params_of_any_kind,
    prompt=ids,
    said=ids,
    seed=st.integers(0, 999),
    density=st.sampled_from([None, 0.02, 0.5]),
)
def test_the_token_is_the_references(
    params: SamplingParams, prompt: list[int], said: list[int], seed: int, density: float | None
) -> None:
    logits = random_logits(seed, VOCAB)
    possible = np.random.default_rng(seed).random(VOCAB) < (2.0 if density is None else density)
    possible[11] = True
    allowed = None if density is None else torch.from_numpy(possible.copy())
    if len(said) < params.min_tokens:
        possible[[STOP, *params.stop_token_ids]] = False
    adjusted = reference.adjust(logits.numpy(), params, prompt, said)
    assert params.seed is not None
    expected = reference.sample(adjusted, params, uniform(params.seed, len(said)), possible)
    given_mask = torch.empty(0) if allowed is None else allowed.clone()
    chosen = sampler(params, prompt, said).choose(logit_rows(logits[None])[0], allowed)
    assert chosen.token_id == expected
    assert allowed is None or torch.equal(allowed, given_mask)  # the caller's mask is left as it was
    wide = logits.double()
    assert chosen.logprob == pytest.approx(float(wide[expected] - wide.logsumexp(0)), abs=1e-9)


@pytest.mark.parametrize(
    "setting", [{"temperature": 0.0}, {}, {"top_p": 0.95}, {"temperature": 0.7, "top_k": 40}], ids=str
)
def test_a_row_is_the_same_whatever_rows_are_beside_it(setting: dict[str, Any]) -> None:
    logits = random_logits(1, 9, 1003)  # no row but the first begins at a multiple of a vector's length
    made = sampler(SamplingParams(seed=5, top_logprobs=4, **setting), size=1003)
    alone = [made.choose(logit_rows(row[None].clone())[0]) for row in logits]
    for num_rows in range(1, 10):
        together = [made.choose(row) for row in logit_rows(logits[:num_rows])]
        assert together == alone[:num_rows]
    backwards = [made.choose(row) for row in logit_rows(logits.flip(0))]
    assert backwards == alone[::-1]


def test_rows_may_lie_anywhere_in_memory_and_in_lower_precision() -> None:
    logits = random_logits(2, 50, 6).to(torch.bfloat16).requires_grad_()
    for row, values in zip(logit_rows(logits.T), logits.T, strict=True):
        assert torch.equal(row.values, values.float())


def test_the_likeliest_alternatives_come_in_order() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, -5.0])
    chosen = sampler(replace(GREEDY, top_logprobs=4), size=5).choose(logit_rows(logits[None])[0])
    assert [token for token, _ in chosen.alternatives] == [1, 3, 2, 0]
    expected = logits.double().log_softmax(0)
    for token, logprob in (*chosen.alternatives, (chosen.token_id, chosen.logprob)):
        assert logprob == pytest.approx(float(expected[token]), abs=1e-12)
    assert chosen.alternatives[0][1] == chosen.logprob


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_alternatives_as_asked_for_or_as_there_are(count: int) -> None:
    for size in (9, 4000):
        row = logit_rows(random_logits(3, 1, size))[0]
        alternatives = sampler(SamplingParams(top_logprobs=count, seed=1), size=size).choose(row).alternatives
        expected = row.values.sort(descending=True, stable=True).indices[:count]
        assert [token for token, _ in alternatives] == expected.tolist()


def test_settings_do_not_change_what_is_reported() -> None:
    logits = random_logits(4, VOCAB)
    best = int(logits.argmax())
    bent = replace(GREEDY, logit_bias={best: -100.0}, repetition_penalty=2.0, top_logprobs=1)
    chosen = sampler(bent, prompt=[1, 2], said=[3]).choose(logit_rows(logits[None])[0])
    assert chosen.token_id != best
    ((token, logprob),) = chosen.alternatives
    assert token == best
    assert logprob == pytest.approx(float(logits.double().log_softmax(0)[best]), abs=1e-9)


def test_stops_are_not_chosen_before_the_least_number_of_tokens() -> None:
    logits = torch.zeros(VOCAB)
    logits[[STOP, 9, 5]] = torch.tensor([9.0, 8.0, 7.0])
    params = replace(GREEDY, min_tokens=2, stop_token_ids=(9,))
    said: list[int] = []
    for expected in (5, 5, STOP):
        said.append(choose(params, logits, said))
        assert said[-1] == expected
    for seed in range(50):
        assert choose(replace(params, temperature=1.0, seed=seed), logits) not in (STOP, 9)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_and_penalties_act_together(temperature: float) -> None:
    logits = torch.zeros(VOCAB)
    logits[[3, 4, 5]] = torch.tensor([50.0, 49.0, 48.0])
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[[4, 5, 6]] = True
    params = SamplingParams(temperature=temperature, presence_penalty=2.0, top_k=1, seed=1)
    assert choose(params, logits, [], allowed) == 4
    assert choose(params, logits, [4], allowed) == 5
    assert choose(replace(params, logit_bias={6: 100.0}), logits, [4], allowed) == 6


def test_a_bias_cannot_reach_what_is_not_allowed() -> None:
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[8] = True
    params = SamplingParams(logit_bias={8: -1e308, 9: 1e308}, seed=0)
    assert choose(params, random_logits(5, VOCAB), [], allowed) == 8


def test_nothing_possible_says_why() -> None:
    nothing, stop_only = torch.zeros(2, VOCAB, dtype=torch.bool)
    stop_only[STOP] = True
    with pytest.raises(ConfigError, match="the grammar allows none"):
        choose(GREEDY, random_logits(6, VOCAB), [], nothing)
    with pytest.raises(ConfigError, match="only stop tokens are possible after 1 tokens, but min_tokens is 3"):
        choose(replace(GREEDY, min_tokens=3), random_logits(6, VOCAB), [1], stop_only)
    assert choose(replace(GREEDY, min_tokens=3), random_logits(6, VOCAB), [1, 1, 1], stop_only) == STOP


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 123, VOCAB - 1])
def test_a_number_that_is_not_finite_is_named(wrong: float, place: int) -> None:
    logits = random_logits(7, 2, VOCAB)
    logits[0, place] = wrong
    row, healthy = logit_rows(logits)
    for params in (GREEDY, SamplingParams(seed=1), SamplingParams(seed=1, top_p=0.5)):
        with pytest.raises(NumericsError, match=f"1 of {VOCAB} logits are not finite; the first is token {place} "):
            sampler(params).choose(row)
        assert sampler(params).choose(healthy).token_id < VOCAB
        assert 0 <= sampler(params).guess(logits[0], 0) < VOCAB


@pytest.mark.parametrize(
    ("params", "stops"),
    [(SamplingParams(logit_bias={300: 1.0}), ()), (SamplingParams(stop_token_ids=(300,)), ()), (GREEDY, (300,))],
)
def test_ids_beyond_the_vocabulary_are_refused(params: SamplingParams, stops: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected ids from 0 to 299"):
        RowSampler(params, (), stops, VOCAB)


def test_a_seed_gives_the_same_tokens_and_choosing_twice_changes_nothing() -> None:
    logits = random_logits(8, 40, VOCAB, spread=1.0)
    answers = []
    for _ in range(2):
        made = sampler(SamplingParams(seed=12))
        for row in logit_rows(logits):
            first, again = made.choose(row), made.choose(row)
            assert first == again
            made.append(first.token_id)
            answers.append(first.token_id)
    assert answers[:40] == answers[40:]
    assert len(set(answers)) > 20


def test_without_a_seed_each_answer_has_its_own() -> None:
    assert len({sampler(SamplingParams()).seed for _ in range(20)}) == 20


@pytest.mark.parametrize("allowed", [None, [True, True, False, False, True, True]], ids=["all", "masked"])
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_p": 0.8},
        {"top_k": 3},
        {"top_k": 2**64 - 1},
        {"min_p": 0.2},
        {"top_k": 4, "top_p": 0.9, "min_p": 0.1, "temperature": 1.3},
        {"logit_bias": {3: 2.5, 2: -1.0}},
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_probability(setting: dict[str, Any], allowed: list[bool] | None) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 1.5, 0.5])
    row = logit_rows(logits[None])[0]
    mask = None if allowed is None else torch.tensor(allowed)
    counts = np.zeros(6)
    for seed in range(200):
        made = sampler(SamplingParams(seed=seed, **setting), size=6)
        for _ in range(20):  # places of an answer
            token = made.choose(row, mask).token_id
            counts[token] += 1
            made.append(token)
    expected = 4000 * plain_probabilities(logits, setting, allowed or [True] * 6)
    likely = expected > 0
    assert counts[~likely].sum() == 0
    # Chi-square of 5 degrees of freedom exceeds 20.5 once in a thousand; the draws are fixed.
    assert ((counts - expected)[likely] ** 2 / expected[likely]).sum() < 20.5


def plain_probabilities(logits: Tensor, setting: dict[str, Any], allowed: list[bool]) -> npt.NDArray[np.float64]:
    """Say each step as its definition does: bias, mask, temperature, min-p, top-k, top-p."""
    values: npt.NDArray[np.float64] = logits.double().numpy().copy()
    for token, bias in setting.get("logit_bias", {}).items():
        values[token] += bias
    weights: npt.NDArray[np.float64] = np.exp(values / setting.get("temperature", 1.0)) * allowed
    weights[weights < setting.get("min_p", 0.0) * weights.max()] = 0.0
    order = np.argsort(-weights, kind="stable")
    weights[order[min(setting.get("top_k", 6), 6) :]] = 0.0
    shares = weights[order] / weights.sum()
    weights[order[shares.cumsum() - shares >= setting.get("top_p", 1.0)]] = 0.0
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


@settings(max_examples=100)
@given(params=params_of_any_kind, seed=st.integers(0, 999))
def test_a_guess_is_what_will_be_chosen(params: SamplingParams, seed: int) -> None:
    plain = replace(
        params, min_tokens=0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, logit_bias={}
    )
    logits = random_logits(seed, 4, VOCAB)
    made = sampler(plain, said=[1, 2])
    guesses = [made.guess(row, offset) for offset, row in enumerate(logits)]
    for guess, row in zip(guesses, logit_rows(logits), strict=True):
        assert made.choose(row).token_id == guess
        made.append(guess)
