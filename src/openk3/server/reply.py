"""A reply on its way to the client: JSON as a whole, or server-sent events; once one was begun, errors go into it.

Unusual: every send is waited for, so a client that reads slowly is waited for too; what piles up meanwhile are tokens,
as many as an answer has, and not their events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import Send

from openk3.server.access_log import send_json
from openk3.server.body import json_bytes
from openk3.server.endpoint import Event, EventStream
from openk3.server.faults import Fault

LAST_WORDS_S = 5.0
"""What a client that does not read gets to see the error that ends its answer."""

_EVENT_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Reply:
    """Sends one reply; ``error`` writes a fault's body in the dialect that was asked in."""

    def __init__(self, send: Send, error: Callable[[Fault], dict[str, Any]]) -> None:
        self.headers: dict[str, str] = {}
        self._send, self._error = send, error
        self._begun = self._over = False
        self._events: EventStream | None = None

    async def whole(self, content: bytes) -> None:
        """Send all of an answer, its body as JSON."""
        await self._json(200, content, {})

    async def begin(self, events: EventStream) -> None:
        """Send the headers of an answer in events."""
        self._events, self._begun = events, True
        headers = {**_EVENT_HEADERS, **self.headers}
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def push(self, events: Iterable[Event]) -> None:
        """Send events, if there are any, and wait until the client can take more."""
        if body := b"".join(map(event_bytes, events)):
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        """End an answer in events."""
        self._over = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, fault: Fault) -> None:
        """Send an error: as the reply, or as the last events of one that was begun."""
        if self._over:
            return
        if not self._begun:
            await self._json(fault.status, json_bytes(self._error(fault)), fault.headers)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.push([] if self._events is None else self._events.fail(fault))
                await self.end()

    async def _json(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self._begun = self._over = True
        await send_json(self._send, status, content, {**self.headers, **headers})


def event_bytes(event: Event) -> bytes:
    """Write one event; data is one line, as JSON is written here without line ends."""
    data = event.data.encode() if isinstance(event.data, str) else json_bytes(event.data)
    name = b"" if event.name is None else b"event: " + event.name.encode() + b"\n"
    return name + b"data: " + data + b"\n\n"
