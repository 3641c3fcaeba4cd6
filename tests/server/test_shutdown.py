"""How a server ends: what runs may finish, for a while; a second signal ends it now.

Unusual: the server runs in this process's main thread, where signals go, and what a test does runs in another.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from openk3 import LLM
from openk3.errors import ConfigError
from openk3.server.serve import bind, serve, url_of
from openk3.server.settings import ServerSettings
from tests.server.harness import Tell, events_of, wait_until

FOREVER = {"prompt": "Once", "n": 7000, "stream": True}


class _Asker:
    """Asks in a thread, and knows when the first event has come."""

    def __init__(self, url: str, body: dict[str, object]) -> None:
        self.began = threading.Event()
        self._text = ""
        self._thread = threading.Thread(target=self._ask, args=(url, body))
        self._thread.start()
        assert self.began.wait(60)

    def _ask(self, url: str, body: dict[str, object]) -> None:
        with httpx.stream("POST", f"{url}/v1/tell", json=body, timeout=60) as reply:
            for text in reply.iter_text():
                self._text += text
                self.began.set()

    def events(self) -> list[tuple[str | None, str]]:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return events_of(self._text)


@pytest.fixture
def serving(llm: LLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[float, Callable[[str], None]], str]:
    """Serve until ``scenario(url)`` has made it stop, and return what was said."""
    monkeypatch.setattr("openk3.server.app.all_endpoints", lambda: [Tell()])

    def run(shutdown_s: float, scenario: Callable[[str], None]) -> str:
        settings = ServerSettings(port=0, shutdown_s=shutdown_s, usage_file=tmp_path / "usage.json")
        said: list[str] = []
        errors: list[BaseException] = []

        def act(url: str) -> None:
            try:
                scenario(url)
            except BaseException as error:
                errors.append(error)
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)

        with bind(settings.host, settings.port) as sock:
            actor = threading.Thread(target=act, args=(url_of(sock),))
            serve(llm, settings, sock, ready=actor.start, say=said.append)
            actor.join(60)
        assert not errors, errors
        return "\n".join(said)

    return run


Serving = Callable[[float, Callable[[str], None]], str]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish_and_new_ones_are_not_accepted(
    serving: Serving, tmp_path: Path, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(url: str) -> None:
        with httpx.Client() as kept:  # a connection that is kept open does not hold it up
            assert kept.get(f"{url}/health").status_code == 200
            asker = _Asker(url, {"prompt": "Once", "n": 60, "stream": True})
            os.kill(os.getpid(), number)
            wait_until(lambda: _is_refused(url))
            assert asker.events()[-1] == (None, "[DONE]")

    assert "running requests have 10000 seconds" in serving(10_000, scenario)
    (account,) = json.loads((tmp_path / "usage.json").read_text())["keys"].values()
    assert (account["requests"], account["completion_tokens"]) == (1, 60)
    assert caplog.text == ""


def _is_refused(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize(("shutdown_s", "signals"), [(0.2, 1), (10_000, 2)])
def test_requests_that_take_too_long_end_with_an_error(
    serving: Serving, tmp_path: Path, shutdown_s: float, signals: int, caplog: pytest.LogCaptureFixture
) -> None:
    def scenario(url: str) -> None:
        asker = _Asker(url, FOREVER)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: _is_refused(url))  # two signals that come at once are one
        name, data = asker.events()[-1]
        assert (name, json.loads(data)["error"]["type"]) == ("error", "server_unavailable")

    serving(shutdown_s, scenario)
    assert json.loads((tmp_path / "usage.json").read_text())["keys"][""]["requests"] == 1
    assert caplog.text == ""


def test_signals_are_the_caller_s_again_afterwards(serving: Serving) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    serving(1, lambda url: os.kill(os.getpid(), signal.SIGTERM))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_address_that_another_took_meanwhile(llm: LLM) -> None:
    with bind("127.0.0.1", 0) as sock, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(sock.getsockname())
        other.listen()
        with pytest.raises(ConfigError, match=f"127.0.0.1:{sock.getsockname()[1]} cannot be listened on"):
            serve(llm, ServerSettings(), sock, ready=lambda: None, say=lambda text: None)
