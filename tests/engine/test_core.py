"""Requests side by side: who is computed, who waits, and that the end of one is no matter to the others."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import pytest
import torch

from openk3.engine.config import EngineConfig
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.drafter import ComputedRow, Drafter
from openk3.errors import CapacityError, ConfigError, DeadlineError, EngineError, NumericsError
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import MediaSpan, Request
from openk3.protocol.sampling import SamplingParams
from tests.engine.harness import Harness, build, drain, ids, plain

POISONOUS = 200
"""The token whose embedding is not finite in `poisonous_model`."""


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count)


def request(length: int = 20, seed: int = 0, count: int = 5, **more: object) -> Request:
    return Request(prompt_ids=ids(length, seed), params=greedy(count), **more)  # type: ignore[arg-type]


def poisonous_model(value: float) -> K3ForCausalLM:
    model = copy.deepcopy(build())
    with torch.no_grad():
        model.model.embed_tokens.weight[POISONOUS] = value
    return model


class Guess:
    """Drafts as many tokens as it may for sequences of 17 read tokens, at one length."""

    max_depth = 14
    bytes_per_token = 0
    bytes_per_sequence = 0

    def __init__(self, when: int) -> None:
        self._when = when

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        return [
            [3] * depth if len(sequence.tokens) == self._when and sequence.num_prompt == 17 else []
            for sequence, depth in zip(sequences, depths, strict=True)
        ]

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        pass

    def release(self, sequence: EngineSequence) -> None:
        pass


def unused(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token + 1 if token == POISONOUS else token for token in prompt)


class TestFailuresStayAlone:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_request_that_is_not_finite_ends_with_an_error_and_poisons_nothing(self, value: float) -> None:
        model = poisonous_model(value)
        harness = Harness(model)
        prompt = unused(ids(50, seed=1))
        sound = Request(prompt_ids=prompt, params=greedy(4))
        expected = plain(model, sound).outputs
        for place in (0, 20, 49):
            sick = Request(prompt_ids=(*prompt[:place], POISONOUS, *prompt[place + 1 :]), params=greedy(4))
            streams = [harness.submit(sound), harness.submit(sick), harness.submit(sound)]
            harness.run()
            assert [tuple(drain(streams[i])[0]) for i in (0, 2)] == [expected, expected]
            outputs, error = drain(streams[1])
            assert outputs == [] and isinstance(error, NumericsError), place
        assert harness.answer(sound) == expected
        assert harness.core.metrics.failed == 3
        harness.check_nothing_is_held()

    def test_states_that_are_not_finite_are_never_kept(self) -> None:
        model = poisonous_model(float("nan"))
        harness = Harness(model)
        beginning = unused(ids(32, seed=3))
        sick = Request(prompt_ids=(*beginning, POISONOUS, *unused(ids(40, seed=4))), params=greedy(2))
        stream = harness.submit(sick)
        harness.run()
        assert isinstance(drain(stream)[1], NumericsError)
        for checkpoint in harness.core.cache.checkpoints:
            assert checkpoint.position <= 32

    def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = build()
        harness = Harness(model)
        first = harness.submit(request(seed=1))
        with monkeypatch.context() as patch:
            patch.setattr(harness.core._runner, "run", lambda rows: 1 / 0)
            harness.step()
        assert isinstance(drain(first)[1], EngineError)
        assert harness.answer(request(seed=1)) == plain(model, request(seed=1)).outputs
        harness.check_nothing_is_held()

    def test_a_callback_that_fails_does_not_matter(self) -> None:
        def fail(generated: tuple[int, ...]) -> int:
            raise RuntimeError("not your business")

        asked = request(replayed=fail)
        assert Harness(build()).answer(asked) == plain(build(), asked).outputs

    def test_a_drafter_that_fails_only_ends_speculation(self, caplog: pytest.LogCaptureFixture) -> None:
        class Broken:
            max_depth, bytes_per_token, bytes_per_sequence = 4, 0, 0

            def __getattr__(self, name: str) -> object:
                raise RuntimeError("broken drafter")

        assert Harness(build(), drafter=Broken()).answer(request()) == plain(build(), request()).outputs  # type: ignore[arg-type]
        assert "without speculation" in caplog.text


class TestLeaving:
    def test_cancelling_frees_everything_within_a_step(self) -> None:
        harness = Harness(build(), EngineConfig(prefix_cache=False))
        streams = [harness.submit(request(seed=i, count=50)) for i in range(3)]
        for _ in range(5):
            harness.step()
        for stream in streams:
            stream.cancel()
        harness.step()
        metrics = harness.core.metrics
        assert (metrics.running, metrics.cancelled, metrics.free_slots) == (0, 3, 8)
        assert metrics.free_blocks == harness.core.holdings.pool.num_blocks
        assert all(stream.stats is not None for stream in streams)

    def test_cancelled_before_it_began(self) -> None:
        harness = Harness(build(), slots=1)
        first, second = harness.submit(request(seed=1)), harness.submit(request(seed=2))
        harness.step()
        second.cancel()
        harness.run()
        assert len(drain(first)[0]) == 5
        assert drain(second) == ([], None)

    def test_a_deadline_ends_a_request_that_waits_and_one_that_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        harness = Harness(build(), slots=1)
        running = harness.submit(request(seed=1, count=50, timeout_s=100.0))
        waiting = harness.submit(request(seed=2, timeout_s=50.0))
        harness.step()
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 60)
        harness.step()
        assert isinstance(drain(waiting)[1], DeadlineError)
        monkeypatch.setattr(time, "monotonic", lambda: now() + 120)
        harness.step()
        outputs, error = drain(running)
        assert outputs and isinstance(error, DeadlineError)
        assert not harness.core.has_work

    def test_closing_ends_everybody(self) -> None:
        harness = Harness(build(), slots=1)
        streams = [harness.submit(request(seed=i)) for i in range(3)]
        harness.step()
        harness.core.close()
        assert all(isinstance(drain(stream)[1], EngineError) for stream in streams)
        harness.check_nothing_is_held()


class TestTurns:
    def test_writing_goes_on_in_every_step_while_a_long_prompt_is_read(self) -> None:
        harness = Harness(build(), EngineConfig(token_budget=32))
        writer = harness.submit(request(count=40))
        while not harness.core.metrics.tokens_written:
            harness.step()
        harness.submit(request(length=400, seed=5))
        for _ in range(10):
            before = harness.core.metrics.tokens_written
            harness.step()
            assert harness.core.metrics.tokens_written >= before + 1
        assert writer.stats is None

    def test_a_short_prompt_does_not_wait_for_a_long_one(self) -> None:
        harness = Harness(build(), EngineConfig(token_budget=64))
        long, short = harness.submit(request(length=1000, seed=5)), harness.submit(request(length=30, seed=6, count=2))
        while short.stats is None:
            harness.step()
        assert long.stats is None
        assert harness.core.metrics.steps <= 4

    def test_the_oldest_prompt_is_not_starved_by_short_ones(self) -> None:
        harness = Harness(build(), EngineConfig(token_budget=64), slots=8)
        long = harness.submit(request(length=160, seed=5, count=1))
        for seed in range(100, 160):
            harness.submit(request(length=48, seed=seed, count=1))
            harness.step()
            if long.stats is not None:
                break
        assert harness.core.metrics.steps <= 160 // 16 + 2

    def test_interactive_before_batch_even_when_batch_runs(self) -> None:
        harness = Harness(build(), slots=1)
        batch = request(seed=1, count=30, priority="batch")
        waits = harness.submit(batch)
        for _ in range(4):
            harness.step()
        answer = harness.submit(request(seed=2, count=3))
        while answer.stats is None:
            harness.step()
        assert waits.stats is None
        harness.run()
        assert tuple(waits) == plain(build(), batch).outputs
        assert harness.core.metrics.preemptions == 1

    def test_batch_work_is_not_set_aside_for_somebody_it_cannot_make_room_for(self) -> None:
        harness = Harness(build(), EngineConfig(page_size=16, prefix_cache=False), slots=4, blocks=30, stop=())
        harness.submit(request(200, seed=1, count=150))
        for seed in (2, 3):
            harness.submit(request(40, seed, count=100, priority="batch"))
        for _ in range(6):
            harness.step()
        large = harness.submit(request(330, seed=4, count=2))
        for _ in range(6):
            assert (harness.core.metrics.running, harness.core.metrics.preemptions) == (3, 0)
            harness.step()
        harness.run()
        assert drain(large)[1] is None
        harness.check_nothing_is_held()

    def test_nobody_is_set_aside_for_drafts(self) -> None:
        def read(drafter: Drafter | None) -> tuple[int, int]:
            config = EngineConfig(page_size=16, prefix_cache=False, speculate_depth=4)
            harness = Harness(build(), config, slots=4, blocks=5, drafter=drafter, stop=())
            harness.submit(request(20, seed=1, count=14))
            harness.submit(request(17, seed=2, count=40))
            harness.run()
            return harness.core.metrics.preemptions, harness.core.metrics.drafted

        assert read(None) == (0, 0)
        preemptions, drafted = read(Guess(when=30))
        assert preemptions == 0 and drafted == 0, "the page that drafts would need is the other's"

    def test_a_shared_beginning_is_computed_once(self) -> None:
        harness = Harness(build(), EngineConfig(token_budget=64))
        shared = ids(320, seed=9)
        asked = [Request(prompt_ids=shared + ids(5, seed=i), params=greedy(2)) for i in range(5)]
        streams = [harness.submit(r) for r in asked]
        harness.run()
        assert [tuple(s) for s in streams] == [plain(build(), r).outputs for r in asked]
        assert harness.core.metrics.tokens_read < 320 + 5 * (5 + 16)


class TestRoom:
    def test_a_prompt_that_cannot_fit_is_refused_at_once(self) -> None:
        harness = Harness(build(), EngineConfig(page_size=16), blocks=4)
        with pytest.raises(CapacityError, match=r"expected fewer than what the engine's memory holds, 64"):
            harness.submit(request(length=64))
        assert len(harness.answer(request(length=60, count=50))) == 4

    def test_ids_that_the_model_does_not_have(self) -> None:
        with pytest.raises(ConfigError, match="prompt token 1 is 256"):
            Harness(build()).submit(Request(prompt_ids=(1, 256)))

    def test_a_grammar_without_a_compiler_is_refused(self) -> None:
        from openk3.protocol.request import Grammar

        with pytest.raises(ConfigError, match="without a vocabulary"):
            Harness(build()).submit(Request(prompt_ids=(1,), grammar=Grammar("start: /a/")))

    def test_more_requests_than_memory_take_turns(self) -> None:
        harness = Harness(build(), EngineConfig(page_size=16, max_running=8), blocks=12)
        asked = [request(length=40, seed=i, count=30) for i in range(6)]
        streams = [harness.submit(r) for r in asked]
        harness.run()
        assert [tuple(s) for s in streams] == [plain(build(), r).outputs for r in asked]
        assert harness.core.metrics.preemptions > 0
        harness.check_nothing_is_held()


class TestIsolation:
    def test_equal_tokens_behind_different_images_or_salts_share_nothing(self) -> None:
        harness = Harness(build())
        base = {"length": 64, "seed": 1}
        harness.answer(request(**base, media=(MediaSpan(3, 4, b"cat"),)))
        for other in ({"media": (MediaSpan(3, 4, b"dog"),)}, {"media": ()}, {"cache_salt": "mine"}):
            before = harness.core.metrics.cache.hit_tokens
            harness.answer(request(**base, **other))
            assert harness.core.metrics.cache.hit_tokens == before
        harness.answer(request(**base, media=(MediaSpan(3, 4, b"cat"),)))
        assert harness.core.metrics.cache.hit_tokens == 48

    def test_each_answer_is_for_its_own_prompt_among_hundreds(self) -> None:
        model = build()
        harness = Harness(model, EngineConfig(max_running=8, token_budget=128), blocks=300)
        asked = [request(length=5 + seed % 60, seed=seed % 40, count=3) for seed in range(200)]
        expected = {r.prompt_ids: plain(model, r).outputs for r in asked}
        streams = [harness.submit(r) for r in asked]
        harness.run()
        assert [tuple(s) for s in streams] == [expected[r.prompt_ids] for r in asked]
        assert len(set(expected.values())) > 30
        harness.check_nothing_is_held()


def test_stats_say_what_a_request_cost() -> None:
    harness = Harness(build())
    harness.answer(request(length=50, count=2))
    stream = harness.submit(request(length=50, count=2))
    harness.run()
    stats = stream.stats
    assert stats is not None
    assert (stats.prompt_tokens, stats.completion_tokens, stats.matched_tokens, stats.cached_tokens) == (50, 2, 48, 48)
    assert stats.first_token_s is not None and 0 <= stats.queue_s <= stats.first_token_s <= stats.total_s


def test_a_conversation_goes_on_from_the_end_of_the_answer() -> None:
    harness = Harness(build())
    first = request(length=40, count=30, replayed=lambda generated: 40 + len(generated))
    answer = [o.token_id for o in harness.answer(first)]
    second = Request(prompt_ids=(*first.prompt_ids, *answer, *ids(4, seed=8)), params=greedy(2))
    stream = harness.submit(second)
    harness.run()
    assert stream.stats is not None
    assert stream.stats.cached_tokens == (40 + len(answer) - 1) // 16 * 16
