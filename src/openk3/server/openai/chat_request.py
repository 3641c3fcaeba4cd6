"""A body of Chat Completions, to what is asked of the model.

Unusual: fields that are not read here (``user``, ``metadata``, ``parallel_tool_calls`` and whatever clients invent)
have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from openk3.chat.grammar import declared_tools
from openk3.llm.question import ChatOptions
from openk3.protocol.messages import Channel, Message, TextPart, ToolDeclaration
from openk3.protocol.sampling import SamplingParams
from openk3.server.endpoint import Asked, ServedModel, require_model
from openk3.server.faults import Fault
from openk3.server.openai.chat_messages import read_messages
from openk3.server.openai.chat_tools import read_choice, read_tools, require_unique
from openk3.server.openai.parameters import (
    DEFAULT_MAX_TOKENS,
    check_hints,
    read_max_tokens,
    read_parameters,
    with_max_tokens,
)
from openk3.server.openai.response_format import read_response_format
from openk3.server.openai.thinking import Thinking, read_thinking
from openk3.server.values import Fields

_LIMITS = ("max_completion_tokens", "max_tokens")


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """What a stream has besides the answer: usage at its end or on every frame, and the ids behind every frame."""

    include_usage: bool = False
    continuous_usage: bool = False
    internal_content: bool = False


@dataclass(frozen=True, kw_only=True)
class ChatView:
    """What the form of an answer depends on; ``channel`` is where the model begins to write."""

    thinking: bool = True
    channel: Channel = "think"
    logprobs: bool = False
    stream: StreamOptions = StreamOptions()


def read_chat(body: Mapping[str, Any], model: ServedModel) -> Asked:
    """Read a body.

    Raises:
        Fault: what is wrong with it, where, and what was expected (status 400; 404 for an unknown model).
    """
    fields = Fields(body)
    name = require_model(body.get("model"), model)
    thinking = read_thinking(fields)
    messages = read_messages(fields)
    limit = read_max_tokens(fields, _LIMITS, model)
    check_hints(fields)
    return Asked(
        model=name,
        messages=messages,
        options=_options(fields, messages, thinking, _params(fields, model, thinking, limit)),
        stream=fields.flag("stream") or False,
        explicit_max_tokens=limit,
        body=ChatView(
            thinking=thinking.enabled,
            channel=_channel(messages[-1], thinking),
            logprobs=fields.flag("logprobs") or False,
            stream=read_stream_options(fields),
        ),
    )


def read_stream_options(body: Fields) -> StreamOptions:
    """Read ``stream_options``; raise `Fault` (400) for one that is neither true nor false."""
    options = body.fields("stream_options") or Fields({})
    return StreamOptions(
        include_usage=options.flag("include_usage") or False,
        continuous_usage=options.flag("continuous_usage_stats") or False,
        internal_content=options.flag("include_internal_content") or False,
    )


def _options(body: Fields, messages: tuple[Message, ...], thinking: Thinking, params: SamplingParams) -> ChatOptions:
    tools = read_tools(body.get("tools"))
    require_unique(_places(tools, messages))
    names = [tool["function"]["name"] for tool in declared_tools(tools, messages)]
    choice = read_choice(body.get("tool_choice"), names)
    wanted = read_response_format(body.fields("response_format"))
    if wanted is not None and messages[-1].partial:
        raise Fault(
            f"messages[{len(messages) - 1}].partial is true and response_format is {wanted.type}, expected one of both",
            param="response_format",
        )
    return ChatOptions(
        params=params,
        tools=tools,
        tool_choice=choice.tool_choice,
        only_tool=choice.only_tool,
        response_format=wanted,
        thinking=thinking.enabled,
        effort=thinking.effort,
    )


def _places(tools: tuple[ToolDeclaration, ...], messages: tuple[Message, ...]) -> list[tuple[str, ToolDeclaration]]:
    """Give every tool of the conversation with its path."""
    places = [(f"tools[{number}]", tool) for number, tool in enumerate(tools)]
    for position, message in enumerate(messages):
        places += [(f"messages[{position}].tools[{number}]", tool) for number, tool in enumerate(message.tools)]
    return places


def _params(body: Fields, model: ServedModel, thinking: Thinking, limit: int | None) -> SamplingParams:
    params = read_parameters(body, model, thinking=thinking.enabled)
    return replace(with_max_tokens(params, limit or DEFAULT_MAX_TOKENS), top_logprobs=_alternatives(body))


def _alternatives(body: Fields) -> int:
    """Read how many alternatives to report with each token."""
    count = body.get("top_logprobs")
    wanted = count.whole(0, 20) if count else 0
    if count and wanted and not body.flag("logprobs"):
        raise count.fault("logprobs: true beside it")
    return wanted


def _channel(last: Message, thinking: Thinking) -> Channel:
    """Say where the model begins: a message with text is continued in the response."""
    content = last.content
    if isinstance(content, tuple):
        content = "".join(part.text for part in content if isinstance(part, TextPart))
    return "think" if thinking.enabled and not (last.partial and content) else "response"
