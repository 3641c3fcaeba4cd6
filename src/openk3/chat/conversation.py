"""Refuses conversations that the chat format cannot express, before anything of them is rendered.

Unusual: a field that its role has no use for is an error too, because rendering would lose it without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from openk3.errors import ChatError
from openk3.protocol.messages import ImagePart, Message, Role, TextPart, ToolCall

# Sides in pixels, and tokens: as many as the longest context.
_LARGEST_IMAGE = 1 << 20
# Which role has a use for which field; all have for role, content and name.
_OWNERS = {
    "reasoning": "assistant",
    "tool_calls": "assistant",
    "partial": "assistant",
    "tools": "system",
    "tool_call_id": "tool",
    "tool": "tool",
}


def check_conversation(messages: Sequence[Message]) -> None:
    """Raise `ChatError`, naming the message by its position, if one cannot be rendered."""
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        _check_role(message, where)
        _check_types(message, where)
        _check_fields(message, where)
        _check_images(message, where)
        if message.partial:
            _check_partial(message, where, is_last=position == len(messages) - 1)


def _check_role(message: Message, where: str) -> None:
    role: str = message.role
    if role not in get_args(Role):
        hint = "Kimi K3 has no such role; its instructions belong to system" if role == "developer" else None
        raise ChatError(f"{where}: role is {role!r}, expected {', '.join(get_args(Role))}", hint=hint)


def _check_types(message: Message, where: str) -> None:
    """Refuse values that only an unchecked caller can give, such as fields of a JSON object."""
    for field in ("name", "reasoning", "tool_call_id", "tool"):
        _require_text(getattr(message, field), f"{where}: {field}", optional=True)
    for number, call in enumerate(message.tool_calls):
        if not isinstance(call, ToolCall):
            raise ChatError(f"{where}: tool_calls[{number}] is {call!r:.60}, expected a call")
        _require_text(call.name, f"{where}: tool_calls[{number}].name")
        _require_text(call.id, f"{where}: tool_calls[{number}].id", optional=True)
    if not isinstance(message.content, tuple):
        _require_text(message.content, f"{where}: content", optional=True)
        return
    for number, part in enumerate(message.content):
        if isinstance(part, TextPart):
            _require_text(part.text, f"{where}: content[{number}].text")
        elif not isinstance(part, ImagePart):
            raise ChatError(f"{where}: content[{number}] is {part!r:.60}, expected a part with text or an image")


def _require_text(value: object, what: str, *, optional: bool = False) -> None:
    if not (isinstance(value, str) or (optional and value is None)):
        raise ChatError(f"{what} is {value!r:.60}, expected text")


def _check_fields(message: Message, where: str) -> None:
    for field, owner in _OWNERS.items():
        if getattr(message, field) and message.role != owner:
            raise ChatError(f"{where}: {field} is given with role {message.role}, expected only with role {owner}")
    for number, call in enumerate(message.tool_calls):
        if not call.name:
            raise ChatError(f"{where}: tool_calls[{number}] has no name, expected that of a tool")


def _check_images(message: Message, where: str) -> None:
    parts = message.content if isinstance(message.content, tuple) else ()
    for image in parts:
        if not isinstance(image, ImagePart):
            continue
        sizes = (image.width, image.height, image.num_tokens)
        if not all(type(size) is int and 1 <= size <= _LARGEST_IMAGE for size in sizes):
            raise ChatError(
                f"{where}: an image has {image.width}x{image.height} pixels and {image.num_tokens} tokens, "
                f"expected whole numbers of each, from 1 to {_LARGEST_IMAGE}"
            )


def _check_partial(message: Message, where: str, *, is_last: bool) -> None:
    if not is_last:
        raise ChatError(f"{where}: only the last message can be partial")
    if message.tool_calls:
        raise ChatError(f"{where}: a partial message cannot hold tool calls", hint="only text can be continued")
    if isinstance(message.content, tuple) and any(isinstance(part, ImagePart) for part in message.content):
        raise ChatError(f"{where}: a partial message cannot hold images", hint="only text can be continued")
