"""Drafts of a second model: it is never wrong about itself, reads in portions, and has no effect on answers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from openk3.engine.config import EngineConfig
from openk3.engine.speculative.draft_model import DraftModelDrafter
from openk3.errors import ConfigError
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.model.state import SequenceState
from openk3.protocol.request import Request
from tests.engine.harness import Harness, build, ids, plain
from tests.engine.speculative.cases import (
    GREEDY,
    ScriptedSampler,
    check_answers,
    few_words,
    spoil,
    tensor_bytes,
    writing,
)


class Counting(DraftModelDrafter):
    """Counts the tokens that its model reads."""

    num_read = 0

    def _read(self, portions: Sequence) -> None:
        self.num_read += sum(len(tokens) for _, tokens in portions)
        super()._read(portions)


@pytest.mark.parametrize("preempts", [False, True])
def test_a_model_that_drafts_for_itself_is_always_right(preempts: bool) -> None:
    model = build("tail9")
    drafter = DraftModelDrafter(model, model, 4)
    metrics = check_answers(model, drafter, preempts=preempts)
    assert metrics.accepted == metrics.drafted > 30
    assert not drafter._states


@pytest.mark.parametrize("preempts", [False, True])
def test_answers_are_the_plain_ones(preempts: bool) -> None:
    model = few_words("mini4")
    drafter = DraftModelDrafter(model, few_words("tail9", seed=1), 4)
    metrics = check_answers(model, drafter, preempts=preempts)
    assert 0 < metrics.accepted < metrics.drafted
    assert not drafter._states


def expected_guesses(model: K3ForCausalLM, tokens: Sequence[int], depth: int) -> list[int]:
    request = Request(prompt_ids=tuple(tokens), params=replace(GREEDY, max_tokens=depth))
    return plain(model, request, stop=()).ids


def test_it_guesses_what_its_model_would_say_after_right_and_wrong_guesses() -> None:
    model = build("mini4")
    drafter, sequences = DraftModelDrafter(model, model, 4), [writing(ids(20, 1)), writing(ids(33, 2))]
    for taken in (0, 1, 2, 4, 3):
        guesses = drafter.propose(sequences, [4, 2])
        assert guesses == [expected_guesses(model, s.tokens, d) for s, d in zip(sequences, (4, 2), strict=True)]
        for sequence, row in zip(sequences, guesses, strict=True):
            for token in [*row[:taken], 99]:
                sequence.append(token)


def test_a_long_prompt_is_read_in_portions_and_lets_others_go_first() -> None:
    model, portion = build("mini4"), 64
    drafter = Counting(model, model, 2, portion)
    long, short = writing(ids(2 * portion + 20, 1)), writing(ids(30, 2))
    drafted = []
    for _ in range(3):
        before = drafter.num_read
        guesses = drafter.propose([long, short], [2, 2])
        assert drafter.num_read - before <= portion + 2
        drafted.append([len(row) for row in guesses])
        short.append(guesses[1][0])
    assert drafted == [[0, 2], [0, 2], [2, 2]]


def test_without_depth_nothing_is_read() -> None:
    drafter = Counting(build("mini4"), build("mini4"), 4)
    assert drafter.propose([writing(ids(30, 2))], [0]) == [[]]
    assert drafter.num_read == 0 and not drafter._states


def test_nothing_new_gives_no_draft() -> None:
    drafter, sequence = DraftModelDrafter(build("mini4"), build("mini4"), 4), writing(ids(30, 2))
    assert [len(drafter.propose([sequence], [4])[0]) for _ in range(2)] == [4, 0]


def test_a_released_sequence_is_read_again() -> None:
    drafter, sequence = DraftModelDrafter(build("mini4"), build("mini4"), 4), writing(ids(30, 2))
    first = drafter.propose([sequence], [4])
    drafter.release(sequence)
    drafter.release(sequence)  # one that it does not know is no error
    assert not drafter._states
    assert drafter.propose([sequence], [4]) == first


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_draft_model_that_gives_no_numbers_changes_nothing(value: float) -> None:
    broken = copy.deepcopy(build("mini4"))
    spoil(broken, value)
    metrics = check_answers(build("mini4"), DraftModelDrafter(build("mini4"), broken, 4))
    assert metrics.drafted > 0


def test_the_drafts_of_a_good_draft_model_save_steps() -> None:
    model = build("mini4")
    request = Request(prompt_ids=ids(20, 1), params=replace(GREEDY, max_tokens=50))
    harness = Harness(model, EngineConfig(speculate_depth=4), drafter=DraftModelDrafter(model, model, 4), stop=())
    harness.answer(request)
    assert harness.core.metrics.steps <= 1 + 50 // 5


def state_tensors(state: SequenceState) -> list[Tensor]:
    latents = [cache._buffer for cache in state.mla.values()]
    return [*latents, *(tensor for kda in state.kda.values() for tensor in kda)]


@pytest.mark.parametrize("length", [1, 120, 128, 300])
@pytest.mark.parametrize("name", ["mini4", "tail9"])
def test_memory_is_within_the_bounds(name: str, length: int) -> None:
    drafter = DraftModelDrafter(build(name), build(name), 14)
    held: list[Tensor] = []
    used = 0

    def measure() -> None:
        nonlocal used, held
        now = state_tensors(drafter._states[sequence])
        held = held or now  # the mark's
        used = max(used, tensor_bytes([*held, *now]))

    sequence = writing(ids(length, 1), ScriptedSampler(on_guess=measure))
    drafter.propose([sequence], [14])
    assert 0 < used <= drafter.bytes_per_sequence + length * drafter.bytes_per_token


def test_another_vocabulary_is_refused() -> None:
    other = K3ForCausalLM(replace(preset("mini4"), vocab_size=512), dtype=torch.float32)
    with pytest.raises(ConfigError, match="vocab_size is 512, expected the model's, 256"):
        DraftModelDrafter(build("mini4"), other, 4)
