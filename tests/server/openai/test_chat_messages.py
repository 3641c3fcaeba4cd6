"""Messages that Chat Completions accepts, and those that it refuses by their path."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.protocol.messages import Message, TextPart, ToolCall
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.chat import ChatCompletions
from tests.server.openai.conftest import HI, Reader, ask, refusal

CALL = {"id": "get_weather_0", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}


def test_every_role_is_read(read: Reader) -> None:
    asked = read(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "system", "content": "Be kind.", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [CALL], "refusal": None},
            {"role": "tool", "content": "sun", "tool_call_id": "get_weather_0"},
            {"role": "assistant", "content": None, "reasoning": "again"},
        ]
    )
    assert asked.messages == (
        Message(role="system", content="Be brief."),
        Message(role="system", content="Be kind.", name="boss"),
        Message(role="user", content=(TextPart("a"), TextPart("b"))),
        Message(
            role="assistant",
            content="",
            reasoning="r",
            tool_calls=(ToolCall("get_weather_0", "get_weather", '{"city":"Oslo"}'),),
        ),
        Message(role="tool", content="sun", tool_call_id="get_weather_0"),
        Message(role="assistant", reasoning="again"),
    )


WRONG_MESSAGES: dict[str, tuple[Any, str]] = {
    "none": ([], "messages"),
    "no list": ("Hi", "messages"),
    "null": (None, "messages"),
    "no object": (["Hi"], "messages[0]"),
    "no role": ([{"content": "Hi"}], "messages[0].role"),
    "unknown role": ([{"role": "function", "content": "Hi"}], "messages[0].role"),
    "role of a wrong type": ([{"role": ["user"], "content": "Hi"}], "messages[0].role"),
    "no content": ([HI, {"role": "user"}], "messages[1].content"),
    "system without content": ([{"role": "system"}], "messages[0].content"),
    "content of a wrong type": ([{"role": "user", "content": 5}], "messages[0].content"),
    "content is an object": ([{"role": "user", "content": {"type": "text", "text": "x"}}], "messages[0].content"),
    "part is text": ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    "part without type": ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    "part without text": ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    "image": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        "messages[0].content[0].type",
    ),
    "video": ([{"role": "user", "content": [{"type": "video_url"}]}], "messages[0].content[0].type"),
    "name of a wrong type": ([{"role": "user", "content": "x", "name": 1}], "messages[0].name"),
    "reasoning of a wrong type": (
        [{"role": "assistant", "content": "x", "reasoning_content": {}}],
        "messages[0].reasoning_content",
    ),
    "calls are no list": ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
    "call without function": (
        [{"role": "assistant", "tool_calls": [{"id": "a"}]}],
        "messages[0].tool_calls[0].function",
    ),
    "call without name": (
        [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
        "messages[0].tool_calls[0].function.name",
    ),
    "call of no function": (
        [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}],
        "messages[0].tool_calls[0].type",
    ),
    "arguments are a list": (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
    "result without id": ([HI, {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
    "result with an empty id": ([{"role": "tool", "content": "x", "tool_call_id": ""}], "messages[0].tool_call_id"),
    "partial is text": ([{"role": "assistant", "content": "x", "partial": "yes"}], "messages[0].partial"),
    "assistant has an empty list": ([HI, {"role": "assistant", "content": []}, HI], "messages[1].content"),
    "assistant is bare": ([HI, {"role": "assistant"}, HI], "messages[1].content"),
}


@pytest.mark.parametrize(("messages", "param"), WRONG_MESSAGES.values(), ids=WRONG_MESSAGES.keys())
def test_wrong_messages_are_refused_by_their_path(read: Reader, messages: Any, param: str) -> None:
    fault = refusal(read, messages=messages)
    assert fault.param == param
    assert param in fault.text


def test_an_image_is_refused_because_of_this_model(read: Reader) -> None:
    fault = refusal(read, messages=WRONG_MESSAGES["image"][0])
    assert "this model reads text only, not an image" in fault.text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "tool_calls": [CALL]},
        {"role": "user", "content": "x", "partial": True},
        {"role": "assistant", "content": "x", "tool_call_id": "a"},
        {"role": "assistant", "content": "x", "partial": True, "tool_calls": [CALL]},
    ],
)
def test_fields_that_the_role_has_no_use_for_are_refused(read: Reader, message: Any) -> None:
    assert "messages[0]" in refusal(read, messages=[message]).text


def test_a_message_without_a_model_is_refused(model: ServedModel) -> None:
    for name in (None, "", 3):
        with pytest.raises(Fault) as caught:
            ChatCompletions().read(ask(model=name), model)
        assert caught.value.status == 400
    with pytest.raises(Fault) as caught:
        ChatCompletions().read(ask(model="gpt-4"), model)
    assert (caught.value.status, caught.value.kind) == (404, "resource_not_found_error")


def test_a_partial_message_is_continued(read: Reader) -> None:
    started = {"role": "assistant", "content": "Once", "partial": True}
    assert read(messages=[HI, started]).messages[-1].partial
    assert read(messages=[HI, started]).body.channel == "response"
    assert read(messages=[HI, {**started, "content": "", "reasoning_content": "I"}]).body.channel == "think"
    assert "only the last message" in refusal(read, messages=[started, HI]).text
    fault = refusal(read, messages=[HI, started], response_format={"type": "json_object"})
    assert "messages[1].partial" in fault.text
    assert read(messages=[HI, started], response_format={"type": "text"}).options["response_format"] is None
