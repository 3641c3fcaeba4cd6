"""Asks a server for anything, byte by byte if need be, and checks that what comes back is an answer or a refusal.

Unusual: the engine behind it is the real one up to where a request would be computed; answers are one short text.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from openk3.engine.engine import Engine
from openk3.engine.stream import TokenStream
from openk3.protocol.request import Request, RequestStats
from openk3.protocol.sampling import FinishReason, TokenOutput
from tests.server.harness import events_of

LONGEST_WAIT_S = 60.0


class UncomputedEngine:
    """Checks requests and compiles grammars as ``engine`` does, and answers all of them with ``ids`` at once."""

    def __init__(self, engine: Engine, ids: list[int]) -> None:
        self._engine, self._ids = engine, ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request) -> TokenStream:
        stream = TokenStream()
        sequence = self._engine._core.prepare(request, stream)
        ids = self._ids[: sequence.limit - len(request.prompt_ids)]
        for number, token in enumerate(ids, 1):
            reason: FinishReason | None = "length" if number == len(ids) else None
            if token in sequence.stop_token_ids:
                reason = "stop"
            stream.put(TokenOutput(token, 0.0, reason))
        stream.close(
            RequestStats(
                prompt_tokens=len(request.prompt_ids),
                completion_tokens=len(ids),
                matched_tokens=0,
                cached_tokens=0,
                queue_s=0.0,
                first_token_s=0.0,
                total_s=0.0,
            )
        )
        return stream


@dataclass(frozen=True)
class Reply:
    """What came back; ``body`` is all of it."""

    status: int
    kind: str
    body: bytes


# A server may close a connection that was not used for longer; asking on it opens it again.
_SURELY_KEPT_S = 20.0


class Asker:
    """A client of the server at ``url`` that keeps one connection as long as it can."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self._connection = http.client.HTTPConnection(*self.address, timeout=LONGEST_WAIT_S)
        self._used = time.monotonic()

    def ask(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Reply:
        """Send one request and read its answer, all within a minute."""
        if time.monotonic() - self._used > _SURELY_KEPT_S:
            self._connection.close()
        self._used = time.monotonic()
        lines = {"content-type": "application/json", **{name.replace("_", "-"): v for name, v in headers.items()}}
        try:
            self._connection.request(method, path, body, lines)
            return _read(self._connection.getresponse())
        except OSError:
            self._connection.close()
            raise

    def ask_json(self, path: str, body: Any) -> Reply:
        """Send a JSON object, whatever it holds."""
        return self.ask(path, json.dumps(body).encode())

    def send(self, *parts: bytes) -> Reply | None:
        """Send bytes on a connection of their own; None if it was closed without an answer."""
        with socket.create_connection(self.address, timeout=LONGEST_WAIT_S) as connection:
            try:
                for part in parts:
                    connection.sendall(part)
            except OSError:  # refused before all was sent: the answer may be there all the same
                pass
            response = http.client.HTTPResponse(connection)
            try:
                response.begin()
                return _read(response)
            except (http.client.BadStatusLine, ConnectionError):
                return None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _read(response: http.client.HTTPResponse) -> Reply:
    return Reply(response.status, response.getheader("content-type", ""), response.read())


def check(path: str, reply: Reply) -> bool:
    """Check that a reply is an answer (True) or a refusal in the dialect of ``path`` (False), and well formed."""
    assert reply.status == HTTPStatus.OK or 400 <= reply.status < 500, (path, reply)
    if reply.status != HTTPStatus.OK:
        check_refusal(path, reply)
        return False
    if reply.kind.startswith("text/event-stream"):
        last = events_of(reply.body.decode())[-1]
        assert last == (None, "[DONE]") or last[0] in ("message_stop", "response.completed", "response.incomplete"), (
            last
        )
    elif reply.kind == "application/json":
        assert isinstance(json.loads(reply.body), dict)
    return True


def check_refusal(path: str, reply: Reply) -> None:
    """Check that an error is what clients of the dialect of ``path`` can read."""
    assert reply.kind == "application/json", reply
    body = json.loads(reply.body)
    assert body["error"]["message"] and body["error"]["type"], reply
    assert len(reply.body) < 2000, reply.body
    assert ("type" in body) == ("anthropic" in path or "/messages" in path), reply
