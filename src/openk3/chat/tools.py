"""Tool calls and their results in a conversation's history.

Unusual: results are brought into the order of the calls they answer, as far as every one of a run can be matched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from openk3.chat.json_text import spaced_json
from openk3.errors import ChatError
from openk3.protocol.messages import Message, Part, ToolCall


@dataclass(frozen=True)
class ToolResult:
    """What a tool said; ``index`` counts the results since the last assistant message from 1."""

    tool: str
    index: int
    content: str | tuple[Part, ...] | None


@dataclass(frozen=True)
class Argument:
    """An argument as the chat format writes it: strings raw, all else JSON."""

    key: str
    type: str
    value: str


@dataclass(frozen=True)
class RawArguments:
    """Arguments that are not JSON, kept as the model wrote them."""

    text: str


def place_tool_results(messages: Sequence[Message]) -> Iterator[Message | ToolResult]:
    """Give the conversation with every tool message sorted, numbered and named after its tool.

    Raises:
        ChatError: a result's tool is not known by its own fields nor by a call at its position.
    """
    calls: tuple[ToolCall, ...] = ()
    positions: Mapping[str | None, int] = {}
    num_results = 0
    for is_run, group in groupby(messages, lambda message: message.role == "tool"):
        if is_run:
            run = _in_call_order(list(group), calls, positions)
            for index, message in enumerate(run, num_results + 1):
                yield ToolResult(_tool_name(message, index, calls), index, message.content)
            num_results += len(run)
            continue
        for message in group:
            if message.role == "assistant":
                calls, num_results = message.tool_calls, 0
                positions = _positions(calls)  # once: there can be as many runs as calls
            yield message


def _positions(calls: Sequence[ToolCall]) -> dict[str | None, int]:
    """Find calls by their ids; of several with the same the first counts."""
    positions: dict[str | None, int] = {}
    for position, call in enumerate(calls):
        if call.id:  # without one, every result without one would answer it
            positions.setdefault(call.id, position)
    return positions


def _in_call_order(run: list[Message], calls: Sequence[ToolCall], positions: Mapping[str | None, int]) -> list[Message]:
    """Sort results by their calls and name them after those; leave the run alone if one matches no call."""
    matched = [(positions[message.tool_call_id], message) for message in run if message.tool_call_id in positions]
    if len(matched) < len(run):
        return run
    matched.sort(key=itemgetter(0))
    return [Message(role="tool", content=message.content, tool=calls[position].name) for position, message in matched]


def _tool_name(message: Message, index: int, calls: Sequence[ToolCall]) -> str:
    name = message.tool or message.name or (calls[index - 1].name if index <= len(calls) else None)
    if not name:
        raise ChatError(
            f"tool result {index} after the last assistant message, with tool_call_id {message.tool_call_id!r}, "
            f"answers none of that message's {len(calls)} calls and does not say its tool",
            hint="give the id of the call as tool_call_id, or the name of the tool",
        )
    return name


def arguments_of(call: ToolCall) -> list[Argument] | RawArguments:
    """Take a call's arguments apart, in their order.

    Raises:
        ChatError: they are JSON but no object, or hold something that JSON has no form for.
    """
    given = call.arguments
    if isinstance(given, str):
        if not given.strip():
            return []
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return RawArguments(str(call.arguments))
    elif given is None:
        return []
    if not isinstance(given, Mapping):
        raise ChatError(
            f"the arguments of call {call.id!r} ({call.name}) are {_json_type(given, call)}, expected an object",
            hint="arguments are an object, or the text of one",
        )
    return [_argument(str(key), value, call) for key, value in given.items()]


def _argument(key: str, value: Any, call: ToolCall) -> Argument:
    text = value if isinstance(value, str) else spaced_json(value, f"argument {key!r} of call {call.id!r}")
    return Argument(key, _json_type(value, call), text)


def _json_type(value: Any, call: ToolCall) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
    raise ChatError(f"the arguments of call {call.id!r} ({call.name}) hold a {type(value).__name__}, which JSON lacks")
