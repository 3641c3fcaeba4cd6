"""Generated ids to reasoning, response and tool calls, as they come.

Unusual: nothing a model writes is an error here, and the same ids give the same answer in whatever pieces they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from openk3.chat.reader import IdReader, TextReader
from openk3.chat.turn import Turn
from openk3.protocol.messages import (
    AssistantTurn,
    Channel,
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
)
from openk3.protocol.sampling import FinishReason

if TYPE_CHECKING:
    from openk3.tokenizer.bpe import Tokenizer


class _Parser:
    """What parsing ids and parsing text have in common: the deltas, and how an answer ends."""

    def __init__(self, *, channel: Channel, tools_declared: bool, call_id_offset: int) -> None:
        self._deltas: list[Delta] = []
        self._turn = Turn(
            self._deltas.append, channel=channel, tools_declared=tools_declared, call_id_offset=call_id_offset
        )
        self._reader: IdReader | TextReader

    @property
    def in_reasoning(self) -> bool:
        """Whether the model is in its think channel; it may leave without closing that."""
        return self._turn.in_reasoning

    @property
    def in_response(self) -> bool:
        """Whether the model is in its response channel, the only one that stop strings and grammars of a format see."""
        return self._turn.in_response

    def finish(self, reason: FinishReason) -> list[Delta]:
        """Give what was held back, now that generation ended: by the model ("stop", "tool_calls") or a limit."""
        cut = reason == "length"
        self._reader.finish(cut=cut)
        if cut:
            self._turn.cut()
        else:
            self._turn.end()
        return self._take()

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        """Say why the answer ended, given why generation did: "tool_calls" if the model stopped after a call."""
        return _finish_reason(reason, self._turn.num_calls)

    def _take(self) -> list[Delta]:
        deltas = merge(self._deltas)
        self._deltas.clear()
        return deltas


class StreamParser(_Parser):
    """Parse the ids of one answer; one parser per answer, never shared.

    ``channel`` is the one the prompt opened. With ``tools_declared`` false, whatever looks like a call is dropped.
    Ids of calls are ``<tool>_<number>``, numbered from ``call_id_offset`` on (see `count_calls`).

    The arguments of a closed call are the text of a JSON object, as clients expect. Those that the model writes as one
    ``json`` payload come when it closes: unchanged if they are an object, else as ``{"input": payload}``, which keeps
    every character of it. An answer cut within a payload gives the beginning of it, unchanged.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, channel: Channel, tools_declared: bool, call_id_offset: int = 0
    ) -> None:
        """Raise `TokenizerError` if the vocabulary lacks the control tokens of the chat format."""
        super().__init__(channel=channel, tools_declared=tools_declared, call_id_offset=call_id_offset)
        self._reader: IdReader = IdReader(tokenizer, self._turn)

    def push(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next ids; adjacent deltas of one kind are merged."""
        self._reader.push(ids)
        return self._take()


class TextParser(_Parser):
    """Parse the text of one answer, for backends that give no ids; otherwise like `StreamParser`.

    The text must spell control tokens. A response or an argument that spells them too is misread: with text alone,
    that cannot be told apart.
    """

    def __init__(self, *, channel: Channel, tools_declared: bool, call_id_offset: int = 0) -> None:
        super().__init__(channel=channel, tools_declared=tools_declared, call_id_offset=call_id_offset)
        self._reader: TextReader = TextReader(self._turn)

    def push(self, text: str) -> list[Delta]:
        """Take the next piece of text; adjacent deltas of one kind are merged."""
        self._reader.push(text)
        return self._take()


_Streamed = ReasoningDelta | ContentDelta | ToolArgumentsDelta


def merge(deltas: Iterable[Delta]) -> list[Delta]:
    """Join adjacent texts of one kind."""
    merged: list[Delta] = []
    for _, group in groupby(deltas, _kind):
        run = list(group)
        merged.append(_joined(run) if len(run) > 1 else run[0])
    return merged


def _kind(delta: Delta) -> tuple[type[Delta], int]:
    return type(delta), getattr(delta, "index", 0)


def _joined(run: Sequence[Delta]) -> Delta:
    text = "".join(delta.text for delta in run if isinstance(delta, _Streamed))
    first = run[0]
    if isinstance(first, ToolArgumentsDelta):
        return ToolArgumentsDelta(first.index, text)
    return ReasoningDelta(text) if isinstance(first, ReasoningDelta) else ContentDelta(text)


def collect(deltas: Iterable[Delta], reason: FinishReason | None) -> AssistantTurn:
    """Collect all deltas of one answer; ``reason`` is why generation ended, None if it was left early."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, ReasoningDelta):
            reasoning.append(delta.text)
        elif isinstance(delta, ContentDelta):
            content.append(delta.text)
        elif isinstance(delta, ToolCallStart):
            starts.append(delta)
            arguments.append([])
        elif isinstance(delta, ToolArgumentsDelta):
            arguments[delta.index].append(delta.text)
    calls = tuple(ToolCall(start.id, start.name, "".join(text)) for start, text in zip(starts, arguments, strict=True))
    ended = None if reason is None else _finish_reason(reason, len(calls))
    return AssistantTurn("".join(reasoning) or None, "".join(content) or None, calls, ended)


def _finish_reason(reason: FinishReason, num_calls: int) -> Literal["stop", "length", "tool_calls"]:
    if reason == "length":
        return "length"
    return "tool_calls" if num_calls else "stop"


def count_calls(messages: Iterable[Message]) -> int:
    """Count the calls in a conversation: the number from which the ids of new ones go on, so that all differ."""
    return sum(len(message.tool_calls) for message in messages)
