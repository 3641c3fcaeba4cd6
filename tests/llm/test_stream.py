"""Answers as they come: in threads and event loops, cancelled, left, or cut off by closing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from openk3.errors import ConfigError, DeadlineError, EngineError
from openk3.llm.answer import Answer
from openk3.llm.llm import LLM
from openk3.protocol.messages import ContentDelta, ReasoningDelta
from openk3.protocol.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
# It has to write on, so that it is still writing when a test leaves it.
ENDLESS = SamplingParams(temperature=0.0, min_tokens=3000, max_tokens=3000)
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def wait_until_cancelled(llm: LLM) -> None:
    """Wait for the engine to have ended its first request, and everything that was held for it."""
    deadline = time.monotonic() + 30
    while not llm.metrics.requests:
        assert time.monotonic() < deadline, llm.metrics
        time.sleep(0.01)
    metrics = llm.metrics
    assert (metrics.cancelled, metrics.failed, metrics.running, metrics.waiting) == (1, 0, 0, 0)


def test_deltas_are_the_answer(llm: LLM) -> None:
    answer = llm.stream(FRANCE, params=replace(GREEDY, max_tokens=100))
    deltas = list(answer)
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == answer.turn.reasoning
    assert "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)) == answer.content
    assert len(deltas) > 5


def test_a_second_iteration_gives_the_same(llm: LLM) -> None:
    answer = llm.stream(FRANCE, params=GREEDY)
    deltas = list(answer)
    assert deltas
    assert list(answer) == deltas
    assert asyncio.run(collect(answer)) == deltas
    assert len(answer.tokens) == answer.usage.completion_tokens == 24


async def collect(answer: Answer) -> list[object]:
    return [delta async for delta in answer]


def test_several_in_one_event_loop(llm: LLM) -> None:
    async def ask() -> list[Answer]:
        answers = [llm.stream(FRANCE, params=replace(GREEDY, seed=seed, temperature=1.0)) for seed in range(3)]
        await asyncio.wait_for(asyncio.gather(*map(collect, answers)), 60)
        return answers

    expected = [llm.chat(FRANCE, params=replace(GREEDY, seed=seed, temperature=1.0)) for seed in range(3)]
    answers = asyncio.run(ask())
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]
    assert [answer.turn for answer in answers] == [answer.turn for answer in expected]
    assert all(answer.stats is not None for answer in answers)


def test_a_stop_string_ends_an_asynchronous_answer(llm: LLM) -> None:
    params = replace(GREEDY, max_tokens=100)
    whole = llm.chat(FRANCE, params=params).content
    answer = llm.stream(FRANCE, params=replace(params, stop=(whole[4:9],)))
    asyncio.run(collect(answer))
    assert (answer.content, answer.turn.finish_reason) == (whole[:4], "stop")
    assert answer.stats is not None


def test_cancelling_frees_everything(own_llm: LLM) -> None:
    before = own_llm.metrics
    answer = own_llm.stream(FRANCE, params=ENDLESS)
    for number, _ in enumerate(answer):
        if number == 3:
            answer.cancel()
    assert answer.turn.finish_reason is None
    assert answer.turn.reasoning
    assert answer.stats is not None and answer.stats.completion_tokens < 3000
    wait_until_cancelled(own_llm)
    assert own_llm.metrics.free_slots == before.free_slots


def test_cancelling_before_the_first_token(own_llm: LLM) -> None:
    answer = own_llm.stream(FRANCE, params=ENDLESS)
    answer.cancel()
    assert list(answer) == []
    assert answer.tokens == []
    wait_until_cancelled(own_llm)


def test_leaving_the_iteration_cancels(own_llm: LLM) -> None:
    answer = own_llm.stream(FRANCE, params=ENDLESS)
    for _ in answer:
        break
    wait_until_cancelled(own_llm)


def test_leaving_an_asynchronous_iteration_cancels(own_llm: LLM) -> None:
    async def leave() -> None:
        async for _ in own_llm.stream(FRANCE, params=ENDLESS):
            break

    asyncio.run(leave())
    wait_until_cancelled(own_llm)


def test_an_answer_that_nobody_holds_is_cancelled(own_llm: LLM) -> None:
    own_llm.stream(FRANCE, params=ENDLESS)
    wait_until_cancelled(own_llm)


def test_a_cancelled_task_cancels_its_answer(own_llm: LLM) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collect(own_llm.stream(FRANCE, params=ENDLESS)), 0.2)

    asyncio.run(give_up())
    wait_until_cancelled(own_llm)


def test_closing_while_streaming_is_an_error(own_llm: LLM) -> None:
    answer = own_llm.stream(FRANCE, params=ENDLESS)
    with pytest.raises(EngineError, match="the engine was closed"):
        for number, _ in enumerate(answer):
            if number == 2:
                own_llm.close()
    assert answer.turn.finish_reason is None
    own_llm.close()
    with pytest.raises(EngineError):
        own_llm.stream(FRANCE)


def test_an_error_in_an_event_loop(llm: LLM) -> None:
    with pytest.raises(DeadlineError):
        asyncio.run(collect(llm.stream(FRANCE, params=ENDLESS, timeout_s=1e-6)))


def test_several_at_once_with_a_wrong_number(llm: LLM) -> None:
    for n in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="expected a whole number of answers"):
            llm.stream_many(FRANCE, n=n)  # type: ignore[arg-type]
