"""Anthropic's messages, made of blocks, to those of a conversation.

Unusual: one message can become several, as results of tools are blocks of a user's message; and neighbouring messages
of the assistant become one. Signatures are not looked at, so that no thinking is ever refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import cast

from openk3.protocol.messages import Message, Part, Role, TextPart, ToolCall
from openk3.server.values import Fields, Items, Value, one_of

_ROLES = ("user", "assistant", "system")
_KINDS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
    "tool": ("text",),
}
_MEDIA = ("image", "document", "search_result")
# Claude Code begins its system prompt with this line, different in each request: no prefix would be found again.
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")


def read_messages(body: Fields) -> tuple[Message, ...]:
    """Return the conversation of a body, its system prompt first; a last message of the assistant is to be continued.

    Raises:
        Fault: something is no message, or no block that its role can have.
    """
    given = body.require("messages", "a list of messages")
    items = given.items("a list of messages")
    if not items:
        raise given.fault("at least one message")
    messages = [*_system(body.get("system")), *_conversation(items)]
    if messages[-1].role == "assistant":
        messages[-1] = _continued(messages[-1], items[-1])
    return tuple(messages)


def _continued(message: Message, last: Value) -> Message:
    if message.tool_calls:
        raise last.fault("a message of the user after it, with a tool_result for each tool_use")
    return Message(role="assistant", content=message.content, reasoning=message.reasoning, partial=True)


def _conversation(items: Items) -> Iterator[Message]:
    tools: dict[str, str] = {}
    for role, run in groupby(map(_turn, items), key=itemgetter(0)):
        if role == "assistant":
            message = _assistant([block for _, blocks in run for block in blocks])
            tools.update((call.id, call.name) for call in message.tool_calls)
            yield message
            continue
        for _, blocks in run:
            yield from _user(blocks, tools) if role == "user" else _system_message(blocks)


def _turn(item: Value) -> tuple[Role, list[Fields]]:
    message = item.fields("a message with role and content")
    role = message.require("role", one_of(_ROLES)).choice(_ROLES)
    content = message.get("content")
    if content is None and role != "assistant":
        content = message.require("content", "a string or a list of blocks")
    return cast(Role, role), _blocks(content, role)


def _blocks(content: Value | None, role: str) -> list[Fields]:
    """Return blocks of the kinds that a role can have; a string is a block of text, an empty one is none."""
    if content is None or content.value == "":
        return []
    if isinstance(content.value, str):
        return [Fields({"type": "text", "text": content.value}, content.path)]
    blocks = [item.fields("a block, an object") for item in content.items("a string or a list of blocks")]
    for block in blocks:
        kind = block.require("type", one_of(_KINDS[role]))
        if kind.value in _MEDIA:
            raise kind.fault("text", hint="only text can be read so far")
        kind.choice(_KINDS[role])
    return blocks


def _system(content: Value | None) -> list[Message]:
    return _system_message(_blocks(content, "system"))


def _system_message(blocks: Sequence[Fields]) -> list[Message]:
    texts = [_BILLING_LINE.sub("", text) for text in _texts(blocks)]
    kept = [text for text in texts if text]
    return [Message(role="system", content=_content(kept))] if kept else []


def _assistant(blocks: Sequence[Fields]) -> Message:
    thoughts = [block.text("thinking") or "" for block in blocks if block.values["type"] == "thinking"]
    return Message(
        role="assistant",
        content=_content(_texts(blocks)),
        reasoning="\n\n".join(thoughts) or None,
        tool_calls=tuple(_call(block) for block in blocks if block.values["type"] == "tool_use"),
    )


def _call(block: Fields) -> ToolCall:
    name = block.require("name", "the name of a tool")
    if not name.text("the name of a tool"):
        raise name.fault("the name of a tool")
    arguments = block.fields("input")
    return ToolCall(
        id=block.require("id", "an id, a string").text(),
        name=name.text(),
        arguments={} if arguments is None else arguments.values,
    )


def _user(blocks: Sequence[Fields], tools: dict[str, str]) -> Iterator[Message]:
    """Give the results of tools, and then what the user says."""
    results = [block for block in blocks if block.values["type"] == "tool_result"]
    yield from (_result(block, tools) for block in results)
    texts = _texts(blocks)
    if texts or not results:
        yield Message(role="user", content=_content(texts))


def _result(block: Fields, tools: dict[str, str]) -> Message:
    call_id = block.require("tool_use_id", "the id of a tool_use")
    if call_id.text() not in tools:
        raise call_id.fault("the id of a tool_use in an earlier message of the assistant")
    content = _content(_texts(_blocks(block.get("content"), "tool")))
    return Message(role="tool", content=content, tool_call_id=call_id.text(), tool=tools[call_id.text()])


def _texts(blocks: Sequence[Fields]) -> list[str]:
    return [block.require("text", "a string").text() for block in blocks if block.values["type"] == "text"]


def _content(texts: Sequence[str]) -> str | tuple[Part, ...]:
    """One text as it is; several stay parts, which the chat format puts together."""
    return "".join(texts) if len(texts) <= 1 else tuple(map(TextPart, texts))
