"""Limits of a key, with a clock that the test moves."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

from openk3 import LLM
from openk3.server.faults import Fault
from openk3.server.limits import Limits
from tests.server.harness import small_app


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _ask(limits: Limits, key: str = "a") -> dict[str, str]:
    with limits.admitted(key) as headers:
        return headers


def test_so_many_requests_at_once() -> None:
    limits = Limits(2, 0)
    with ExitStack() as stack:
        assert [stack.enter_context(limits.admitted("a")) for _ in range(2)] == [{}, {}]
        with pytest.raises(Fault, match="2 requests are running, expected at most 2 at once") as caught:
            _ask(limits)
        _ask(limits, "b")
    assert (caught.value.status, caught.value.kind) == (429, "rate_limit_reached_error")
    assert caught.value.headers == {"Retry-After": "1"}
    _ask(limits)


def test_a_place_is_free_again_after_an_error() -> None:
    limits = Limits(1, 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limits.admitted("a"):
            raise ZeroDivisionError
    _ask(limits)


def test_so_many_requests_in_any_minute() -> None:
    clock = Clock()
    limits = Limits(0, 3, clock)
    left = []
    for _ in range(3):
        left.append(_ask(limits)["X-RateLimit-Remaining"])
        clock.now += 15
    assert left == ["2", "1", "0"]
    with pytest.raises(Fault, match="3 requests came within a minute, expected at most 3") as caught:
        _ask(limits)
    assert caught.value.headers == {
        "Retry-After": "15",
        "X-RateLimit-Limit": "3",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "15",
    }
    _ask(limits, "b")
    clock.now += 14.5
    with pytest.raises(Fault) as caught:
        _ask(limits)
    assert caught.value.headers["Retry-After"] == "1"
    clock.now += 0.5
    assert _ask(limits)["X-RateLimit-Remaining"] == "0"
    with pytest.raises(Fault):
        _ask(limits)


def test_refused_requests_do_not_count() -> None:
    clock = Clock()
    limits = Limits(0, 1, clock)
    _ask(limits)
    for _ in range(100):
        clock.now += 0.5
        with pytest.raises(Fault):
            _ask(limits)
    clock.now += 10
    _ask(limits)


def test_limits_are_those_of_a_key(llm: LLM) -> None:
    keys = (("alice", "sk-a"), ("bob", "sk-b"))
    with TestClient(small_app(llm, api_keys=keys, requests_per_minute=2)) as client:

        def ask(key: str) -> tuple[int, str | None]:
            reply = client.post("/v1/tell", json={"prompt": "x"}, headers={"authorization": f"Bearer {key}"})
            return reply.status_code, reply.headers.get("X-RateLimit-Remaining")

        assert [ask("sk-a"), ask("sk-a"), ask("sk-a")] == [(200, "1"), (200, "0"), (429, "0")]
        assert ask("sk-b") == (200, "1")
        assert client.post("/v1/tell", json={"prompt": "x"}).status_code == 401
        assert client.get("/v1/models", headers={"x-api-key": "sk-a"}).status_code == 200
