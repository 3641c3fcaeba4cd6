"""Drafts of MTP layers: token by token as in one go, from checkpoints, and without any effect on answers."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import pytest
import torch
from torch import Tensor

from openk3.checkpoint.random_init import init_parameters
from openk3.engine.sampler import RowSampler
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow
from openk3.engine.speculative.mtp import MTPDrafter, _Rows
from openk3.errors import ConfigError
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from tests.engine.harness import build, ids
from tests.engine.speculative.cases import (
    ScriptedSampler,
    check_answers,
    few_words,
    spoil,
    tensor_bytes,
    writing,
)

DEPTH = 5


@cache
def with_layers(num_layers: int) -> K3ForCausalLM:
    model = K3ForCausalLM(replace(preset("mtp5"), num_nextn_predict_layers=num_layers), dtype=torch.float32)
    init_parameters(model, seed=3)
    return model.eval()


def chain(model: K3ForCausalLM, mix: Tensor, text: Sequence[int], position: int, depth: int) -> list[Tensor]:
    """Return the logits of ``depth`` guesses after ``position`` computed tokens, all of them fed in one go."""
    num_layers, state = len(model.config.mtp_layers), model.new_state()
    hidden, rows = mix[:position], []
    for step in range(depth):
        hidden = hidden if step < num_layers else hidden[-1:]
        last = position + step + 1
        following = torch.tensor(text[last - hidden.shape[0] : last])
        hidden, logits = model.draft(hidden, following, [hidden.shape[0]], [state], step=step)
        rows.append(logits[-1])
    return rows


def portions(length: int, seed: int) -> Iterator[tuple[int, int]]:
    rng, start = random.Random(seed), 0
    while start < length:
        count = min(rng.choice([1, 2, 5, 40, 200]), length - start)
        yield start, start + count
        start += count


@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize(("seed", "asked_every"), [(0, 1), (1, 1), (2, 9)])
def test_portions_and_company_give_what_one_go_gives(num_layers: int, seed: int, asked_every: int) -> None:
    model, drafter = with_layers(num_layers), MTPDrafter(with_layers(num_layers), DEPTH)
    texts = [ids(300, seed), ids(140, seed + 10)]
    with torch.inference_mode():
        mixes = [model.mixed(torch.tensor(text), [len(text)], [model.new_state()]) for text in texts]
        sequences = [writing(text[:1]) for text in texts]
        steps = zip(portions(290, seed), [*portions(130, seed + 1), *[(130, 130)] * 300], strict=False)
        for number, spans in enumerate(steps):
            rows = []
            for sequence, text, mix, (start, end) in zip(sequences, texts, mixes, spans, strict=True):
                sequence.tokens = list(text[: end + 1])
                rows.append(ComputedRow(sequence, start, mix[start:end]))
            drafter.computed([row for row in rows if row.mix.shape[0]])
            for sequence, (_, end) in zip(sequences, spans, strict=True):
                sequence.position = end
            if number % asked_every == 0:
                check(drafter, model, sequences, texts, mixes)


def check(
    drafter: MTPDrafter,
    model: K3ForCausalLM,
    sequences: list[EngineSequence],
    texts: list[tuple[int, ...]],
    mixes: list[Tensor],
) -> None:
    samplers = [ScriptedSampler(t[s.position + 1 :][:DEPTH]) for s, t in zip(sequences, texts, strict=True)]
    for sequence, sampler in zip(sequences, samplers, strict=True):
        sequence.sampler = cast(RowSampler, sampler)
    assert drafter.propose(sequences, [DEPTH, 2]) == [samplers[0].script, samplers[1].script[:2]]
    for sequence, sampler, text, mix in zip(sequences, samplers, texts, mixes, strict=True):
        expected = chain(model, mix, text, sequence.position, len(sampler.rows))
        torch.testing.assert_close(torch.stack(sampler.rows), torch.stack(expected), rtol=0, atol=0)


def test_a_prompt_whose_next_tokens_are_known_is_read_ahead() -> None:
    model, text = with_layers(2), ids(100, 1)
    drafter, sequence = MTPDrafter(model, DEPTH), writing(text[:91])
    with torch.inference_mode():
        mix = model.mixed(torch.tensor(text), [100], [model.new_state()])
        for start, end in ((0, 32), (32, 64), (64, 90)):
            drafter.computed([ComputedRow(sequence, start, mix[start:end])])
        other = writing(text[:2])
        drafter.computed([ComputedRow(other, 0, mix[:1])])
        check(drafter, model, [sequence, other], [text, text], [mix, mix])


def test_from_a_checkpoint_on_it_drafts_from_what_it_sees() -> None:
    model, text = build("mtp5"), ids(60, 2)
    drafter, sampler = MTPDrafter(model, DEPTH), ScriptedSampler(text[51:])
    sequence = writing(text[:51], sampler)
    with torch.inference_mode():
        mix = model.mixed(torch.tensor(text), [60], [model.new_state()])
        drafter.computed([ComputedRow(sequence, 32, mix[32:50])])
        drafter.propose([sequence], [DEPTH])
        expected = chain(model, mix[32:], text[32:], 50 - 32, DEPTH)
    torch.testing.assert_close(torch.stack(sampler.rows), torch.stack(expected), rtol=0, atol=0)


def test_a_gap_starts_it_anew_and_an_unseen_end_gives_no_draft() -> None:
    model, text = build("mtp5"), ids(60, 2)
    drafter, sequence = MTPDrafter(model, DEPTH), writing(text[:51])
    assert drafter.propose([sequence], [3]) == [[]]
    mix = torch.zeros(60, model.config.hidden_size)
    drafter.computed([ComputedRow(sequence, 0, mix[:20])])
    assert drafter.propose([sequence], [3]) == [[]]
    drafter.computed([ComputedRow(sequence, 40, mix[40:50])])
    assert drafter._texts[sequence].first == 40
    assert [len(guesses) for guesses in drafter.propose([sequence], [3])] == [3]
    assert drafter.propose([sequence], [0]) == [[]]


@pytest.mark.parametrize("preempts", [False, True])
def test_answers_are_the_plain_ones(preempts: bool) -> None:
    model = few_words("mtp5")
    drafter = MTPDrafter(model, 4)
    metrics = check_answers(model, drafter, preempts=preempts)
    assert 0 < metrics.accepted < metrics.drafted
    assert not drafter._texts


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_layers_that_give_no_numbers_change_nothing(value: float) -> None:
    model = copy.deepcopy(build("mtp5"))
    spoil(model.model.layers[model.config.mtp_layers[0]], value)
    metrics = check_answers(model, MTPDrafter(model, 4))
    assert metrics.drafted > 0


def test_mixes_that_are_no_numbers_are_borne() -> None:
    model, drafter = build("mtp5"), MTPDrafter(build("mtp5"), 3)
    sound, broken = writing(ids(20, 1)), writing(ids(20, 2))
    mix = torch.ones(19, model.config.hidden_size)
    drafter.computed([ComputedRow(broken, 0, mix * float("nan")), ComputedRow(sound, 0, mix)])
    together = drafter.propose([broken, sound], [3, 3])
    assert all(0 <= token < 256 for token in together[0]) and len(together[0]) == 3
    alone = MTPDrafter(model, 3)
    alone.computed([ComputedRow(sound, 0, mix)])
    assert alone.propose([sound], [3]) == together[1:]


def test_a_failed_step_in_which_no_token_was_chosen_is_passed_over() -> None:
    model, drafter = build("mtp5"), MTPDrafter(build("mtp5"), 3)
    sequence = writing(ids(20, 1))
    drafter.computed([ComputedRow(sequence, 0, torch.ones(20, model.config.hidden_size))])
    assert not drafter._texts


def test_rows_that_were_taken_back_are_zeros() -> None:
    rows, kept = _Rows(torch.empty(0, 3)), torch.ones(127, 3)
    rows.append(kept)
    rows.append(torch.full((4, 3), float("nan")))  # into the next block
    rows.truncate(127)
    for length in (127, 128, 256):
        assert torch.equal(rows.padded(length), torch.cat([kept, torch.zeros(length - 127, 3)]))
    rows.append(kept)
    assert torch.equal(rows.padded(254), torch.ones(254, 3))


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("length", [1, 127, 128, 129, 400])
def test_memory_is_within_the_bounds(num_layers: int, length: int) -> None:
    model = with_layers(num_layers)
    drafter, used = MTPDrafter(model, 14), 0

    def measure() -> None:
        nonlocal used
        text = drafter._texts[sequence]
        used = max(used, tensor_bytes([*text.waiting, *(b for rows in text.latents for b in rows._blocks)]))

    sequence = writing(ids(length + 1, 1), ScriptedSampler(on_guess=measure))
    mix = torch.ones(length, model.config.hidden_size)
    for start, end in portions(length, 1):
        drafter.computed([ComputedRow(sequence, start, mix[start:end])])
        measure()
    drafter.propose([sequence], [14])
    measure()
    assert 0 < used <= drafter.bytes_per_sequence + length * drafter.bytes_per_token


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no MTP layer"):
        MTPDrafter(build("mini4"), 4)


def test_while_no_guess_is_wanted_tokens_wait_and_are_read_many_at_once() -> None:
    model, text = with_layers(1), ids(200, 1)
    drafter, sequence, passes = MTPDrafter(model, DEPTH), writing(text[:1]), list[int]()
    hook = drafter._layers[0].register_forward_hook(lambda *_: passes.append(1))
    with torch.inference_mode():
        mix = model.mixed(torch.tensor(text), [200], [model.new_state()])
        for place in range(150):
            sequence.tokens = list(text[: place + 2])
            drafter.computed([ComputedRow(sequence, place, mix[place : place + 1])])
            sequence.position = place + 1
            assert drafter.propose([sequence], [0]) == [[]]
    hook.remove()
    assert len(passes) == 2
