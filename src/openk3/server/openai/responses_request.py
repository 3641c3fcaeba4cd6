"""A body of the Responses API, to what is asked of the model.

Unusual: nothing is stored, so whatever refers to what was is refused; ``store`` itself is accepted, as clients always
send it, and answered with false. Fields that are not read here have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openk3.llm.question import ChatOptions
from openk3.protocol.messages import Channel, ResponseFormat
from openk3.protocol.sampling import SamplingParams
from openk3.server.endpoint import Asked, ServedModel, require_model
from openk3.server.openai.chat_tools import Choice
from openk3.server.openai.parameters import (
    DEFAULT_MAX_TOKENS,
    check_hints,
    read_max_tokens,
    read_parameters,
    with_max_tokens,
)
from openk3.server.openai.response_format import read_schema
from openk3.server.openai.responses_items import read_input
from openk3.server.openai.responses_tools import Tool, read_tool_choice, read_tools, require_unique
from openk3.server.openai.thinking import Thinking, read_thinking
from openk3.server.values import Fields

_LOGPROBS = "message.output_text.logprobs"
_FORMATS = ("text", "json_object", "json_schema")
_SUMMARIES = ("auto", "concise", "detailed")
_STORED = ("previous_response_id", "conversation", "prompt")
_MOST_ALTERNATIVES = 20


@dataclass(frozen=True, kw_only=True)
class ResponsesView:
    """What the form of an answer depends on; ``repeated`` is what it says of the request, as the client wrote it."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    thinking: bool = True
    channel: Channel = "think"
    logprobs: bool = False
    repeated: Mapping[str, Any] = field(default_factory=dict)


def read_responses(body: Mapping[str, Any], model: ServedModel) -> Asked:
    """Read a body.

    Raises:
        Fault: what is wrong with it, where, and what was expected (status 400; 404 for an unknown model).
    """
    fields = Fields(body)
    name = require_model(body.get("model"), model)
    _refuse_stored(fields)
    check_hints(fields)
    fields.flag("store")
    thinking = read_thinking(fields, _effort(fields))
    limit = read_max_tokens(fields, ("max_output_tokens",), model)
    conversation = read_input(fields)
    tools = require_unique([*(declared := read_tools(fields.get("tools"))), *conversation.tools])
    choice = read_tool_choice(fields.get("tool_choice"), tools)
    alternatives = fields.whole("top_logprobs", 0, _MOST_ALTERNATIVES) or 0
    params = replace(_params(fields, model, thinking, limit), top_logprobs=alternatives)
    return Asked(
        model=name,
        messages=tuple(conversation.messages),
        options=ChatOptions(
            params=params,
            tools=tuple(tool.declaration for tool in declared),
            tool_choice=choice.tool_choice,
            only_tool=choice.only_tool,
            response_format=_read_format(fields),
            thinking=thinking.enabled,
            effort=thinking.effort,
        ),
        stream=fields.flag("stream") or False,
        explicit_max_tokens=limit,
        body=ResponsesView(
            tools=tools,
            thinking=thinking.enabled,
            channel="think" if thinking.enabled else "response",
            logprobs=bool(alternatives) or _LOGPROBS in _included(fields),
            repeated=_repeated(fields, _shown_params(params, model), thinking, choice),
        ),
    )


def _refuse_stored(body: Fields) -> None:
    """Refuse to go on from what another request left."""
    for name in _STORED:
        if value := body.get(name):
            raise value.fault("null: nothing is stored here", hint="send the whole conversation as input")
    background = body.get("background")
    if background and background.flag():
        raise background.fault("false: nothing is stored here", hint="wait for the answer, or stream it")


def _effort(body: Fields) -> Any:
    reasoning = body.fields("reasoning")
    return reasoning.get("effort") if reasoning else None


def _params(body: Fields, model: ServedModel, thinking: Thinking, limit: int | None) -> SamplingParams:
    params = read_parameters(body, model, thinking=thinking.enabled)
    return with_max_tokens(params, limit or DEFAULT_MAX_TOKENS)


def _shown_params(params: SamplingParams, model: ServedModel) -> SamplingParams:
    """Give parameters with the limit that holds: no answer is longer than the model's context."""
    return replace(params, max_tokens=min(params.max_tokens or model.max_tokens, model.max_tokens))


def _read_format(body: Fields) -> ResponseFormat | None:
    text = body.fields("text")
    wanted = text.fields("format") if text else None
    if wanted is None:
        return None
    kind = wanted.require("type", "text, json_object or json_schema").choice(_FORMATS)
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat(type="json_object")
    wanted.text("name")
    return read_schema(wanted)


def _included(body: Fields) -> list[str]:
    return [value.text() for value in body.items("include", "a list of strings") or ()]


def _repeated(body: Fields, params: SamplingParams, thinking: Thinking, choice: Choice) -> dict[str, Any]:
    """Say what of the request held, as part of the answer."""
    text = body.fields("text") or Fields({})
    summary = (body.fields("reasoning") or Fields({})).values.get("summary")
    return {
        "instructions": body.values.get("instructions"),
        "max_output_tokens": params.max_tokens,
        "parallel_tool_calls": True,
        "prompt_cache_key": body.values.get("prompt_cache_key"),
        "reasoning": {
            "effort": thinking.effort if thinking.enabled else "none",
            "summary": summary if summary in _SUMMARIES else None,
        },
        "safety_identifier": body.values.get("safety_identifier"),
        "temperature": params.temperature,
        "text": {"format": _shown_format(text.fields("format"))},
        "tool_choice": body.values.get("tool_choice") if choice.only_tool else choice.tool_choice,
        "tools": body.values.get("tools") or [],
        "top_logprobs": params.top_logprobs,
        "top_p": params.top_p,
    }


def _shown_format(wanted: Fields | None) -> dict[str, Any]:
    if wanted is None:
        return {"type": "text"}
    shown = dict(wanted.values)
    return {"name": "output", **shown} if shown["type"] == "json_schema" else shown
