"""Messages as Chat Completions sends them, to those of the protocol.

Unusual: whatever this server emits on a message is accepted back, and so is what others add to one; a field that the
message's role has no use for is refused, since rendering would lose it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from openk3.chat.conversation import check_conversation
from openk3.errors import ChatError
from openk3.protocol.messages import Message, Part, Role, TextPart, ToolCall
from openk3.server.faults import Fault, fault_of
from openk3.server.openai.chat_tools import read_tools
from openk3.server.values import Fields, Value, one_of

_ROLES = ("system", "user", "assistant", "tool", "developer")
_MEDIA = {
    "image_url": "an image",
    "image": "an image",
    "video_url": "a video",
    "input_audio": "audio",
    "file": "a file",
}


def read_messages(body: Fields) -> tuple[Message, ...]:
    """Read the conversation.

    Raises:
        Fault: it is no list of messages, or one of them is wrong; its path is said (400).
    """
    values = body.require("messages", "a list of messages").items("a list of messages")
    if not values:
        raise Fault("messages is [], expected at least one message", param="messages")
    messages = tuple(_read(value.fields("a message, an object")) for value in values)
    try:
        check_conversation(messages)
    except ChatError as error:
        raise fault_of(error) from None
    return messages


def _read(fields: Fields) -> Message:
    role = fields.require("role", one_of(_ROLES)).choice(_ROLES)
    message = Message(
        role=cast(Role, "system" if role == "developer" else role),
        content=_content(fields.get("content")),
        name=fields.text("name") or None,
        reasoning=_reasoning(fields),
        tool_calls=tuple(_call(call) for call in fields.items("tool_calls", "a list of calls") or ()),
        tool_call_id=_call_id(fields, role),
        tools=read_tools(_tools(fields, role)),
        partial=fields.flag("partial") or False,
    )
    _require_content(message, fields)
    return message


def _content(content: Value | None) -> str | tuple[Part, ...] | None:
    if content is None or isinstance(content.value, str):
        return None if content is None else content.text()
    return tuple(_part(part) for part in content.items("a string or a list of parts"))


def _part(part: Value) -> TextPart:
    fields = part.fields('a part: {"type": "text", "text": …}')
    kind = fields.require("type", '"text"')
    if isinstance(kind.value, str) and kind.value in _MEDIA:
        raise kind.fault(f'"text": this model reads text only, not {_MEDIA[kind.value]}')
    kind.choice(("text",))
    return TextPart(fields.require("text", "a string").text())


def _reasoning(fields: Fields) -> str | None:
    """Read reasoning under either of its names; the hosted service's own counts."""
    text = fields.text("reasoning_content")
    return fields.text("reasoning") if text is None else text


def _call(call: Value) -> ToolCall:
    fields = call.fields("a call, an object")
    fields.choice("type", ("function",))
    function = fields.require("function", "an object with name and arguments").fields()
    name = function.require("name", "the name of a tool")
    if not name.text():
        raise name.fault("the name of a tool")
    return ToolCall(fields.text("id") or "", name.text(), _arguments(function.get("arguments")))


def _arguments(arguments: Value | None) -> str | Mapping[str, Any] | None:
    given = arguments.value if arguments else None
    if arguments and not isinstance(given, str | Mapping):
        raise arguments.fault("a string with the JSON of an object")
    return given


def _call_id(fields: Fields, role: str) -> str | None:
    if role != "tool":
        return fields.text("tool_call_id")
    call_id = fields.require("tool_call_id", "the id of the call that this message answers")
    if not call_id.text():
        raise call_id.fault("the id of the call that this message answers")
    return call_id.text()


def _tools(fields: Fields, role: str) -> Value | None:
    tools = fields.get("tools")
    if tools is not None and role not in ("system", "developer"):
        raise Fault(f"{tools.path} is given with role {role}, expected only with role system", param=tools.path)
    return tools


def _require_content(message: Message, fields: Fields) -> None:
    """Refuse a message that says nothing, unless this server may have said it."""
    path = fields.path_of("content")
    if message.tools:
        if _has_text(message.content):
            raise Fault(f"{path} is given beside tools, expected one of both", param=path, hint="send two messages")
    elif message.role == "assistant":
        may_be_ours = message.reasoning is not None or message.content == ""  # an empty answer without thinking
        if not (_has_text(message.content) or message.tool_calls or message.partial or may_be_ours):
            raise Fault(
                f"{path} must not be empty: this message of the assistant has no reasoning_content and no tool_calls",
                param=path,
                hint="leave the message out",
            )
    elif message.content is None and message.role != "tool":
        raise Fault(f"{path} is missing, expected a string or a list of parts", param=path)


def _has_text(content: str | tuple[Part, ...] | None) -> bool:
    if content is None or isinstance(content, str):
        return bool(content)
    return any(not isinstance(part, TextPart) or part.text for part in content)
