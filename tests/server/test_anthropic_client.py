"""Anthropic's own client talks to a real server that serves the bundled model."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import Message, ToolUseBlock
from pydantic import BaseModel

from openk3 import LLM
from openk3.server.app import create_app
from openk3.server.settings import ServerSettings
from tests.server.harness import running

FRANCE: list[anthropic.types.MessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
TOOL: anthropic.types.ToolParam = {
    "name": "look_up",
    "description": "Looks something up",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"kind": {"type": "string", "enum": ["word", "place"]}},
        "required": ["kind"],
        "additionalProperties": False,
    },
}
GREEDY = {"temperature": 0}


class Verdict(BaseModel):
    """What a structured answer has to be."""

    yes: bool


@pytest.fixture(scope="module")
def url(llm: LLM) -> Iterator[str]:
    settings = ServerSettings(names=("nano", "kimi-k3"), api_keys=(("me", "secret"),))
    with running(create_app(llm, settings)) as served:
        yield served


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="secret", base_url=url, max_retries=0, timeout=60) as made:
        yield made


def ask(client: anthropic.Anthropic) -> Message:
    return client.messages.create(model="kimi-k3[1m]", max_tokens=200, messages=FRANCE, extra_body=GREEDY)


def texts(message: Message) -> list[str]:
    return [block.text for block in message.content if block.type == "text"]


def test_chat(client: anthropic.Anthropic) -> None:
    message = ask(client)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].type == "thinking" and message.content[0].thinking and message.content[0].signature
    assert "Paris" in texts(message)[0]
    assert (message.stop_reason, message.stop_sequence, message.model) == ("end_turn", None, "kimi-k3")
    assert message.usage.output_tokens > 0


def test_a_stream_gives_what_a_whole_answer_does(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    with client.messages.stream(model="nano", max_tokens=200, messages=FRANCE, extra_body=GREEDY) as stream:
        shown = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert shown == texts(whole)[0]
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_both_paths_are_served(url: str) -> None:
    with anthropic.Anthropic(api_key="secret", base_url=f"{url}/anthropic", max_retries=0, timeout=60) as other:
        assert "Paris" in texts(ask(other))[0]


def test_tokens_are_counted_as_they_are_billed(client: anthropic.Anthropic) -> None:
    usage = ask(client).usage
    counted = client.messages.count_tokens(model="kimi-k3", messages=FRANCE).input_tokens
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
def test_a_forced_tool_is_called_and_its_result_read(client: anthropic.Anthropic, thinking: str) -> None:
    body = {**GREEDY, "thinking": {"type": thinking}, "stop_sequences": []}
    choice: anthropic.types.ToolChoiceToolParam = {"type": "tool", "name": "look_up"}
    with client.messages.stream(
        model="nano", max_tokens=1000, messages=FRANCE, tools=[TOOL], tool_choice=choice, extra_body=body
    ) as stream:
        message = stream.get_final_message()
    calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
    assert message.stop_reason == "tool_use" and calls
    assert all(call.name == "look_up" and call.input["kind"] in ("word", "place") for call in calls)
    results: list[anthropic.types.ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "Paris"} for call in calls
    ]
    history = [*FRANCE, message.to_param(), anthropic.types.UserMessageParam(role="user", content=results)]
    last = client.messages.create(model="nano", max_tokens=100, messages=history, tools=[TOOL], extra_body=body)
    assert last.usage.input_tokens > 0


def test_a_structured_answer(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(
        model="nano", max_tokens=1000, messages=FRANCE, output_format=Verdict, extra_body=GREEDY
    )
    assert isinstance(parsed.parsed_output, Verdict)


def test_a_stop_sequence(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="nano", max_tokens=200, messages=FRANCE, stop_sequences=["Paris"], extra_body=GREEDY
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in "".join(texts(message))


def test_errors_are_the_clients_own(client: anthropic.Anthropic, url: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude", max_tokens=10, messages=FRANCE)
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="messages is") as wrong:
        client.messages.create(model="nano", max_tokens=10, messages=[])
    assert wrong.value.type == "invalid_request_error"
    with (
        anthropic.Anthropic(api_key="wrong", base_url=url, max_retries=0, timeout=60) as stranger,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        ask(stranger)
    assert refused.value.type == "authentication_error"
