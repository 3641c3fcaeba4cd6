"""The Responses API as OpenAI's own client uses it, against a real server with the bundled model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from openk3 import LLM
from openk3.server.app import create_app
from openk3.server.settings import ServerSettings
from tests.server.harness import running
from tests.server.openai.responses_harness import custom, function, grammar

LIMIT = 400


@pytest.fixture(scope="module")
def client(llm: LLM) -> Iterator[OpenAI]:
    app = create_app(llm, ServerSettings(names=("kimi-k3",)))
    with running(app) as url, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as connected:
        yield connected


def ask(client: OpenAI, given: Any = "What is 2 + 2?", **fields: Any) -> Response:
    made = client.responses.create(
        **{"model": "kimi-k3", "input": given, "temperature": 0, "max_output_tokens": LIMIT, **fields}
    )
    assert isinstance(made, Response)
    return made


def test_an_answer(client: OpenAI) -> None:
    answer = ask(client)

    assert answer.status == "completed"
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens <= LIMIT


def test_a_stream_adds_up_to_the_answer(client: OpenAI) -> None:
    with client.responses.stream(
        model="kimi-k3", input="What is 2 + 2?", temperature=0, max_output_tokens=LIMIT
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()

    assert text == final.output_text == ask(client).output_text


def test_a_conversation_goes_on_with_what_came_back(client: OpenAI) -> None:
    first = ask(client)
    history = [{"role": "user", "content": "What is 2 + 2?"}, *first.output, {"role": "user", "content": "And 3 + 3?"}]

    assert ask(client, history).status == "completed"


def test_a_call_and_its_result(client: OpenAI) -> None:
    question = {"role": "user", "content": "How is the weather in Rome?"}
    first = ask(client, [question], tools=[function(strict=True)], tool_choice="required")
    called = first.output[-1]
    assert called.type == "function_call"
    assert called.name == "get_weather"

    result = {"type": "function_call_output", "call_id": called.call_id, "output": "sunny"}
    second = ask(client, [question, *first.output, result], tools=[function(strict=True)])

    assert second.status in ("completed", "incomplete")


def test_a_custom_tool_is_held_to_its_pattern(client: OpenAI) -> None:
    answer = ask(client, tools=[custom(format=grammar("regex", "[a-c]{2,5}"))], tool_choice="required")

    called = answer.output[-1]
    assert called.type == "custom_tool_call"
    assert 2 <= len(called.input) <= 5
    assert set(called.input) <= set("abc")


def test_a_custom_tool_is_held_to_its_grammar(client: OpenAI) -> None:
    lark = 'start: ("+" | "-") WORD "!"\nWORD: /[a-z]{1,4}/\n'
    answer = ask(client, tools=[custom(format=grammar("lark", lark))], tool_choice="required")

    called = answer.output[-1]
    assert called.type == "custom_tool_call"
    assert re.fullmatch(r"[+-][a-z]{1,4}!", called.input)


class Sum(BaseModel):
    total: int


def test_structured_output(client: OpenAI) -> None:
    answer = client.responses.parse(
        model="kimi-k3", input="What is 2 + 2?", text_format=Sum, temperature=0, max_output_tokens=LIMIT
    )

    assert isinstance(answer.output_parsed, Sum)


def test_a_limit_is_seen_by_the_client(client: OpenAI) -> None:
    answer = ask(client, max_output_tokens=2)

    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
        client.responses.create(model="kimi-k3", input="Hi", previous_response_id="resp_1", stream=stream)


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-5", input="Hi")
