"""The frames of one streamed Chat Completion, and the message that they add up to.

Unusual: an answer that is not streamed is put together from the same frames, so that both always say the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from openk3.llm.answer import Answer, Piece
from openk3.protocol.messages import ContentDelta, Delta, ReasoningDelta, ToolArgumentsDelta, ToolCallStart
from openk3.protocol.sampling import TokenOutput, Usage
from openk3.server.endpoint import Asked, Event, ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.chat_request import ChatView
from openk3.server.openai.logprobs import ContentLogprobs
from openk3.server.openai.objects import error_object, new_id, usage_object


class Increments:
    """Turn deltas into what a frame adds to the message.

    The end of reasoning is an empty piece of it, before whatever comes next. What a model thinks after that is left
    out, as clients have closed its reasoning, and so is all that it thinks without ``thinking``.
    """

    def __init__(self, *, thinking: bool) -> None:
        self._has_reasoned, self._has_ended = False, not thinking

    def of(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Give the increments of a delta, none or several."""
        if isinstance(delta, ReasoningDelta):
            if not self._has_ended:
                self._has_reasoned = True
                yield {"reasoning_content": delta.text}
            return
        if (added := _added(delta)) is not None:
            yield from self.end_of_reasoning()
            yield added

    def end_of_reasoning(self) -> Iterator[dict[str, Any]]:
        """Say once that reasoning has ended, if there was any."""
        if self._has_reasoned and not self._has_ended:
            yield {"reasoning_content": ""}
        self._has_ended = True


def _added(delta: Delta) -> dict[str, Any] | None:
    match delta:
        case ContentDelta(text):
            return {"content": text}
        case ToolCallStart(index, call_id, name):
            call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case ToolArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
    return None


def message_of(deltas: Iterable[Delta], *, thinking: bool) -> dict[str, Any]:
    """Add the increments of a whole answer up; a field that nothing was added to is not there."""
    increments, message = Increments(thinking=thinking), dict[str, Any]()
    for increment in (increment for delta in deltas for increment in increments.of(delta)):
        for name in ("reasoning_content", "content"):
            if name in increment:
                message[name] = message.get(name, "") + increment[name]
        for call in increment.get("tool_calls", ()):
            _add_call(message.setdefault("tool_calls", []), call)
    return message


def _add_call(calls: list[dict[str, Any]], call: Mapping[str, Any]) -> None:
    if "id" in call:
        calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
    else:
        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


class ChatEvents:
    """An `EventStream` of Chat Completions."""

    def __init__(self, asked: Asked, model: ServedModel) -> None:
        self._view: ChatView = asked.body
        self._head = {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": asked.model,
        }
        self._increments = Increments(thinking=self._view.thinking)
        self._logprobs = ContentLogprobs(model.tokenizer, self._view.channel) if self._view.logprobs else None

    def begin(self, usage: Usage) -> Iterable[Event]:
        """Say that the assistant begins."""
        yield self._frame({"role": "assistant", "content": ""}, usage)

    def push(self, piece: Piece, usage: Usage) -> Iterable[Event]:
        """Give a frame for every increment."""
        if self._logprobs:
            self._logprobs.push(piece.tokens)
        increments = [increment for delta in piece.deltas for increment in self._increments.of(delta)]
        yield from self._frames(increments, piece.tokens, usage)

    def end(self, answer: Answer) -> Iterable[Event]:
        """Say why the answer ended and what it cost."""
        reason, usage = answer.turn.finish_reason or "stop", answer.usage
        if reason != "length":
            yield from self._frames(list(self._increments.end_of_reasoning()), (), usage)
        choice = {"index": 0, "delta": {}, "finish_reason": reason, "usage": usage_object(usage)}
        yield Event(self._with_usage({**self._head, "choices": [choice]}, usage))
        if self._view.stream.include_usage:
            yield Event({**self._head, "choices": [], "usage": usage_object(usage)})
        yield Event("[DONE]")

    def fail(self, fault: Fault) -> Iterable[Event]:
        """Say what went wrong; the stream ends without its usual last line."""
        yield Event(error_object(fault))

    def _frames(self, increments: list[dict[str, Any]], tokens: Sequence[TokenOutput], usage: Usage) -> Iterator[Event]:
        if self._view.stream.internal_content:
            _add_ids(increments, tokens)
        for increment in increments:
            yield self._frame(increment, usage)

    def _frame(self, delta: dict[str, Any], usage: Usage) -> Event:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
        if self._logprobs and "role" not in delta and "content" in delta:
            choice["logprobs"] = self._logprobs.of(delta["content"])
        return Event(self._with_usage({**self._head, "choices": [choice]}, usage))

    def _with_usage(self, frame: dict[str, Any], usage: Usage) -> dict[str, Any]:
        return {**frame, "usage": usage_object(usage)} if self._view.stream.continuous_usage else frame


def _add_ids(increments: list[dict[str, Any]], tokens: Sequence[TokenOutput]) -> None:
    """Add the ids to the last increment; those that show nothing have one of their own."""
    ids = [token.token_id for token in tokens]
    if ids and not increments:
        increments.append({})
    for increment in increments:
        increment["internal_content"] = {"token_ids": ids if increment is increments[-1] else []}
