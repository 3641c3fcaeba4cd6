"""A conversation as every part of OpenK3 passes it on, and an answer as it streams.

Unusual: these types only hold data. What the chat format cannot express is refused when it is rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from openk3.protocol.sampling import FinishReason

Role = Literal["system", "user", "assistant", "tool"]
Channel = Literal["think", "response"]
"""Where the model writes: its reasoning, or what the user is to read."""
Effort = Literal["low", "medium", "high", "max"]
ToolChoice = Literal["auto", "none", "required"]
ToolDeclaration = Mapping[str, Any]
"""A tool as JSON: ``{"type": "function", "function": {"name": …, "description": …, "parameters": …}}``."""


@dataclass(frozen=True)
class TextPart:
    """A piece of a message's text."""

    text: str


@dataclass(frozen=True)
class ImagePart:
    """An image in a message: pixels of the original upload, and how many visual tokens it becomes."""

    width: int
    height: int
    num_tokens: int


Part = TextPart | ImagePart


@dataclass(frozen=True)
class ToolCall:
    """A call the model made; ``arguments`` is an object, or the text of one as it went over the wire."""

    id: str
    name: str
    arguments: str | Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message; which fields have meaning depends on ``role``.

    ``reasoning``, ``tool_calls`` and ``partial`` belong to an assistant (``partial``: to be continued), ``tools`` to a
    system message that declares more tools, ``tool_call_id`` and ``tool`` (the name of the tool) to a tool's result.
    """

    role: Role
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool: str | None = None
    tools: tuple[ToolDeclaration, ...] = ()
    partial: bool = False


@dataclass(frozen=True, kw_only=True)
class ResponseFormat:
    """What the response must be; ``schema`` is the JSON schema itself, without the wrapper of the wire.

    Without ``strict`` the model is shown the schema, but held to no more than JSON.
    ``regex`` (Rust's dialect, without look-around) must match the whole response; ``lark`` is a grammar of it in
    llguidance's dialect of Lark, without special tokens. Each of the three belongs to the type of its name.
    """

    type: Literal["text", "json_object", "json_schema", "regex", "lark"] = "text"
    schema: Mapping[str, Any] | None = None
    regex: str | None = None
    lark: str | None = None
    strict: bool = True


@dataclass(frozen=True)
class ReasoningDelta:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """More of the model's response."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; ``index`` counts the calls of this answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class ToolArgumentsDelta:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The arguments of a call are complete."""

    index: int


Delta = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta | ToolCallEnd


@dataclass(frozen=True)
class AssistantTurn:
    """A whole answer; None stands for a channel without text, or for an answer that was left early."""

    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason | None
