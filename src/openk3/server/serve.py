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

from openk3.errors import ConfigError
from openk3.llm.llm import LLM
from openk3.server.app import create_app
from openk3.server.exchange import Service
from openk3.server.settings import ServerSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Longer than load balancers keep a connection that is not used: else they would send a request into its end.
_KEEP_ALIVE_S = 75
# What the errors that end requests at a shutdown get to reach their clients.
_LAST_WORDS_S = 5.0


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
) -> None:
    """Answer requests on ``sock`` until a signal says stop; a second one ends those that run.

    ``ready`` is called when requests are answered; ``say`` hears of the shutdown.

    Raises:
        ConfigError: somebody else began to listen at the address, or the usage file holds something else.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    app = create_app(llm, settings)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(min(settings.shutdown_s, 1e6) + 2 * _LAST_WORDS_S),
    )
    server = _Server(config, service, ready, say)
    try:
        asyncio.run(server.serve(sockets=[sock]))
    finally:
        service.workers.shutdown(wait=False, cancel_futures=True)
        service.ledger.save()


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
