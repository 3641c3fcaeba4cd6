"""A server that is killed in the middle of its work and started again with the same cache folder.

Unusual: it is killed by the one signal that no process can catch, and files are damaged before it is started again.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.server.harness import wait_until
from tests.server.serve_process import ServeProcess

LONG = "Tell me about the little boat on the big lake. " * 12
LOAD = "Once there was a cat who wanted to see the sea. " * 12


def _body(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "nano", "messages": messages, "temperature": 0, "max_tokens": tokens, **more}


def _answer(server: ServeProcess, text: str) -> tuple[dict[str, Any], int]:
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=_body(text, 8), timeout=60)
    assert reply.status_code == 200, reply.text
    body = reply.json()
    return body["choices"][0], body["usage"]["cached_tokens"]


class _Load:
    """Streams that are still running when the server is killed."""

    def __init__(self, server: ServeProcess, count: int) -> None:
        self.begun, self.broken = 0, 0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._stream, args=(server.url, n)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _stream(self, url: str, number: int) -> None:
        body = _body(f"{number}. {LOAD}", 5000, stream=True)
        try:
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as reply:
                for count, _ in enumerate(reply.iter_lines()):
                    if count == 4:
                        self._add(begun=1)
        except httpx.HTTPError:
            self._add(broken=1)

    def _add(self, begun: int = 0, broken: int = 0) -> None:
        with self._lock:
            self.begun += begun
            self.broken += broken

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def test_a_server_that_was_killed_remembers_what_it_had_read(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    flags = ("--memory", "1GiB", "--cache-dir", str(folder), "--usage-file", str(tmp_path / "usage.json"))
    server = ServeProcess(log, *flags)
    try:
        first, _ = _answer(server, LONG)
        repeated, cached = _answer(server, LONG)
        assert repeated == first and cached > 0
        wait_until(lambda: server.metrics()["openk3:disk_bytes"] > 0)
        load = _Load(server, 4)
        wait_until(lambda: load.begun == 4)
    finally:
        server.kill()
    load.join()
    assert load.broken == 4

    files = set(folder.glob("*.prefix"))
    assert files
    (folder / f"{'0' * 32}.prefix").write_bytes(b"no record at all")
    (folder / f"{'1' * 32}.prefix").write_bytes(min(files).read_bytes()[:100])
    (folder / f"{'2' * 32}.new").write_bytes(b"half")
    log.write_text("")
    server = ServeProcess(log, *flags)
    try:
        again, cached = _answer(server, LONG)
        assert again == first and cached > 0
        other, _ = _answer(server, f"0. {LOAD}")
        assert other["finish_reason"] == "length"
        metrics = server.metrics()
        assert metrics["openk3:disk_hits_total"] >= 1
        assert metrics["openk3:disk_damaged_total"] == 2
        assert (metrics["vllm:num_requests_running"], metrics["vllm:num_requests_waiting"]) == (0, 0)
    finally:
        assert server.stop() == 0
    assert "Traceback" not in server.log()
    assert json.loads((tmp_path / "usage.json").read_text())["keys"][""]["requests"] >= 2
