"""Whole answers: alone or among others, with seeds, formats, tools and stop strings."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from openk3.errors import CapacityError, DeadlineError
from openk3.llm.answer import Answer
from openk3.llm.llm import LLM
from openk3.protocol.messages import Message, ResponseFormat
from openk3.protocol.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
QUESTIONS = [
    FRANCE,
    [{"role": "user", "content": "What is 3 + 4?"}],
    [Message(role="system", content="Be brief."), Message(role="user", content="Say hello.")],
    [{"role": "user", "content": [{"type": "text", "text": "Which is more, "}, {"type": "text", "text": "2 or 5?"}]}],
]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"kind": {"enum": ["word", "place"]}},
            "required": ["kind"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
    "required": ["yes", "n"],
    "additionalProperties": False,
}


def ids(answer: Answer) -> list[tuple[int, float]]:
    return [(token.token_id, token.logprob) for token in answer.tokens]


def test_an_answer_has_reasoning_content_and_usage(llm: LLM) -> None:
    answer = llm.chat(FRANCE, params=replace(GREEDY, max_tokens=100))
    assert answer.turn.finish_reason == "stop"
    assert answer.turn.reasoning and "Paris" in answer.content
    assert answer.message == Message(role="assistant", content=answer.content, reasoning=answer.turn.reasoning)
    assert answer.stats is not None
    assert answer.usage.completion_tokens == answer.stats.completion_tokens == len(answer.tokens)
    assert answer.usage.prompt_tokens == answer.stats.prompt_tokens - 3
    assert 0 < answer.usage.reasoning_tokens < answer.usage.completion_tokens


def test_alone_is_as_many_at_once(llm: LLM) -> None:
    alone = [llm.chat(question, params=GREEDY) for question in QUESTIONS]
    together = [answer.finish() for answer in [llm.stream(question, params=GREEDY) for question in QUESTIONS]]
    assert [ids(answer) for answer in together] == [ids(answer) for answer in alone]


def test_threads_get_what_one_would(llm: LLM) -> None:
    expected = [ids(llm.chat(question, params=GREEDY)) for question in QUESTIONS]
    got: dict[int, list[tuple[int, float]]] = {}

    def ask(number: int) -> None:
        got[number] = ids(llm.chat(QUESTIONS[number], params=GREEDY))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(QUESTIONS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [got[number] for number in range(len(QUESTIONS))] == expected


def test_several_answers_count_their_seeds(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, max_tokens=12, seed=2**64 - 1)
    runs = [llm.chat(FRANCE, params=params, n=3) for _ in range(2)]
    first, second = ([ids(answer) for answer in run] for run in runs if isinstance(run, list))
    assert first == second
    assert first[0] != first[1]
    assert ids(llm.chat(FRANCE, params=replace(params, seed=0))) == first[1]


def test_the_models_own_settings_hold_where_none_are_given(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    answer = llm.chat(question, thinking=False)
    assert answer.turn.finish_reason == "stop"
    assert answer.turn.reasoning is None
    assert answer.usage.reasoning_tokens == 0


@pytest.mark.parametrize("thinking", [True, False])
def test_an_answer_follows_a_schema(llm: LLM, thinking: bool) -> None:
    wanted = ResponseFormat(type="json_schema", schema=SCHEMA)
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=400)
    answer = llm.chat(FRANCE, params=params, response_format=wanted, thinking=thinking)
    assert answer.turn.finish_reason == "stop"
    value = json.loads(answer.content)
    assert type(value["yes"]) is bool and value["n"] in (1, 22, 333)


def test_an_answer_follows_a_regular_expression(llm: LLM) -> None:
    answer = llm.chat(
        FRANCE, params=GREEDY, response_format=ResponseFormat(type="regex", regex="a[bc]{3}"), thinking=False
    )
    assert len(answer.content) == 4 and set(answer.content[1:]) <= {"b", "c"}


def test_a_forced_call_parses(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=400)
    answer = llm.chat(FRANCE, params=params, tools=[TOOL], tool_choice="required", only_tool="look_up", thinking=False)
    assert answer.turn.finish_reason == "tool_calls"
    assert {call.name for call in answer.turn.tool_calls} == {"look_up"}
    assert json.loads(str(answer.turn.tool_calls[0].arguments))["kind"] in ("word", "place")


def test_stop_strings_end_the_content_before_them(llm: LLM) -> None:
    whole = llm.chat(FRANCE, params=replace(GREEDY, max_tokens=100)).content
    stop = whole[4:9]
    answer = llm.chat(FRANCE, params=replace(GREEDY, max_tokens=100, stop=("never", stop)))
    assert answer.content == whole[: whole.index(stop)]
    assert answer.turn.finish_reason == "stop"
    assert answer.stats is not None


def test_a_conversation_goes_on_from_what_was_computed(llm: LLM) -> None:
    question = [{"role": "user", "content": "Which letter comes after K in the alphabet, and why do you ask?"}]
    first = llm.chat(question, params=replace(GREEDY, max_tokens=200))
    assert first.turn.finish_reason == "stop"
    second = llm.chat([*question, first.message, *FRANCE], params=GREEDY)
    assert second.usage.cached_tokens >= (first.usage.prompt_tokens + first.usage.completion_tokens) // 16 * 16 - 32
    other = llm.chat([*question, first.message, *FRANCE], params=GREEDY, cache_salt="other")
    assert other.usage.cached_tokens == 0
    assert ids(other) == ids(second)


def test_time_that_is_over_is_an_error(llm: LLM) -> None:
    with pytest.raises(DeadlineError):
        llm.chat(FRANCE, timeout_s=1e-6)


def test_a_conversation_longer_than_the_context_is_refused(llm: LLM) -> None:
    with pytest.raises(CapacityError, match="expected fewer than"):
        llm.chat([{"role": "user", "content": "one two three " * 9000}])
