"""A server from its socket to its end: bound before the model is loaded, ready in one line, stopped by signals.

Unusual: the first signal lets running requests finish, for a while; then each of them ends with an error that says so.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from openk3.errors import ConfigError
from openk3.llm.llm import LLM
from openk3.server.app import create_app
from openk3.server.exchange import Service
from openk3.server.reply import LAST_WORDS_S
from openk3.server.settings import ServerSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Longer than load balancers keep a connection that is not used: else they would send a request into its end.
_KEEP_ALIVE_S = 75
# What the head of a request gets to come: without that, connections that send nothing would fill the process up.
_HEAD_S = 30.0


def bind(host: str, port: int) -> socket.socket:
    """Take an address, before anything slow is done, and do not listen yet.

    Raises:
        ConfigError: it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host {host!r} has no address: {error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _unavailable(f"{host}:{port}", error) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"


def is_local(sock: socket.socket) -> bool:
    """Tell whether only this machine can reach a bound socket."""
    host: str = sock.getsockname()[0]
    return host.startswith("127.") or host == "::1"


def serve(
    llm: LLM,
    settings: ServerSettings,
    sock: socket.socket,
    *,
    ready: Callable[[], None],
    say: Callable[[str], None],
) -> bool:
    """Answer requests on ``sock`` until a signal says stop; a second one ends those that run.

    ``ready`` is called when requests are answered; ``say`` hears of the shutdown. Return whether a thread is still busy
    with a request that has ended: Python cannot stop it, and would wait for it before the process ends.

    Raises:
        ConfigError: somebody else began to listen at the address, or the usage file holds something else.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    app = create_app(llm, settings)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(min(settings.shutdown_s, 1e6) + 2 * LAST_WORDS_S),
    )
    server = _Server(config, service, ready, say)
    try:
        asyncio.run(server.serve(sockets=[sock]))
    finally:
        service.workers.shutdown(wait=False, cancel_futures=True)
        service.ledger.save()
    return any(future.running() for future in tuple(service.preparing))


class _Protocol(H11Protocol):
    """uvicorn's protocol, which by itself waits for a first request, or the rest of its head, for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take more of a request, or the beginning of the next one."""
        is_next = self.timeout_keep_alive_task is not None
        super().data_received(data)
        cycle = getattr(self, "cycle", None)  # None until the first request, whatever uvicorn's annotation says
        if cycle is not None and not cycle.response_complete:
            self._forget_head()
        elif is_next:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._forget_head()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._forget_head()
        self._deadline = self.loop.call_later(_HEAD_S, self.timeout_keep_alive_handler)

    def _forget_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """uvicorn's server with signals of its own: no signal is raised again, so that a stopped server has succeeded."""

    def __init__(
        self, config: uvicorn.Config, service: Service, ready: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._service, self._ready, self._say = service, ready, say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        try:
            await super().startup(sockets)
        except OSError as error:
            name = "its address" if not sockets else url_of(sockets[0]).removeprefix("http://")
            raise _unavailable(name, error) from None
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals within, in the event loop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop accepting, and let what runs finish for a while; called again, end it now; again, wait for nothing."""
        if self.should_exit:
            self.force_exit = self._service.stopping.is_set()
            self._service.stopping.set()
            return
        self.should_exit = True
        seconds = self._service.settings.shutdown_s
        self._say(f"stopping: running requests have {seconds:g} seconds, another signal ends them at once")
        asyncio.get_running_loop().call_later(seconds, self._service.stopping.set)


def _unavailable(name: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{name} cannot be listened on: {error.strerror or error}", hint="choose another --port; 0 takes any free one"
    )
