"""One line of JSON per request, on stderr, and the envelope that every answer comes in: its number, and no lost errors.

Unusual: a line says who asked, how much and how long, never what; a client that left before its answer has status 499.
"""

from __future__ import annotations

import json
import logging
import re
import select
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openk3.protocol.sampling import Usage
from openk3.server.body import json_bytes
from openk3.server.faults import Fault

_log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
_KEY = "openk3.record"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_QUIET = ("/health", "/metrics")


@dataclass
class Record:
    """What is known of one request, filled in on its way; ``first_token_s`` is from its start."""

    request_id: str
    method: str
    path: str
    started: float = field(default_factory=time.monotonic)
    key: str = ""
    status: int | None = None
    usage: Usage | None = None
    first_token_s: float | None = None
    finish_reason: str | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self.started


def record_of(scope: Scope) -> Record:
    """Return the record of the request that is being answered."""
    record: Record = scope[_KEY]
    return record


class AccessLog:
    """Writes records to ``stream``; stderr if None."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def write(self, record: Record) -> None:
        """Write one line; what cannot be written is lost."""
        if record.path in _QUIET and record.status == 200:
            return
        stream = self._stream or sys.stderr
        if _is_full(stream):
            return
        try:
            print(json.dumps(_line(record)), file=stream, flush=True)
        except (OSError, ValueError):  # whoever read it has gone, or it was closed
            return


def _is_full(stream: TextIO) -> bool:
    """Tell whether writing would have to wait for a reader, and every request with it."""
    try:
        return not select.select([], [stream.fileno()], [], 0)[1]
    except (OSError, ValueError):  # not a file, or one that is closed
        return False


def _line(record: Record) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request_id": record.request_id,
        "key": record.key or None,
        "method": record.method,
        "path": record.path[:200],
        "status": record.status,
        "duration_s": round(record.elapsed_s, 6),
    }
    if record.usage is not None:
        line |= {
            "prompt_tokens": record.usage.prompt_tokens,
            "cached_tokens": record.usage.cached_tokens,
            "completion_tokens": record.usage.completion_tokens,
            "first_token_s": None if record.first_token_s is None else round(record.first_token_s, 6),
            "finish_reason": record.finish_reason,
        }
    return line


class Envelope:
    """Gives every request a number and a record, answers for errors that nobody foresaw (as middleware)."""

    def __init__(
        self, app: ASGIApp, *, done: Callable[[Record], None], error: Callable[[str, Fault], dict[str, Any]]
    ) -> None:
        self._app, self._done, self._error = app, done, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(_request_id(Headers(scope=scope)), scope["method"], scope["path"])
        scope[_KEY] = record

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = headers["Request-Id"] = record.request_id
            await send(message)

        try:
            await self._app(scope, receive, numbered)
        except Exception as error:
            fault = logged(error, record)
            if record.status is not None:
                raise  # the answer had begun: the connection is closed
            await send_json(numbered, fault.status, json_bytes(self._error(record.path, fault)), fault.headers)
        finally:
            record.status = record.status or CLIENT_CLOSED_REQUEST
            self._done(record)


def logged(error: BaseException, record: Record) -> Fault:
    """Log an error that nobody foresaw, and return what the client may know of it: the request's number."""
    _log.error("request %s failed", record.request_id, exc_info=error)
    return Fault(f"the server could not answer request {record.request_id}", status=500, kind="server_error")


async def send_json(send: Send, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
    """Send a whole answer, whose body is JSON."""
    lines = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in lines.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": content})


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
