"""The HTTP application: every path there is, and how errors are said at those that there are not.

Unusual: no path is written twice; an unknown one gets its error in the dialect of the known one that it resembles most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from openk3.llm.llm import LLM
from openk3.server.access_log import AccessLog, Envelope, Record, record_of
from openk3.server.anthropic.messages import Messages
from openk3.server.anthropic.tokens import CountTokens
from openk3.server.auth import EVERYBODY, Keys
from openk3.server.body import json_bytes
from openk3.server.endpoint import Counter, Endpoint
from openk3.server.exchange import AnswerRoute, CountRoute, Service
from openk3.server.faults import Fault, fault_of
from openk3.server.held import Bodies
from openk3.server.limits import Limits
from openk3.server.metrics import ServerMetrics
from openk3.server.models import model_item, models_list, served_model, why_not_running
from openk3.server.openai.chat import ChatCompletions
from openk3.server.openai.completions import Completions
from openk3.server.openai.responses import Responses
from openk3.server.openai.tokens import EstimateTokens
from openk3.server.rebinding import LocalNames, is_loopback
from openk3.server.settings import ServerSettings
from openk3.server.usage import UsageLedger
from openk3.server.web.page import routes as web_routes

_log = logging.getLogger(__name__)

_SAVE_EVERY_S = 5.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EXPOSED = (
    "X-Request-Id",
    "X-Msh-Usage-Prompt-Tokens",
    "X-Msh-Usage-Cached-Tokens",
    "Retry-After",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
)


def create_app(
    llm: LLM,
    settings: ServerSettings | None = None,
    *,
    endpoints: Sequence[Endpoint] | None = None,
    counters: Sequence[Counter] | None = None,
    pages: Sequence[BaseRoute] | None = None,
    log: AccessLog | None = None,
) -> FastAPI:
    """Serve ``llm``, which stays the caller's to close; ``app.state.service`` is what its endpoints share.

    ``endpoints``, ``counters`` and ``pages`` are all there are, if None.

    Raises:
        ConfigError: the usage file of ``settings`` holds something else.
    """
    settings = settings or ServerSettings()
    service = make_service(llm, settings)
    answering = all_endpoints() if endpoints is None else endpoints
    counting = all_counters() if counters is None else counters
    dialects = _Dialects([*answering, *counting])
    routes: list[BaseRoute] = [
        *(Route(path, AnswerRoute(service, one), methods=["POST"]) for one in answering for path in one.paths),
        *(Route(path, CountRoute(service, one), methods=["POST"]) for one in counting for path in one.paths),
        *_own_routes(service, dialects),
        *(all_pages() if pages is None else pages),
    ]
    known = {route.path for route in routes if isinstance(route, Route)}
    access_log = log or AccessLog()

    def done(record: Record) -> None:
        access_log.write(record)
        service.metrics.response(record.path if record.path in known else "other", record.status or 0)

    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        middleware=_middleware(settings, done, dialects),
        exception_handlers={HTTPException: dialects.no_route, Fault: dialects.fault},
    )
    app.state.service = service
    app.router.routes.extend(routes)
    return app


def make_service(llm: LLM, settings: ServerSettings) -> Service:
    """Put together what endpoints share; raise `ConfigError` if the usage file holds something else."""
    model = served_model(llm, settings)
    return Service(
        llm=llm,
        model=model,
        settings=settings,
        keys=Keys(settings.api_keys),
        limits=Limits(settings.max_concurrent, settings.requests_per_minute),
        metrics=ServerMetrics(llm, model.names[0]),
        ledger=UsageLedger(settings.usage_file),
        bodies=Bodies(settings.max_bodies_bytes),
    )


def all_endpoints() -> list[Endpoint]:
    """Return every endpoint that answers; the first one's dialect is that of unknown paths."""
    return [ChatCompletions(), Completions(), Responses(), Messages()]


def all_counters() -> list[Counter]:
    """Return every endpoint that counts tokens."""
    return [EstimateTokens(), CountTokens()]


def all_pages() -> list[BaseRoute]:
    """Return the routes of the web page."""
    return list(web_routes())


class _Dialects:
    """Says errors of no endpoint in the dialect of the endpoint whose path is the nearest."""

    def __init__(self, endpoints: Sequence[Endpoint | Counter]) -> None:
        self._errors: list[tuple[list[str], Callable[[Fault], dict[str, Any]]]] = [
            (path.split("/"), endpoint.error) for endpoint in endpoints for path in endpoint.paths
        ]

    def error(self, path: str, fault: Fault) -> dict[str, Any]:
        """Return the body of an error at ``path``."""
        parts = path.split("/")
        nearest = max(self._errors, key=lambda known: _common(known[0], parts))
        return nearest[1](fault)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """Answer a request for a path or with a method that there is not."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        known = f"{request.method} {request.url.path:.100}"
        if status == 405:
            fault = Fault(f"{known} is not served, expected another method", status=405, code="method_not_allowed")
        else:
            fault = Fault(f"{known} is not served", status=status, kind="resource_not_found_error", code="not_found")
        fault.headers |= dict(getattr(error, "headers", None) or {})
        return await self.fault(request, fault)

    async def fault(self, request: Request, error: Exception) -> Response:
        """Answer a request with an error."""
        fault = fault_of(error)
        body = json_bytes(self.error(request.url.path, fault))
        return Response(body, fault.status, fault.headers, "application/json")


def _common(known: Sequence[str], asked: Sequence[str]) -> int:
    pairs = zip(known, asked, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(known), len(asked)))


def _middleware(settings: ServerSettings, done: Callable[[Record], None], dialects: _Dialects) -> list[Middleware]:
    layers = [Middleware(Envelope, done=done, error=dialects.error)]
    if not settings.api_keys and is_loopback(settings.host):
        layers.append(Middleware(LocalNames, error=dialects.error))
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=_EXPOSED,
            )
        )
    return layers


def _own_routes(service: Service, dialects: _Dialects) -> list[BaseRoute]:
    """Give the paths that belong to no dialect; all below /v1 take a key."""

    def identify(request: Request) -> str:
        record = record_of(request.scope)
        record.key = service.keys.identify(request.headers)
        return record.key

    async def models(request: Request) -> Response:
        identify(request)
        return _json(models_list(service.model))

    async def model(request: Request) -> Response:
        identify(request)
        return _json(model_item(request.path_params["name"], service.model))

    async def usage(request: Request) -> Response:
        key = identify(request)
        return _json(service.ledger.report(None if key == EVERYBODY else key))

    async def health(request: Request) -> Response:
        reason = why_not_running(service.llm) or ("the server is stopping" if service.stopping.is_set() else None)
        if reason is not None:
            raise Fault(reason, status=503, kind="server_unavailable")
        return _json({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type=_METRICS_TYPE)

    return [
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/usage", usage),
        Route("/health", health),
        Route("/metrics", metrics),
    ]


def _json(body: dict[str, Any]) -> Response:
    return Response(json_bytes(body), media_type="application/json")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    saving = asyncio.create_task(_keep_saved(service.ledger))
    try:
        yield
    finally:
        saving.cancel()
        with suppress(asyncio.CancelledError):
            await saving
        service.workers.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(_save, service.ledger)


async def _keep_saved(ledger: UsageLedger) -> None:
    while True:
        await asyncio.sleep(_SAVE_EVERY_S)
        await asyncio.to_thread(_save, ledger)


def _save(ledger: UsageLedger) -> None:
    try:
        ledger.save()
    except OSError as error:
        _log.error("the usage file cannot be written: %s", error)
