"""What callers may write, and what they are told when it makes no sense, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openk3.engine.metrics import EngineMetrics
from openk3.errors import ChatError, ConfigError, OpenK3Error
from openk3.llm.inputs import to_messages
from openk3.llm.llm import LLM
from openk3.protocol.messages import ImagePart, Message, TextPart, ToolCall
from openk3.protocol.sampling import SamplingParams

USER = {"role": "user", "content": "Hello"}


def test_objects_of_clients_become_messages() -> None:
    call = {"id": "f_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert to_messages(
        [
            Message(role="system", content="Be kind."),
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "Ann"},
            {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call], "refusal": None},
            {"role": "tool", "content": "1", "tool_call_id": "f_0"},
            {"role": "assistant", "content": "On", "partial": True},
        ]
    ) == [
        Message(role="system", content="Be kind."),
        Message(role="user", content=(TextPart("Hi"),), name="Ann"),
        Message(role="assistant", reasoning="Hm", tool_calls=(ToolCall("f_0", "f", "{}"),)),
        Message(role="tool", content="1", tool_call_id="f_0"),
        Message(role="assistant", content="On", partial=True),
    ]


@pytest.mark.parametrize(
    ("messages", "message", "hint"),
    [
        ("Hello", "messages are 'Hello', expected a list of messages", "write"),
        (None, "messages are None, expected a list", "write"),
        ([], "there are no messages", "write"),
        (["Hello"], "messages[0] is 'Hello', expected a message", "write"),
        ([USER, {"content": "x"}], "messages[1] has no role", "write"),
        (
            [{"role": "user", "contnet": "x"}],
            "messages[0] has 'contnet', expected role, content",
            "did you mean content",
        ),
        ([{"role": "user", 3: "x"}], "messages[0] has 3, expected role", None),
        ([{"role": "developer", "content": "x"}], "role is 'developer', expected system, user", "system"),
        ([{"role": ["user"], "content": "x"}], "role is ['user'], expected system, user", None),
        ([{"role": "user", "content": 3}], "messages[0]: content is 3, expected a list", None),
        ([{"role": "user", "content": ["x"]}], "content[0] is 'x', expected a part", None),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "type is 'image_url', expected 'text'", None),
        ([{"role": "user", "content": [{"type": "text"}]}], "content[0]: text is None, expected text", None),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0]: name is 3, expected text", None),
        ([{"role": "user", "content": "x", "reasoning": "y"}], "reasoning is given with role user", None),
        ([{"role": "assistant", "reasoning": "y", "reasoning_content": "y"}], "has both reasoning and", None),
        ([{"role": "assistant", "tool_calls": 3}], "tool_calls is 3, expected a list", None),
        ([{"role": "assistant", "tool_calls": [3]}], "tool_calls[0] is 3, expected a call", None),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], "function is None, expected an object", None),
        ([{"role": "assistant", "tool_calls": [{"fn": "x"}]}], "tool_calls[0] has 'fn', expected id", None),
        ([Message(role="user", content=(ImagePart(8, 8, 4),))], "content[0] is an image, expected text", None),
        ([Message(role="assistant", tool_calls=({"name": "f"},))], "tool_calls[0] is {'name': 'f'}", None),
        ([{"role": "assistant", "content": "x", "partial": 1}], "partial is 1, expected true or false", None),
    ],
)
def test_wrong_messages_are_refused(
    llm: LLM, idle_metrics: Callable[[], EngineMetrics], messages: Any, message: str, hint: str | None
) -> None:
    before = idle_metrics()
    with pytest.raises(ChatError) as raised:
        llm.stream(messages)
    assert message in raised.value.message
    assert hint is None or hint in str(raised.value.hint)
    assert llm.metrics == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": {"temperature": 0}}, "params is {'temperature': 0}, expected SamplingParams"),
        ({"tools": "look"}, "tools are 'look', expected a list"),
        ({"tools": ["look"]}, "tools[0] is 'look', expected an object"),
        ({"tools": [{"type": "function"}]}, "tools[0] has no function with a name"),
        ({"tool_choice": "required"}, "tool_choice is 'required', but no tool is declared"),
        ({"tool_choice": "some"}, "tool_choice is 'some'"),
        ({"only_tool": "look"}, "only_tool is 'look' with tool_choice 'auto'"),
        ({"response_format": {"type": "json_object"}}, "expected ResponseFormat"),
        ({"effort": "lots"}, "thinking effort is 'lots'"),
        ({"thinking": "no"}, "thinking is 'no', expected true or false"),
        ({"timeout_s": 0}, "timeout_s is 0, expected a positive number"),
        ({"timeout_s": "1"}, "timeout_s is '1', expected a positive number"),
        ({"cache_salt": 5}, "cache_salt is 5, expected text"),
        ({"cache_salt": "\udcff"}, "cache_salt is '\\udcff', expected text"),
        ({"priority": "high"}, "priority is 'high', expected interactive or batch"),
    ],
)
def test_wrong_options_are_refused(
    llm: LLM, idle_metrics: Callable[[], EngineMetrics], options: dict[str, Any], message: str
) -> None:
    before = idle_metrics()
    with pytest.raises(OpenK3Error) as raised:
        llm.chat([USER], **options)
    assert message in raised.value.message
    assert llm.metrics == before


def test_an_unknown_option_gets_a_suggestion(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="tool_choices is not an option") as raised:
        llm.chat([USER], tool_choices="auto", params=SamplingParams(max_tokens=1))  # type: ignore[call-overload]
    assert raised.value.hint == "did you mean tool_choice?"
