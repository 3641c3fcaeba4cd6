"""What tests of the server share: a small endpoint that does what a test wants, and a real server in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import uvicorn
from fastapi import FastAPI

from openk3 import LLM
from openk3.llm.answer import Answer, Piece
from openk3.protocol.messages import ContentDelta, Message
from openk3.protocol.sampling import SamplingParams, Usage
from openk3.server.app import create_app
from openk3.server.endpoint import Asked, Event, ServedModel
from openk3.server.exchange import Service
from openk3.server.faults import Fault
from openk3.server.serve import bind, url_of
from openk3.server.settings import ServerSettings

_LONGEST_WAIT_S = 60.0


class Tell:
    """An endpoint that continues ``prompt``, or answers ``say``, with exactly ``n`` tokens."""

    paths: tuple[str, ...] = ("/v1/tell",)

    def __init__(
        self,
        *,
        before_read: Callable[[], None] = lambda: None,
        on_push: Callable[[int], None] = lambda number: None,
        padding: int = 0,
    ) -> None:
        self.before_read, self.on_push, self.padding = before_read, on_push, padding

    def read(self, body: Mapping[str, Any], model: ServedModel) -> Asked:
        self.before_read()
        if "prompt" not in body and "say" not in body:
            raise Fault("prompt is missing", param="prompt")
        count = body.get("n", 4)
        params = SamplingParams(temperature=0.0, max_tokens=count, min_tokens=count)
        stream = body.get("stream", False)
        if "say" in body:
            messages = (Message(role="user", content=body["say"]),)
            return Asked(model=model.names[0], messages=messages, options={"params": params}, stream=stream)
        if "most" in body:
            return Asked(model=model.names[0], prompt=body["prompt"], params=params, explicit_max_tokens=body["most"])
        return Asked(model=model.names[0], prompt=body["prompt"], params=params, stream=stream)

    def whole(self, asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
        return {"text": answer.content, "usage": asdict(answer.usage)}

    def events(self, asked: Asked, model: ServedModel) -> TellEvents:
        return TellEvents(self)

    def error(self, fault: Fault) -> dict[str, Any]:
        return {"error": {"message": fault.text, "type": fault.kind}}


class TellEvents:
    def __init__(self, endpoint: Tell) -> None:
        self._endpoint, self._number = endpoint, 0

    def begin(self, usage: Usage) -> Iterable[Event]:
        return [Event({"begin": asdict(usage)}, "begin")]

    def push(self, piece: Piece, usage: Usage) -> Iterable[Event]:
        self._number += 1
        self._endpoint.on_push(self._number)
        text = "".join(delta.text for delta in piece.deltas if isinstance(delta, ContentDelta))
        return [Event({"text": text, "padding": " " * self._endpoint.padding})]

    def end(self, answer: Answer) -> Iterable[Event]:
        return [Event({"usage": asdict(answer.usage)}, "end"), Event("[DONE]")]

    def fail(self, fault: Fault) -> Iterable[Event]:
        return [Event(self._endpoint.error(fault), "error")]


class Foreign(Tell):
    """The same in another dialect, with its own form of errors."""

    paths = ("/foreign/v1/tell",)

    def error(self, fault: Fault) -> dict[str, Any]:
        return {"type": "error", "message": fault.text}


class Count:
    """A counter of characters."""

    paths: tuple[str, ...] = ("/v1/count",)

    def count(self, body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
        if "text" not in body:
            raise Fault("text is missing", param="text")
        return {"count": len(body["text"])}

    def error(self, fault: Fault) -> dict[str, Any]:
        return {"error": {"message": fault.text, "type": fault.kind}}


def small_app(llm: LLM, endpoint: Tell | None = None, **settings: Any) -> FastAPI:
    """An application with nothing but the endpoints above."""
    endpoints = [endpoint or Tell(), Foreign()]
    return create_app(llm, ServerSettings(**settings), endpoints=endpoints, counters=[Count()], pages=[])


def service_of(app: FastAPI) -> Service:
    service: Service = app.state.service
    return service


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Serve ``app`` in a thread within, and give its URL.

    The socket is made as `openk3 serve` makes it: asyncio lets small answers wait 40 ms on one whose protocol is not
    named.
    """
    sock = bind("127.0.0.1", 0)
    config = uvicorn.Config(app, http="h11", ws="none", lifespan="on", log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield url_of(sock)
    finally:
        server.should_exit = True
        thread.join(_LONGEST_WAIT_S)
        sock.close()


def wait_until(is_so: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until something is so, for a minute at most."""
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def events_of(text: str) -> list[tuple[str | None, str]]:
    """Take a stream of events apart: names and data."""
    found: list[tuple[str | None, str]] = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        found.append((fields.get("event"), fields["data"]))
    return found
