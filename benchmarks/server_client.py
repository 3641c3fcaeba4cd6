"""A client in a process of its own, so that it shares no interpreter with the server: streams, and counts events.

Unusual: it reads as little of what comes as it can, to be no part of what is measured. Commands come as lines of JSON
on stdin, results go to stdout: ``python -m benchmarks.server_client``; `ClientProcess` is the other end.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

_EVENT, _END = b"data: ", b"0\r\n\r\n"


@dataclass(frozen=True)
class Streamed:
    """One streamed answer: events, and seconds from the request to the first one and to the end."""

    events: int
    first_s: float
    total_s: float


class _Connection(asyncio.Protocol):
    """Sends one request after another on one connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Count events, also those that come in two parts."""
        seen = self._tail + data
        self._events += seen.count(_EVENT) - self._tail.count(_EVENT)
        if self._events and not self._first_s:
            self._first_s = time.perf_counter() - self._begun
        self._tail = seen[-len(_EVENT) :]
        if self._tail.endswith(_END):
            self._over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what is running."""
        if not self._over.done():
            self._over.set_exception(error or ConnectionError("the server closed the connection"))

    async def stream(self, request: bytes) -> Streamed:
        """Send a request and wait for the end of its stream."""
        assert self._transport is not None
        self._tail, self._events, self._first_s = b"", 0, 0.0
        self._over = asyncio.get_running_loop().create_future()
        self._begun = time.perf_counter()
        self._transport.write(request)
        await self._over
        if not self._events:
            raise ConnectionError("the answer has no events")
        return Streamed(self._events, self._first_s, time.perf_counter() - self._begun)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


def _request(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _run(url: str, path: str, bodies: Sequence[dict[str, Any]], concurrency: int) -> dict[str, Any]:
    loop, address = asyncio.get_running_loop(), urlsplit(url)
    pending: Iterator[tuple[int, dict[str, Any]]] = iter(enumerate(bodies))
    answers: dict[int, Streamed] = {}
    connections = [
        (await loop.create_connection(_Connection, address.hostname, address.port))[1] for _ in range(concurrency)
    ]

    async def ask(connection: _Connection) -> None:
        for number, body in pending:
            answers[number] = await connection.stream(_request(path, body))

    begin, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(ask, connections))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    for connection in connections:
        connection.close()
    return {"seconds": seconds, "cpu_s": cpu, "answers": [asdict(answers[number]) for number in sorted(answers)]}


@dataclass(frozen=True)
class Run:
    """What a client measured."""

    seconds: float
    cpu_s: float
    answers: list[Streamed]

    @property
    def events(self) -> int:
        """Events of all answers."""
        return sum(answer.events for answer in self.answers)


class ClientProcess:
    """A client that is told what to do; a context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.server_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, url: str, path: str, bodies: Sequence[dict[str, Any]], concurrency: int) -> Run:
        """Stream the answers to ``bodies``, ``concurrency`` at a time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([url, path, bodies, concurrency]), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client has ended; what it said is above")
        result = json.loads(line)
        return Run(result["seconds"], result["cpu_s"], [Streamed(**answer) for answer in result["answers"]])

    def __enter__(self) -> ClientProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=60)


def main() -> None:
    """Do what comes on stdin."""
    for line in sys.stdin:
        print(json.dumps(asyncio.run(_run(*json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
