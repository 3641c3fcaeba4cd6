"""What a model's text and tags mean: reasoning, response, calls.

Unusual: every sequence of tags means something. A tag that cannot stand where it is ends what is open, or says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from openk3.chat.arguments import ArgumentsBuilder
from openk3.chat.tags import Tag
from openk3.protocol.messages import (
    Channel,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)


class _State(Enum):
    THINK = auto()
    BETWEEN = auto()
    RESPONSE = auto()
    TOOLS = auto()
    CALL = auto()
    VALUE = auto()
    DONE = auto()


_IN_CALL = (_State.CALL, _State.VALUE)
_IN_TOOLS = (_State.TOOLS, *_IN_CALL)


class Turn:
    """Turn text and tags of one answer into deltas, handed to ``emit`` one by one.

    Calls are numbered in the order they come, their ids from ``call_id_offset`` on. Without ``tools_declared`` there
    is nobody to call, so calls are dropped.
    """

    def __init__(
        self, emit: Callable[[Delta], None], *, channel: Channel, tools_declared: bool, call_id_offset: int
    ) -> None:
        self.num_calls = 0
        self._emit = emit
        self._tools_declared = tools_declared
        self._call_id_offset = call_id_offset
        self._state = _State.THINK if channel == "think" else _State.RESPONSE
        self._had_response = channel == "response"
        self._stray: list[str] = []
        self._arguments: ArgumentsBuilder | None = None

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._state is _State.THINK

    @property
    def in_response(self) -> bool:
        """Whether what comes next is the response."""
        return self._state is _State.RESPONSE

    def text(self, text: str) -> None:
        """Take text outside of tags."""
        if self._state is _State.THINK:
            self._emit(ReasoningDelta(text))
        elif self._state is _State.RESPONSE:
            self._emit(ContentDelta(text))
        elif self._state is _State.BETWEEN:
            self._stray.append(text)
        elif self._state is _State.VALUE and self._arguments:
            self._emit_arguments(self._arguments.write(text))

    def open(self, tag: Tag) -> None:
        """Take an opening tag; an unknown one says nothing."""
        if self._state is _State.DONE:
            return
        match tag.name:
            case "think":
                self._enter(_State.THINK)
            case "response":
                self._enter(_State.RESPONSE)
                self._had_response = True
            case "tools":
                self._enter(_State.TOOLS)
            case "call":
                self._enter(_State.CALL)
                self._begin_call(tag.attributes.get("tool"))
            case "argument" | "json" if self._state in _IN_CALL:
                self._begin_value(tag)
            case "message":
                self.end()

    def close(self, name: str) -> None:
        """Take a closing tag; one of something that is not open says nothing."""
        match name:
            case "think" if self._state is _State.THINK:
                self._enter(_State.BETWEEN)
            case "response" if self._state is _State.RESPONSE:
                self._enter(_State.BETWEEN)
            case "tools" if self._state in _IN_TOOLS:
                self._enter(_State.BETWEEN)
            case "call" if self._state in _IN_CALL:
                self._enter(_State.TOOLS)
            case "argument" | "json" if self._state is _State.VALUE:
                self._end_value()
            case "message":
                self.end()

    def end(self) -> None:
        """End the answer where the model ends it; what it left open ends with it."""
        if self._state is not _State.DONE:
            self._enter(_State.DONE)
            self._emit_stray()

    def cut(self) -> None:
        """End the answer at a limit; what is open stays open."""
        if self._state is not _State.DONE:
            self._state = _State.DONE
            if self._arguments:
                self._emit_arguments(self._arguments.cut())
            self._emit_stray()

    def _enter(self, state: _State) -> None:
        if self._state in _IN_CALL:
            self._end_call()
        self._state = state

    def _emit_stray(self) -> None:
        """Take text between channels for the response, if no response ever began."""
        text = "" if self._had_response else "".join(self._stray).strip()
        if text:
            self._emit(ContentDelta(text))

    def _begin_call(self, tool: str | None) -> None:
        if not tool or not self._tools_declared:
            return
        index = self.num_calls
        self.num_calls += 1
        self._arguments = ArgumentsBuilder()
        self._emit(ToolCallStart(index, f"{tool}_{self._call_id_offset + index}", tool))

    def _end_call(self) -> None:
        if self._arguments:
            self._emit_arguments(self._arguments.close())
            self._emit(ToolCallEnd(self.num_calls - 1))
        self._arguments = None

    def _begin_value(self, tag: Tag) -> None:
        self._state = _State.VALUE
        if not self._arguments:
            return
        if tag.name == "json":
            self._emit_arguments(self._arguments.open_json())
        else:
            self._emit_arguments(self._arguments.open_argument(tag.attributes.get("key"), tag.attributes.get("type")))

    def _end_value(self) -> None:
        self._state = _State.CALL
        if self._arguments:
            self._emit_arguments(self._arguments.close_value())

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._emit(ToolArgumentsDelta(self.num_calls - 1, text))
