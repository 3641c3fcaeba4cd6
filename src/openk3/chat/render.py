"""Conversations to token ids, as Kimi K3 was trained to read them.

Unusual: there is no template text. Tags and payload are encoded one by one, so that nothing a user writes can become
a control token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from openk3.chat.conversation import check_conversation
from openk3.chat.instructions import declare_tools, state_effort, state_response_format, state_tool_choice
from openk3.chat.segments import Segment, SegmentWriter
from openk3.chat.tools import RawArguments, ToolResult, arguments_of, place_tool_results
from openk3.errors import ChatError
from openk3.protocol.messages import (
    Channel,
    Effort,
    Message,
    Part,
    ResponseFormat,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolDeclaration,
)

if TYPE_CHECKING:
    from openk3.tokenizer.bpe import Tokenizer

# The tag that opens the channel for the model is not billed: a control token, its name, a separator.
_UNBILLED = 3


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt; the model goes on in ``channel``, which the prompt opened."""

    segments: tuple[Segment, ...]
    channel: Channel

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """What the model reads."""
        return tuple(token for segment in self.segments for token in segment.ids)

    @property
    def text(self) -> str:
        """Everything spelled out, for reading only: it must not be encoded again."""
        return "".join(segment.text for segment in self.segments)

    @property
    def num_prompt_tokens(self) -> int:
        """How many tokens count as the prompt's in usage."""
        return len(self.ids) - _UNBILLED


class RenderedDialogue(NamedTuple):
    """A dialogue to train on; ``trained`` is true for each id that the model has to write itself."""

    ids: list[int]
    trained: list[bool]


def render(
    messages: Sequence[Message],
    *,
    tokenizer: Tokenizer,
    tools: Sequence[ToolDeclaration] = (),
    tool_choice: ToolChoice = "auto",
    response_format: ResponseFormat | None = None,
    thinking: bool = True,
    effort: Effort | None = "max",
) -> RenderedPrompt:
    """Render a conversation for the model to answer, or to continue its last message if that is partial.

    ``effort`` None says nothing about effort; it has no meaning without ``thinking``.

    Raises:
        ChatError: the conversation, or an option, is something that the format cannot express.
        TokenizerError: the vocabulary lacks a control token that is needed.
    """
    check_conversation(messages)
    partial = messages[-1] if messages and messages[-1].partial else None
    if partial and response_format and response_format.type != "text":
        raise ChatError(
            f"messages[{len(messages) - 1}] is partial and response format is {response_format.type!r}, "
            "expected one or the other",
            hint="a started text and a JSON response contradict each other",
        )
    renderer = _Renderer(tokenizer, thinking)
    renderer.opening(tools, effort)
    renderer.history(messages[:-1] if partial else messages)
    renderer.instructions(tool_choice, response_format)
    channel = renderer.continued(partial) if partial else renderer.generation_prompt()
    return RenderedPrompt(tuple(renderer.writer.segments), channel)


def render_dialogue(
    messages: Sequence[Message],
    *,
    tokenizer: Tokenizer,
    tools: Sequence[ToolDeclaration] = (),
    tool_choice: ToolChoice = "auto",
    response_format: ResponseFormat | None = None,
    thinking: bool = True,
    effort: Effort | None = "max",
) -> RenderedDialogue:
    """Render a whole dialogue to train on; its last message is the assistant's.

    Trained is each assistant message, from behind the tag that opens its first channel up to the end of the message:
    what stands before is what `render` gives for the messages before. ``tool_choice`` and ``response_format`` apply to
    the last message.

    Raises:
        ChatError: the dialogue, or an option, is something that the format cannot express.
        TokenizerError: the vocabulary lacks a control token that is needed.
    """
    check_conversation(messages)
    if not messages or messages[-1].role != "assistant" or messages[-1].partial:
        raise ChatError("the last message of a dialogue to train on must be a complete one of the assistant")
    renderer = _Renderer(tokenizer, thinking, mark_trained=True)
    renderer.opening(tools, effort)
    renderer.history(messages[:-1])
    renderer.instructions(tool_choice, response_format)
    renderer.assistant(messages[-1])
    segments = renderer.writer.segments
    ids = [token for segment in segments for token in segment.ids]
    return RenderedDialogue(ids, [segment.trained for segment in segments for _ in segment.ids])


class _Renderer:
    """Writes the parts of a prompt in the order they are asked for."""

    def __init__(self, tokenizer: Tokenizer, thinking: bool, *, mark_trained: bool = False) -> None:
        self.writer = SegmentWriter(tokenizer)
        self._thinking = thinking
        self._mark_trained = mark_trained

    def opening(self, tools: Sequence[ToolDeclaration], effort: Effort | None) -> None:
        """Write what comes before the conversation."""
        if tools:
            self._system("tool-declare", declare_tools(tools, dynamic=False))
        if self._thinking and effort is not None:
            self._system("thinking-effort", state_effort(effort))

    def history(self, messages: Sequence[Message]) -> None:
        """Write complete messages."""
        for message in place_tool_results(messages):
            if isinstance(message, ToolResult):
                self._tool_result(message)
            elif message.role == "assistant":
                self.assistant(message)
            elif message.tools:
                self._system("tool-declare", declare_tools(message.tools, dynamic=True))
            else:
                self._open_message(message.role, message.name)
                self._content(message.content)
                self.writer.close_message()

    def instructions(self, tool_choice: ToolChoice, response_format: ResponseFormat | None) -> None:
        """Write what applies to the next answer only."""
        if choice := state_tool_choice(tool_choice):
            self._system("tool-choice", choice)
        if response_format and (wanted := state_response_format(response_format)):
            self._system("response-format", wanted)

    def generation_prompt(self, name: str | None = None) -> Channel:
        """Open the message that the model is to write, and its first channel."""
        channel: Channel = "think" if self._thinking else "response"
        self._open_message("assistant", name)
        self.writer.open(channel)
        return channel

    def continued(self, message: Message) -> Channel:
        """Write a partial message as far as it goes: its reasoning if it has no content, else its content too."""
        prefix = _joined_text(message.content)
        channel = self.generation_prompt(message.name)
        if channel == "think":
            self.writer.text(_reasoning(message))
            if not prefix:
                return channel
            self.writer.close("think")
            self.writer.open("response")
        self.writer.text(prefix)
        return "response"

    def assistant(self, message: Message) -> None:
        """Write a complete message of the assistant."""
        self.generation_prompt(message.name)
        self.writer.trained = self._mark_trained
        if self._thinking:
            self.writer.text(_reasoning(message))
            self.writer.close("think")
            self.writer.open("response")
        self._content(message.content)
        self.writer.close("response")
        if message.tool_calls:
            self._calls(message.tool_calls)
        self.writer.close_message()
        self.writer.trained = False

    def _calls(self, calls: Sequence[ToolCall]) -> None:
        self.writer.open("tools")
        for index, call in enumerate(calls, 1):
            self.writer.open("call", [("tool", call.name), ("index", str(index))])
            self._arguments(call)
            self.writer.close("call")
        self.writer.close("tools")

    def _arguments(self, call: ToolCall) -> None:
        arguments = arguments_of(call)
        if isinstance(arguments, RawArguments):
            self.writer.open("json", [("type", "object")])
            self.writer.text(arguments.text)
            self.writer.close("json")
            return
        for argument in arguments:
            self.writer.open("argument", [("key", argument.key), ("type", argument.type)])
            self.writer.text(argument.value)
            self.writer.close("argument")

    def _tool_result(self, result: ToolResult) -> None:
        self.writer.open("message", [("role", "tool"), ("tool", result.tool), ("index", str(result.index))])
        self._content(result.content)
        self.writer.close_message()

    def _system(self, kind: str, body: str) -> None:
        self.writer.open("message", [("role", "system"), ("type", kind)])
        self.writer.text(body)
        self.writer.close_message()

    def _open_message(self, role: str, name: str | None) -> None:
        self.writer.open("message", [("role", role), *([("name", name)] if name else [])])

    def _content(self, content: str | tuple[Part, ...] | None) -> None:
        if content is None or isinstance(content, str):
            self.writer.text(content or "")
            return
        for part in content:
            if isinstance(part, TextPart):
                self.writer.text(part.text)
            else:
                self.writer.image(part)


def _reasoning(message: Message) -> str:
    """Give the reasoning as it is rendered: whitespace alone is none."""
    return message.reasoning if message.reasoning and not message.reasoning.isspace() else ""


def _joined_text(content: str | tuple[Part, ...] | None) -> str:
    if isinstance(content, tuple):
        return "".join(part.text for part in content if isinstance(part, TextPart))
    return content or ""
