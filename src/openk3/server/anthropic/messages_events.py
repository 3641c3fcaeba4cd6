"""An answer as Anthropic's message: block by block as events, or whole.

Unusual: a whole message is collected from the events, so that the two cannot differ. A signature is a digest that
nobody checks; its digits are the same in both alphabets of base64, which some clients tell apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from openk3.llm.answer import Answer, Piece
from openk3.protocol.messages import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from openk3.protocol.sampling import FinishReason, Usage
from openk3.server.anthropic.errors import error_body
from openk3.server.endpoint import Event
from openk3.server.faults import Fault

_Data = dict[str, Any]


class MessageEvents:
    """The events of one answer: blocks one after another, each with a start, its deltas and a stop."""

    def __init__(self, message_id: str, model: str, *, thinking: bool = True) -> None:
        self._id, self._model = message_id, model
        self._blocks = BlockEvents(thinking=thinking)

    def begin(self, usage: Usage) -> Iterator[Event]:
        """Give the message without content."""
        yield _event({"type": "message_start", "message": _message(self._id, self._model, usage)})

    def push(self, piece: Piece, usage: Usage) -> Iterator[Event]:
        """Give the events of more deltas."""
        for delta in piece.deltas:
            yield from map(_event, self._blocks.push(delta))

    def end(self, answer: Answer) -> Iterator[Event]:
        """Close the last block and say why the answer ended and what it took."""
        yield from map(_event, self._blocks.close())
        stopped = _stopped(answer.turn.finish_reason, answer.stopped_by)
        yield _event({"type": "message_delta", "delta": stopped, "usage": _usage(answer.usage)})
        yield _event({"type": "message_stop"})

    def fail(self, fault: Fault) -> Iterator[Event]:
        """Give the error that ended the answer; what was open stays so."""
        yield _event(error_body(fault))


class BlockEvents:
    """The events of content: at most one block is open, and indexes count from 0.

    Without ``thinking``, what a model thinks all the same is left out.
    """

    def __init__(self, *, thinking: bool) -> None:
        self._thinking = thinking
        self._index = -1
        self._open: str | None = None
        self._thoughts = hashlib.sha256()

    def push(self, delta: Delta) -> Iterator[_Data]:
        """Give the events of one delta; another kind of text closes the block that is open."""
        match delta:
            case ReasoningDelta(text) if self._thinking:
                yield from self._enter("thinking", thinking="", signature="")
                self._thoughts.update(text.encode("utf-8", "surrogatepass"))
                yield self._delta("thinking_delta", thinking=text)
            case ContentDelta(text):
                yield from self._enter("text", text="")
                yield self._delta("text_delta", text=text)
            case ToolCallStart(_, call_id, name):
                yield from self.close()
                yield from self._enter("tool_use", id=call_id, name=name, input={})
            case ToolArgumentsDelta(_, text):
                yield self._delta("input_json_delta", partial_json=text)
            case ToolCallEnd():
                yield from self.close()

    def close(self) -> Iterator[_Data]:
        """Close the block that is open, if one is."""
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=self._thoughts.hexdigest())
        yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _enter(self, kind: str, **empty: Any) -> Iterator[_Data]:
        """Open a block unless one of its kind is."""
        if self._open == kind:
            return
        yield from self.close()
        self._index, self._open = self._index + 1, kind
        yield {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **empty}}

    def _delta(self, kind: str, **more: str) -> _Data:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **more}}


def message_body(message_id: str, model: str, answer: Answer, *, thinking: bool = True) -> dict[str, Any]:
    """Return the body of a finished answer."""
    content = {"content": _collected(_content_events(answer, thinking=thinking))}
    return _message(message_id, model, answer.usage) | content | _stopped(answer.turn.finish_reason, answer.stopped_by)


def _content_events(deltas: Iterable[Delta], *, thinking: bool) -> Iterator[_Data]:
    blocks = BlockEvents(thinking=thinking)
    for delta in deltas:
        yield from blocks.push(delta)
    yield from blocks.close()


def _collected(events: Iterable[_Data]) -> list[dict[str, Any]]:
    """Put blocks together, as clients do."""
    blocks: list[dict[str, Any]] = []
    arguments: list[str] = []
    for event in events:
        match event:
            case {"content_block": block}:
                blocks.append(dict(block))
                arguments.clear()
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                arguments.append(text)
            case {"delta": dict(delta)}:
                for key in delta.keys() - {"type"}:
                    blocks[-1][key] += delta[key]
            case {"type": "content_block_stop"} if arguments:
                blocks[-1]["input"] = _input("".join(arguments))
    return blocks


def _input(text: str) -> dict[str, Any]:
    """Read the arguments of a call; of one that a limit cut off, as much as clients read of a stream.

    What a client could not be sent as an object, such as a number that float64 lacks, stays text.
    """
    try:
        value = from_json(text, allow_partial=True, allow_inf_nan=False)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {"input": text}
    return value if isinstance(value, dict) else {"input": text}


def _event(data: _Data) -> Event:
    return Event(data, data["type"])


def _message(message_id: str, model: str, usage: Usage) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> _Data:
    """Write usage; unlike in other dialects, cached tokens are no part of the input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _stopped(reason: FinishReason | None, stopped_by: str | None) -> dict[str, str | None]:
    if reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reason == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if stopped_by is None else "stop_sequence", "stop_sequence": stopped_by}
