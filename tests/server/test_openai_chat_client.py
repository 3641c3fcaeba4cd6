"""Chat Completions and Completions as OpenAI's own client uses them, against a real server with the bundled model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from openk3 import LLM
from openk3.server.app import create_app
from openk3.server.openai.chat import ChatCompletions
from openk3.server.openai.completions import Completions
from openk3.server.openai.tokens import EstimateTokens
from openk3.server.settings import ServerSettings
from tests.server.harness import events_of, running
from tests.server.openai.conftest import tool

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
OFF = {"thinking": {"type": "disabled"}}
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "boolean"}, "n": {"type": "integer", "enum": [1, 22]}},
    "required": ["capital", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url(llm: LLM) -> Iterator[str]:
    endpoints, counters = [ChatCompletions(), Completions()], [EstimateTokens()]
    app = create_app(llm, ServerSettings(names=("kimi-k3",)), endpoints=endpoints, counters=counters, pages=[])
    with running(app) as served:
        yield served


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as connected:
        yield connected


def ask(client: OpenAI, **fields: Any) -> ChatCompletion:
    body = {"model": "kimi-k3", "messages": FRANCE, "temperature": 0, "max_tokens": 200, **fields}
    made = client.chat.completions.create(**body)
    assert isinstance(made, ChatCompletion)
    return made


def test_an_answer(client: OpenAI) -> None:
    answer = ask(client)
    (choice,) = answer.choices
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 0 < (answer.usage.completion_tokens_details.reasoning_tokens or 0) < answer.usage.completion_tokens


def test_a_stream_adds_up_to_the_answer(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="kimi-k3", messages=FRANCE, temperature=0, max_tokens=200, stream_options={"include_usage": True}
    ) as stream:  # fmt: skip
        final = [event for event in stream] and stream.get_final_completion()  # noqa: C416
    whole = ask(client)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"
    assert (final.usage and final.usage.completion_tokens) == (whole.usage and whole.usage.completion_tokens)


def test_headers_and_lines_of_a_stream(url: str) -> None:
    body = {"model": "kimi-k3", "messages": FRANCE, "temperature": 0, "max_tokens": 20, "stream": True}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *frames, done = [data for name, data in events_of(reply.text) if name is None]
    assert done == "[DONE]"
    usage = json.loads(frames[-1])["choices"][0]["usage"]
    assert reply.headers["X-Msh-Usage-Prompt-Tokens"] == str(usage["prompt_tokens"])
    assert reply.headers["X-Msh-Usage-Cached-Tokens"] == str(usage["cached_tokens"])


def test_the_count_is_that_of_an_answer(url: str, client: OpenAI) -> None:
    body = {"model": "kimi-k3", "messages": FRANCE}
    counted = httpx.post(f"{url}/v1/tokenizers/estimate-token-count", json=body, timeout=60).json()
    usage = ask(client, max_tokens=1).usage
    assert counted == {"data": {"total_tokens": usage and usage.prompt_tokens}}


@pytest.mark.parametrize("extra", [{}, OFF])
def test_a_forced_call_and_its_result(client: OpenAI, extra: dict[str, Any]) -> None:
    tools = [tool()]
    first = ask(client, tools=tools, tool_choice="required", max_tokens=1000, extra_body=extra).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls
    (call, *_) = first.message.tool_calls
    assert call.type == "function"
    assert (call.id, call.function.name) == ("get_weather_0", "get_weather")
    assert isinstance(json.loads(call.function.arguments)["city"], str)

    results = [{"role": "tool", "tool_call_id": one.id, "content": "sun"} for one in first.message.tool_calls]
    messages = [*FRANCE, first.message.model_dump(exclude_none=True), *results]
    assert ask(client, tools=tools, messages=messages, extra_body=extra).choices[0].finish_reason in ("stop", "length")


def test_a_named_tool_is_the_one_that_is_called(client: OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    answer = ask(client, tools=[tool(), tool("get_time")], tool_choice=choice, max_tokens=1000, extra_body=OFF)
    assert {call.function.name for call in answer.choices[0].message.tool_calls or () if call.type == "function"} == {
        "get_time"
    }


def test_a_schema_is_kept(client: OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    content = ask(client, response_format=wanted, extra_body=OFF).choices[0].message.content or ""
    value = json.loads(content)
    assert type(value["capital"]) is bool
    assert value["n"] in (1, 22)
    assert "\n" not in content
    assert "\t" not in content


def test_probabilities(client: OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3, extra_body=OFF).choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert bytes(byte for entry in entries for byte in entry.bytes or ()).decode() == choice.message.content
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    assert all(entry.top_logprobs[0].token == entry.token for entry in entries)  # greedy


def test_the_same_seed_gives_the_same_answer(client: OpenAI) -> None:
    first, second = (ask(client, temperature=1, seed=7, max_tokens=40).choices[0].message for _ in range(2))
    assert first == second


def test_a_text_is_continued(client: OpenAI) -> None:
    whole = client.completions.create(model="kimi-k3", prompt="The capital of France", temperature=0, logprobs=2)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    stream = client.completions.create(model="kimi-k3", prompt=["The capital of France"], temperature=0, stream=True)
    assert "".join(frame.choices[0].text for frame in stream) == choice.text


def test_errors_are_those_of_the_client(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        ask(client, temperature=1.5)
    assert (bad.value.type, bad.value.param) == ("invalid_request_error", "temperature")
    with pytest.raises(openai.NotFoundError):
        ask(client, model="other")
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.role"):
        ask(client, messages=[{"role": "robot", "content": "x"}], stream=True)


def test_a_limit_of_ones_own_must_fit_with_the_prompt(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="together with 8,190"):
        ask(client, max_tokens=8190)
    assert ask(client, max_tokens=openai.omit).choices[0].finish_reason == "stop"
