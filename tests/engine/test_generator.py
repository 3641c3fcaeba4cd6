"""The generation loop against a scripted model: chunks, stops, limits, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import cast

import pytest
import torch
from torch import Tensor

from openk3.engine.generator import Generator
from openk3.errors import CapacityError, ConfigError, NumericsError
from openk3.model.config import K3Config
from openk3.model.presets import preset
from openk3.model.state import SequenceState
from openk3.protocol.sampling import SamplingParams

VOCAB = 32
GREEDY = SamplingParams(temperature=0.0)


class History:
    """The scripted model's state: the ids it has seen, and in which portions."""

    def __init__(self) -> None:
        self.portions: list[list[int]] = []


class CountingModel:
    """Prefers the id after the last one, wrapping around; ``flat`` makes all ids equally likely."""

    def __init__(self, *, context: int = 1000, flat: bool = False, spoiled_by: int | None = None) -> None:
        tiny = preset("mini4")
        ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "media_placeholder_token_id": None}
        self.config: K3Config = replace(tiny, vocab_size=VOCAB, max_position_embeddings=context, **ids)
        self.flat = flat
        self.spoiled_by = spoiled_by
        self.states: list[History] = []

    def new_state(self) -> SequenceState:
        self.states.append(History())
        return cast(SequenceState, self.states[-1])

    def __call__(
        self, input_ids: Tensor, lengths: Sequence[int], states: Sequence[SequenceState], *, last_only: bool
    ) -> Tensor:
        assert last_only and list(lengths) == [input_ids.numel()] and torch.is_inference_mode_enabled()
        history = cast(History, states[0])
        history.portions.append(input_ids.tolist())
        logits = torch.zeros(1, VOCAB)
        if not self.flat:
            logits[0, (int(input_ids[-1]) + 1) % VOCAB] = 5.0
        if self.spoiled_by in input_ids.tolist():
            logits[0, 3] = float("nan")
        return logits


def generate(model: CountingModel, prompt: Sequence[int], params: SamplingParams, **options: int) -> list[int]:
    return [output.token_id for output in Generator(model, **options).stream(prompt, params)]


def test_prompt_goes_in_by_chunks_and_tokens_one_by_one() -> None:
    model = CountingModel()
    tokens = generate(model, [4, 5, 6, 7, 8], replace(GREEDY, max_tokens=3), prefill_chunk=2)
    assert tokens == [9, 10, 11]
    # The last token is never fed back: nobody asked for what comes after it.
    assert model.states[0].portions == [[4, 5], [6, 7], [8], [9], [10]]


def test_a_stop_token_is_the_last_output() -> None:
    outputs = list(Generator(CountingModel(), stop_token_ids=[7]).stream([4], GREEDY))
    assert [(o.token_id, o.finish_reason) for o in outputs] == [(5, None), (6, None), (7, "stop")]


def test_a_request_adds_its_own_stop_tokens() -> None:
    generator = Generator(CountingModel(), stop_token_ids=[20])
    assert [o.token_id for o in generator.stream([4], replace(GREEDY, stop_token_ids=(6,)))] == [5, 6]
    assert [o.token_id for o in generator.stream([18], replace(GREEDY, stop_token_ids=(6,)))] == [19, 20]


def test_a_stop_token_at_the_limit_counts_as_stop() -> None:
    params = replace(GREEDY, max_tokens=2)
    assert [o.finish_reason for o in Generator(CountingModel(), stop_token_ids=[6]).stream([4], params)][-1] == "stop"
    assert [o.finish_reason for o in Generator(CountingModel()).stream([4], params)] == [None, "length"]


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 4), (3, 3), (9, 4)])
def test_the_context_limits_prompt_and_answer_together(max_tokens: int | None, expected: int) -> None:
    outputs = list(Generator(CountingModel(context=10)).stream(range(6), replace(GREEDY, max_tokens=max_tokens)))
    assert len(outputs) == expected
    assert outputs[-1].finish_reason == "length"


def test_a_prompt_that_fills_the_context_is_refused_before_anything_is_computed() -> None:
    model = CountingModel(context=10)
    with pytest.raises(CapacityError, match="the prompt has 10 tokens, expected fewer than the model's context of 10"):
        Generator(model).stream(range(10), GREEDY)
    assert model.states == []


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "the prompt is empty"), ([3, 32], "prompt token 1 is 32"), ([-1], "prompt token 0 is -1")],
)
def test_prompts_that_make_no_sense_are_refused_at_once(prompt: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Generator(CountingModel()).stream(prompt, GREEDY)


def test_seeds_belong_to_the_request() -> None:
    generator = Generator(CountingModel(flat=True))
    params = SamplingParams(seed=5, max_tokens=8)
    alone = [o.token_id for o in generator.stream([4], params)]
    interleaved = list(zip(generator.stream([4], params), generator.stream([4], replace(params, seed=6)), strict=True))
    assert [first.token_id for first, _ in interleaved] == alone
    assert [second.token_id for _, second in interleaved] != alone


def test_without_a_seed_two_runs_differ() -> None:
    generator = Generator(CountingModel(flat=True))
    # Equal by chance once in 32^40 runs.
    runs = [[o.token_id for o in generator.stream([4], SamplingParams(max_tokens=40))] for _ in range(2)]
    assert runs[0] != runs[1]


def test_sequences_do_not_share_a_state() -> None:
    model = CountingModel()
    generator = Generator(model)
    first, second = generator.stream([4], GREEDY), generator.stream([9], GREEDY)
    for _ in range(3):
        next(first)
        next(second)
    assert [history.portions for history in model.states] == [[[4], [5], [6]], [[9], [10], [11]]]


def test_between_tokens_the_caller_is_not_left_in_inference_mode() -> None:
    stream = Generator(CountingModel()).stream([4], GREEDY)
    next(stream)
    assert not torch.is_inference_mode_enabled()


def test_stopping_early_costs_no_further_step() -> None:
    model = CountingModel()
    list(islice(Generator(model).stream([4], GREEDY), 2))
    assert model.states[0].portions == [[4], [5]]


def test_logits_that_are_not_finite_end_the_stream_with_an_error() -> None:
    stream = Generator(CountingModel(spoiled_by=6)).stream([4], GREEDY)
    assert [next(stream).token_id, next(stream).token_id] == [5, 6]
    with pytest.raises(NumericsError, match="token 3"):
        next(stream)
