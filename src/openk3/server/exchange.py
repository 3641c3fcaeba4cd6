"""From a request to its reply, the same way for every endpoint: who asks, how much, the body, the model, the answer.

Unusual: nothing is sent before the first token has come, so that errors have a status of their own and the headers can
say what was cached. Whatever ends a request early (client, time, shutdown) cancels one task, and that frees everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from openk3.errors import EngineError, OpenK3Error
from openk3.llm.answer import Answer, Piece
from openk3.llm.llm import LLM
from openk3.llm.question import ChatOptions
from openk3.protocol.sampling import Usage
from openk3.server.access_log import Record, logged, record_of
from openk3.server.attended import attended, while_there
from openk3.server.auth import Keys
from openk3.server.body import ClientGone, json_bytes, parse_object, read_body
from openk3.server.endpoint import Asked, Counter, Endpoint, ServedModel, require_room
from openk3.server.faults import Fault, fault_of
from openk3.server.held import Bodies, Held
from openk3.server.limits import Limits
from openk3.server.metrics import ServerMetrics
from openk3.server.reply import Reply
from openk3.server.settings import ServerSettings
from openk3.server.turns import Turns
from openk3.server.usage import UsageLedger

Result = TypeVar("Result")

# More threads would not be faster, as Python runs one at a time, but slow grammars of one client stop nobody else.
_WORKERS = 4


@dataclass(frozen=True, kw_only=True)
class Service:
    """What all endpoints share. Setting ``stopping`` ends every request that runs."""

    llm: LLM
    model: ServedModel
    settings: ServerSettings
    keys: Keys
    limits: Limits
    metrics: ServerMetrics
    ledger: UsageLedger
    bodies: Bodies
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    preparing: set[Future[Any]] = field(default_factory=set)
    turns: Turns = field(default_factory=lambda: Turns(_WORKERS - 1))
    workers: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_WORKERS, "openk3-request"))


class _Route:
    """An ASGI application for one path; what is done with a body is left to those that derive from it."""

    def __init__(self, service: Service, error: Callable[[Fault], dict[str, Any]]) -> None:
        self._service, self._error = service, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        record, headers, reply = record_of(scope), Headers(scope=scope), Reply(send, self._error)
        try:
            await attended(
                self._reply(record, headers, receive, reply, _address(scope)),
                self._service.stopping,
                self._service.settings.timeout_s,
            )
        except ClientGone:
            return
        except OpenK3Error as error:
            await reply.fail(self._fault(error, record))
        except Exception as error:
            await reply.fail(logged(error, record))

    def _fault(self, error: OpenK3Error, record: Record) -> Fault:
        """Say what a client may know; a running engine's own errors quote others that nobody foresaw."""
        if isinstance(error, EngineError) and self._service.llm.is_running:
            return logged(error, record)
        fault = fault_of(error)
        return logged(error, record) if fault.kind == "server_error" else fault

    async def _reply(self, record: Record, headers: Headers, receive: Receive, reply: Reply, address: str) -> None:
        service = self._service
        record.key = service.keys.identify(headers)
        with service.limits.admitted(record.key) as reply.headers, service.bodies.one() as held:
            held.content = await read_body(headers, receive, service.settings.max_body_bytes, held.grow)
            # Without keys, whoever has an address is as good as one.
            asker = f"key {record.key}" if service.keys else f"address {address}"
            await while_there(receive, self._work(held, asker, record, reply))

    async def _work(self, body: Held, asker: str, record: Record, reply: Reply) -> None:
        raise NotImplementedError

    async def _in_worker(self, asker: str, work: Callable[[], Result], undo: Callable[[Result], None]) -> Result:
        """Do ``work`` in a thread when it is the asker's turn; ``undo`` its result if nobody waits for it any more."""
        future = await self._submitted(asker, work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: _undo(done, undo))
            raise

    async def _submitted(self, asker: str, work: Callable[[], Result]) -> Future[Result]:
        service, loop = self._service, asyncio.get_running_loop()

        def end_turn(done: Future[Result]) -> None:
            with suppress(RuntimeError):  # the event loop has ended before the thread
                loop.call_soon_threadsafe(service.turns.give_back, asker)

        await service.turns.take(asker)
        try:
            future = service.workers.submit(work)
        except RuntimeError:
            service.turns.give_back(asker)
            raise
        service.preparing.add(future)
        future.add_done_callback(service.preparing.discard)
        future.add_done_callback(end_turn)
        return future


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _undo(done: Future[Result], undo: Callable[[Result], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())


class CountRoute(_Route):
    """Serves a `Counter`."""

    def __init__(self, service: Service, counter: Counter) -> None:
        super().__init__(service, counter.error)
        self._counter = counter

    async def _work(self, body: Held, asker: str, record: Record, reply: Reply) -> None:
        await reply.whole(
            await self._in_worker(asker, lambda: json_bytes(self._count(body.content)), lambda count: None)
        )

    def _count(self, body: bytes) -> dict[str, Any]:
        service = self._service
        return self._counter.count(parse_object(body, service.settings.max_depth), service.model)


class AnswerRoute(_Route):
    """Serves an `Endpoint`."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        super().__init__(service, endpoint.error)
        self._endpoint = endpoint

    async def _work(self, body: Held, asker: str, record: Record, reply: Reply) -> None:
        asked, answer = await self._in_worker(
            asker, lambda: self._ask(body.content, record.key), lambda asked: asked[1].cancel()
        )
        body.free()
        meter = _Meter(answer, record, self._service)
        try:
            # `pieces` is an asynchronous generator, and closing it is what cancels the request in time
            async with aclosing(cast("AsyncGenerator[Piece]", answer.pieces())) as pieces:
                first = await anext(pieces, None)
                meter.first(first)
                reply.headers = {**reply.headers, **_usage_headers(answer.usage)}
                if asked.stream:
                    await self._stream(asked, answer, first, pieces, meter, reply)
                else:
                    await self._collect(asked, answer, pieces, meter, reply)
        finally:
            answer.cancel()
            meter.end()

    def _ask(self, body: bytes, key: str) -> tuple[Asked, Answer]:
        """Understand a body and hand it to the engine; called in a worker thread."""
        service = self._service
        asked = self._endpoint.read(parse_object(body, service.settings.max_depth), service.model)
        answer = self._submit(asked, key if service.settings.isolate_keys else "")
        try:
            require_room(asked, answer.num_read, service.model)
        except Fault:
            answer.cancel()
            raise
        return asked, answer

    def _submit(self, asked: Asked, salt: str) -> Answer:
        llm, timeout_s = self._service.llm, self._service.settings.timeout_s
        if asked.prompt is not None:
            return llm.stream_text(asked.prompt, asked.params, timeout_s=timeout_s, cache_salt=salt)
        options: ChatOptions = {**asked.options, "timeout_s": timeout_s, "cache_salt": salt}
        return llm.stream(asked.messages, **options)

    async def _collect(
        self, asked: Asked, answer: Answer, pieces: AsyncGenerator[Piece], meter: _Meter, reply: Reply
    ) -> None:
        async for piece in pieces:
            meter.more(piece)
            await asyncio.sleep(0)  # when many have come, others get their turn between them
        # Not in the event loop: with log-probabilities of many tokens it takes seconds.
        content = await asyncio.to_thread(self._whole, asked, answer)
        meter.end()
        await reply.whole(content)

    def _whole(self, asked: Asked, answer: Answer) -> bytes:
        return json_bytes(self._endpoint.whole(asked, answer, self._service.model))

    async def _stream(
        self,
        asked: Asked,
        answer: Answer,
        first: Piece | None,
        pieces: AsyncGenerator[Piece],
        meter: _Meter,
        reply: Reply,
    ) -> None:
        events = self._endpoint.events(asked, self._service.model)
        await reply.begin(events)
        await reply.push(events.begin(answer.usage))
        if first is not None:
            await reply.push(events.push(first, answer.usage))
        async for piece in pieces:
            meter.more(piece)
            await reply.push(events.push(piece, answer.usage))
            await asyncio.sleep(0)
        meter.end()
        await reply.push(events.end(answer))
        await reply.end()


class _Meter:
    """Measures one answer for the log, the metrics and the key's account."""

    def __init__(self, answer: Answer, record: Record, service: Service) -> None:
        self._answer, self._record, self._service = answer, record, service
        self._last = record.elapsed_s
        self._has_ended = False

    def first(self, piece: Piece | None) -> None:
        """Count the first piece."""
        self._last = self._record.first_token_s = self._record.elapsed_s
        self._service.metrics.first_token(self._answer.usage.prompt_tokens, self._last)

    def more(self, piece: Piece) -> None:
        """Count a piece that came after another."""
        now = self._record.elapsed_s
        if piece.tokens:
            self._service.metrics.between(len(piece.tokens), now - self._last)
        self._last = now

    def end(self) -> None:
        """Count the answer as far as it came, once; one that never began costs nothing.

        Before its last bytes go out: whoever has them may ask for the account.
        """
        if self._has_ended:
            return
        self._has_ended = True
        answer, record = self._answer, self._record
        usage = answer.usage if answer.tokens else Usage(0, 0)
        record.usage, record.finish_reason = usage, answer.turn.finish_reason
        self._service.metrics.ended(record.finish_reason, usage, record.elapsed_s, answer.stats)
        self._service.ledger.add(record.key, usage)


def _usage_headers(usage: Usage) -> dict[str, str]:
    return {
        "X-Msh-Usage-Prompt-Tokens": str(usage.prompt_tokens),
        "X-Msh-Usage-Cached-Tokens": str(usage.cached_tokens),
    }
