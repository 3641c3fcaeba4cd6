"""The events of one streamed response, and the response as a whole.

Unusual: events are numbered from 0, and the last of them holds all of the response; nothing comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from openk3.llm.answer import Answer, Piece
from openk3.protocol.sampling import Usage
from openk3.server.endpoint import Asked, Event, ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.logprobs import ContentLogprobs
from openk3.server.openai.responses_objects import ResponseObject
from openk3.server.openai.responses_output import Data, Output
from openk3.server.openai.responses_request import ResponsesView


class ResponseEvents:
    """An `EventStream` of the Responses API."""

    def __init__(self, asked: Asked, model: ServedModel) -> None:
        view: ResponsesView = asked.body
        self._response = ResponseObject(asked)
        self._logprobs = _logprobs(view, model)
        self._output = Output(view.tools, self._logprobs, thinking=view.thinking)
        self._numbers = count()

    def begin(self, usage: Usage) -> Iterable[Event]:
        """Give the response before there is anything of it."""
        yield self._whole("response.created", self._response.begun())
        yield self._whole("response.in_progress", self._response.begun())

    def push(self, piece: Piece, usage: Usage) -> Iterable[Event]:
        """Give the events of more deltas."""
        if self._logprobs:
            self._logprobs.push(piece.tokens)
        for delta in piece.deltas:
            yield from self._numbered(self._output.push(delta))

    def end(self, answer: Answer) -> Iterable[Event]:
        """End the last item, and give the whole response."""
        is_cut = answer.turn.finish_reason == "length"
        yield from self._numbered(self._output.end(is_cut=is_cut))
        response = self._response.ended(self._output.items, answer.usage, is_cut=is_cut)
        yield self._whole(f"response.{response['status']}", response)

    def fail(self, fault: Fault) -> Iterable[Event]:
        """Give the response as far as it came, with what went wrong; an item that was open is no part of it."""
        yield self._whole("response.failed", self._response.failed(self._output.items, fault))

    def _whole(self, kind: str, response: dict[str, Any]) -> Event:
        return self._event({"type": kind, "response": response})

    def _numbered(self, events: Iterable[Data]) -> Iterator[Event]:
        return map(self._event, events)

    def _event(self, data: Data) -> Event:
        return Event({**data, "sequence_number": next(self._numbers)}, data["type"])


def response_body(asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
    """Return the body of a finished answer."""
    view: ResponsesView = asked.body
    logprobs = _logprobs(view, model)
    if logprobs:
        logprobs.push(answer.tokens)
    output = Output(view.tools, logprobs, thinking=view.thinking)
    is_cut = answer.turn.finish_reason == "length"
    for delta in answer:
        _exhaust(output.push(delta))
    _exhaust(output.end(is_cut=is_cut))
    return ResponseObject(asked).ended(output.items, answer.usage, is_cut=is_cut)


def _exhaust(events: Iterable[Data]) -> None:
    for _ in events:
        pass


def _logprobs(view: ResponsesView, model: ServedModel) -> ContentLogprobs | None:
    return ContentLogprobs(model.tokenizer, view.channel) if view.logprobs else None
