"""How deep the engine drafts: not where guesses are wrong, fully where they are right, with the plain answer always.

Unusual: the drafters here know the plain answer, so that how often they are right is theirs to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch

from openk3.checkpoint.random_init import init_parameters
from openk3.engine.config import EngineConfig
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams, TokenOutput
from tests.engine.harness import Harness, ids, plain

DEPTH = 4
PROMPT = ids(20, seed=1)
NUM_TOKENS = 180
REQUEST = Request(prompt_ids=PROMPT, params=SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS))


@cache
def model() -> K3ForCausalLM:
    """Make the smallest model with both kinds of layers, as these answers are long."""
    made = K3ForCausalLM(replace(preset("mini4"), layer_kinds=("kda", "mla")), dtype=torch.float32)
    init_parameters(made, seed=0)
    return made.eval()


@cache
def truth() -> tuple[TokenOutput, ...]:
    return plain(model(), REQUEST, stop=()).outputs


class Guesser:
    """Guesses as many tokens as it is asked for: the true one at place i of the answer where ``is_right(i)``."""

    max_depth, bytes_per_token, bytes_per_sequence = 14, 0, 0

    def __init__(self, is_right: Callable[[int], bool]) -> None:
        self._truth, self._is_right = [output.token_id for output in truth()], is_right
        self.asked: list[tuple[int, int]] = []  # place in the answer and depth, step by step

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Guess for each sequence, and note what was asked for."""
        guesses = []
        for sequence, depth in zip(sequences, depths, strict=True):
            first = sequence.num_generated
            self.asked.append((first, depth))
            guesses.append([self._guess(place) for place in range(first, first + depth)])
        return guesses

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        """Take note of nothing."""

    def release(self, sequence: EngineSequence) -> None:
        """Forget nothing."""

    def _guess(self, place: int) -> int:
        return self._truth[place] if self._is_right(place) else (self._truth[place] + 1) % 256


def answer(is_right: Callable[[int], bool]) -> tuple[Harness, Guesser]:
    """Answer once with such a guesser, and assert that the answer is the plain one."""
    guesser = Guesser(is_right)
    harness = Harness(model(), EngineConfig(speculate_depth=DEPTH), drafter=guesser, stop=())
    assert harness.answer(REQUEST) == truth()
    return harness, guesser


def test_who_is_always_wrong_is_hardly_asked() -> None:
    harness, guesser = answer(lambda place: False)
    assert harness.core.metrics.steps >= 160
    assert 0 < sum(depth for _, depth in guesser.asked[:160]) < 20
    assert harness.core.metrics.accepted == 0


def test_who_is_always_right_is_asked_for_as_much_as_allowed() -> None:
    harness, guesser = answer(lambda place: True)
    metrics = harness.core.metrics
    assert metrics.drafted == metrics.accepted > 0
    depths = [depth for place, depth in guesser.asked if place < NUM_TOKENS - DEPTH]
    assert set(depths[20:]) == {DEPTH}
    assert metrics.steps < NUM_TOKENS / 3


def test_who_becomes_right_gets_back_to_the_full_depth() -> None:
    wrong = 60
    _, guesser = answer(lambda place: place >= wrong)
    assert 0 in {depth for place, depth in guesser.asked if place < wrong}
    late = [depth for place, depth in guesser.asked if 150 <= place < NUM_TOKENS - DEPTH]
    assert set(late) == {DEPTH}


class WrongForBatch(Guesser):
    """Right for interactive requests and wrong for the others."""

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Guess, then spoil what is guessed for work that can wait."""
        guesses = super().propose(sequences, depths)
        wrong = [[(token + 1) % 256 for token in draft] for draft in guesses]
        return [w if s.is_batch else g for s, g, w in zip(sequences, guesses, wrong, strict=True)]


def test_each_sequence_has_its_own_depth() -> None:
    guesser = WrongForBatch(lambda place: True)
    harness = Harness(model(), EngineConfig(speculate_depth=DEPTH), drafter=guesser, stop=())
    streams = [harness.submit(REQUEST), harness.submit(replace(REQUEST, priority="batch"))]
    harness.run()
    assert [tuple(stream) for stream in streams] == [truth(), truth()]
    right, wrong = (stream.stats for stream in streams)
    assert right is not None
    assert wrong is not None
    assert right.accepted == right.drafted > 100
    assert wrong.accepted == 0
    assert 0 < wrong.drafted < 20
