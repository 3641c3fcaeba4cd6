"""Messages and tools as callers write them, to the types that the rest of OpenK3 knows.

Unusual: a key that nobody reads is an error, with the one that was probably meant; a key without a value is as good as
none, because clients' own objects are full of those.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from openk3.errors import ChatError
from openk3.protocol.checks import shown
from openk3.protocol.messages import ImagePart, Message, Part, TextPart, ToolCall, ToolDeclaration

_EXAMPLE = 'write [{"role": "user", "content": "Hello"}]'
_KEYS = (
    "role",
    "content",
    "name",
    "reasoning",
    "reasoning_content",
    "tool_calls",
    "tool_call_id",
    "tool",
    "tools",
    "partial",
)
_CALL_KEYS = ("id", "type", "function", "index")
_FUNCTION_KEYS = ("name", "arguments")
_PART_KEYS = ("type", "text")


def to_messages(messages: object) -> list[Message]:
    """Convert a conversation, of `Message` objects or objects as OpenAI's clients send them.

    Raises:
        ChatError: it is no list of messages; which one is wrong is said by its position.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ChatError(f"messages are {shown(messages)}, expected a list of messages", hint=_EXAMPLE)
    if not messages:
        raise ChatError("there are no messages, expected at least one", hint=_EXAMPLE)
    return [_message(message, f"messages[{position}]") for position, message in enumerate(messages)]


def to_tools(tools: object) -> tuple[ToolDeclaration, ...]:
    """Check that ``tools`` are a list of objects; raise `ChatError` if not."""
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise ChatError(f"tools are {shown(tools)}, expected a list of declarations")
    for position, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise ChatError(f"tools[{position}] is {shown(tool)}, expected an object that declares a function")
    return tuple(tools)


def _message(message: object, where: str) -> Message:
    if isinstance(message, Message):
        return _readable(message, where)
    if not isinstance(message, Mapping):
        raise ChatError(f"{where} is {shown(message)}, expected a message", hint=_EXAMPLE)
    given = _known(message, _KEYS, where)
    if "role" not in given:
        raise ChatError(f"{where} has no role, expected system, user, assistant or tool", hint=_EXAMPLE)
    if "reasoning" in given and "reasoning_content" in given:
        raise ChatError(f"{where} has both reasoning and reasoning_content, expected one: they are the same thing")
    return Message(
        role=given["role"],
        content=_content(given.get("content"), f"{where}: content"),
        name=given.get("name"),
        reasoning=given.get("reasoning", given.get("reasoning_content")),
        tool_calls=tuple(
            _call(call, f"{where}: tool_calls[{n}]")
            for n, call in enumerate(_list(given.get("tool_calls", ()), f"{where}: tool_calls"))
        ),
        tool_call_id=given.get("tool_call_id"),
        tool=given.get("tool"),
        tools=to_tools(given.get("tools", ())),
        partial=_flag(given.get("partial", False), f"{where}: partial"),
    )


def _readable(message: Message, where: str) -> Message:
    """Refuse an image: it would be rendered, and the model would read placeholders."""
    parts = message.content if isinstance(message.content, tuple) else ()
    for number, part in enumerate(parts):
        if isinstance(part, ImagePart):
            raise ChatError(f"{where}: content[{number}] is an image, expected text: only text can be read so far")
    return message


def _content(content: object, where: str) -> str | tuple[Part, ...] | None:
    if content is None or isinstance(content, str):
        return content
    return tuple(_part(part, f"{where}[{number}]") for number, part in enumerate(_list(content, where)))


def _part(part: object, where: str) -> Part:
    if isinstance(part, TextPart):
        return part
    if not isinstance(part, Mapping):
        raise ChatError(f"{where} is {shown(part)}, expected a part with text")
    if part.get("type") != "text":
        raise ChatError(f"{where}: type is {shown(part.get('type'))}, expected 'text': only text can be read so far")
    text = _known(part, _PART_KEYS, where).get("text")
    if not isinstance(text, str):
        raise ChatError(f"{where}: text is {shown(text)}, expected text")
    return TextPart(text)


def _call(call: object, where: str) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    if not isinstance(call, Mapping):
        raise ChatError(f"{where} is {shown(call)}, expected a call of a function")
    given = _known(call, _CALL_KEYS, where)
    function = given.get("function")
    if not isinstance(function, Mapping):
        raise ChatError(f"{where}: function is {shown(function)}, expected an object with name and arguments")
    function = _known(function, _FUNCTION_KEYS, f"{where}: function")
    return ToolCall(id=given.get("id", ""), name=function.get("name", ""), arguments=function.get("arguments"))


def _known(given: Mapping[Any, Any], keys: Collection[str], where: str) -> dict[str, Any]:
    """Return what has a value; raise `ChatError` for a key that is not one of ``keys``."""
    kept = {key: value for key, value in given.items() if value is not None}
    for key in kept:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            raise ChatError(
                f"{where} has {key!r}, expected {', '.join(keys)}", hint=f"did you mean {near[0]}?" if near else None
            )
    return kept


def _list(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ChatError(f"{where} is {shown(value)}, expected a list")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ChatError(f"{where} is {shown(value)}, expected true or false")
    return value
