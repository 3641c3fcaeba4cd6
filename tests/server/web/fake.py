"""A server that serves the page and plays scripted answers, for tests of the page in a browser.

Unusual: a script can hold an answer at a `Gate` until the test has looked at what is shown so far.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from openk3.server.web.page import routes

WAIT_S = 20.0


class Gate:
    """A point of a script where the answer waits for the test; ``left`` is set when the client leaves there."""

    def __init__(self) -> None:
        self._open, self.left = threading.Event(), threading.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self, request: Request) -> bool:
        """Wait until the test opens the gate; false if the client leaves before, or nobody opens it."""
        try:
            for _ in range(int(WAIT_S / 0.01)):
                if self._open.is_set() or await request.is_disconnected():
                    break
                await asyncio.sleep(0.01)
        finally:  # starlette may see first that the client has left, and cancel this
            if not self._open.is_set():
                self.left.set()
        return self._open.is_set()


class Cut:
    """The end of a connection in the middle of an answer."""


Step = dict[str, Any] | Gate | Cut | str
Script = Sequence[Step] | Response


@dataclass
class Fake:
    """What the server is to say next, and what it was asked."""

    url: str = ""
    scripts: list[Script] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    key: str | None = None
    usage: Any = None
    models: tuple[str, ...] = ("nano",)

    def reset(self) -> None:
        self.scripts.clear()
        self.asked.clear()
        self.key, self.usage, self.models = None, None, ("nano",)

    def refuses(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        error = {"type": "incorrect_api_key_error", "message": "the API key is not one of this server's"}
        return JSONResponse({"error": error}, 401)

    async def list_models(self, request: Request) -> Response:
        return self.refuses(request) or JSONResponse({"data": [{"id": name} for name in self.models]})

    async def report_usage(self, request: Request) -> Response:
        return self.refuses(request) or JSONResponse(self.usage, 200 if self.usage else 404)

    async def chat(self, request: Request) -> Response:
        if refusal := self.refuses(request):
            return refusal
        self.asked.append(await request.json())
        script = self.scripts.pop(0) if self.scripts else answer("Yes.")
        if isinstance(script, Response):
            return script
        return StreamingResponse(_played(script, request), media_type="text/event-stream")


async def _played(script: Sequence[Step], request: Request) -> AsyncIterator[str]:
    for step in script:
        if isinstance(step, Cut):
            return
        if isinstance(step, Gate):
            if not await step.passed(request):
                return
            continue
        yield f"data: {step if isinstance(step, str) else json.dumps(step)}\n\n"
    yield "data: [DONE]\n\n"


def frame(delta: dict[str, Any] | None = None, *, finish: str | None = None, output: int = 0) -> dict[str, Any]:
    """Return a frame; one with ``output`` says how many tokens there are so far, 3 of which are reasoning."""
    one: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "nano"}
    one["choices"] = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    if output:
        details = {"completion_tokens_details": {"reasoning_tokens": 3}, "prompt_tokens_details": {"cached_tokens": 24}}
        one["usage"] = {"prompt_tokens": 1036, "completion_tokens": output, **details}
    return one


def says(text: str) -> dict[str, Any]:
    return frame({"content": text})


def thinks(text: str) -> dict[str, Any]:
    return frame({"reasoning_content": text})


def calls(index: int, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Return the frames of a call whose arguments come in parts."""
    head = {"index": index, "id": f"{name}_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in arguments]
    return [frame({"tool_calls": [head]}), *map(frame, parts)]


def ends(finish: str = "stop") -> dict[str, Any]:
    return frame(finish=finish, output=17)


def answer(text: str) -> list[Step]:
    return [frame({"role": "assistant", "content": ""}), says(text), ends()]


@contextmanager
def serving(app: Callable[..., Any]) -> Iterator[str]:
    """Serve an application in a thread, on a port that the system chooses, and give its URL."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_S)


@contextmanager
def fake_server() -> Iterator[Fake]:
    """Serve a `Fake`."""
    fake = Fake()
    paths = {"/v1/models": fake.list_models, "/v1/usage": fake.report_usage}
    api = [Route(path, endpoint) for path, endpoint in paths.items()]
    app = Starlette(routes=[*routes(), *api, Route("/v1/chat/completions", fake.chat, methods=["POST"])])
    with serving(app) as fake.url:
        yield fake
