"""The one way of every request: what is sent when, what ends it early, and that nothing is left of it then."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from openk3 import LLM
from openk3.engine.metrics import EngineMetrics
from openk3.server.endpoint import Event
from openk3.server.faults import Fault
from openk3.server.reply import event_bytes
from tests.server.harness import Tell, events_of, running, service_of, small_app, wait_until

Idle = Callable[[LLM], EngineMetrics]
LONG = 6000
"""Tokens of an answer that does not end within a test."""


def test_a_whole_answer_and_its_usage_headers(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.post("/v1/tell", json={"prompt": "Once", "n": 5})
    assert reply.status_code == 200
    usage = reply.json()["usage"]
    assert (usage["completion_tokens"], reply.json()["text"]) == (5, reply.json()["text"])
    assert reply.headers["X-Msh-Usage-Prompt-Tokens"] == str(usage["prompt_tokens"])
    assert reply.headers["X-Msh-Usage-Cached-Tokens"] == str(usage["cached_tokens"])
    assert reply.headers["content-type"] == "application/json"


def test_a_stream_has_the_text_of_a_whole_answer(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        whole = client.post("/v1/tell", json={"prompt": "Once upon", "n": 7})
        stream = client.post("/v1/tell", json={"prompt": "Once upon", "n": 7, "stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-cache"
    events = events_of(stream.text)
    assert [name for name, _ in events] == ["begin", *[None] * (len(events) - 3), "end", None]
    assert "".join(json.loads(data)["text"] for name, data in events[1:-2]) == whole.json()["text"]
    assert json.loads(events[-2][1])["usage"] == whole.json()["usage"]
    assert events[-1][1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_headers_say_what_was_cached_before_the_first_byte(llm: LLM, stream: bool) -> None:
    body = {"prompt": f"A story of {stream}: " + "and then, and then, " * 40, "n": 3, "stream": stream}
    with TestClient(small_app(llm)) as client:
        replies = [client.post("/v1/tell", json=body) for _ in range(3)]  # what comes again is kept
    cached = [int(reply.headers["X-Msh-Usage-Cached-Tokens"]) for reply in replies]
    assert cached[0] == 0 and cached[2] > 0
    last = json.loads(events_of(replies[2].text)[-2][1]) if stream else replies[2].json()
    assert (cached[2], replies[2].headers["X-Msh-Usage-Prompt-Tokens"]) == (
        last["usage"]["cached_tokens"],
        str(last["usage"]["prompt_tokens"]),
    )


def test_a_conversation_is_answered(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.post("/v1/tell", json={"say": "Hello!", "n": 4})
    assert reply.json()["usage"]["reasoning_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_in_an_answer_frees_the_engine(llm: LLM, idle_metrics: Idle, stream: bool) -> None:
    before = idle_metrics(llm)
    app = small_app(llm)
    with running(app) as url:
        body = {"prompt": f"Leave {stream}", "n": LONG, "stream": stream}
        with pytest.raises(httpx.ReadTimeout), httpx.stream("POST", f"{url}/v1/tell", json=body, timeout=0.5) as reply:
            for _ in reply.iter_lines():
                raise httpx.ReadTimeout("enough")
        wait_until(lambda: llm.metrics.cancelled == before.cancelled + 1, lambda: llm.metrics)
        after = idle_metrics(llm)
    assert after.free_slots == before.free_slots
    assert after.tokens_written - before.tokens_written < LONG / 2


def test_a_client_that_leaves_before_its_first_token_frees_its_place(narrow_llm: LLM) -> None:
    first = {"prompt": "First", "n": LONG, "stream": True}
    with running(small_app(narrow_llm)) as url, httpx.stream("POST", f"{url}/v1/tell", json=first):
        wait_until(lambda: narrow_llm.metrics.running == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/tell", json={"prompt": "Second", "stream": True}, timeout=0.5)
        wait_until(lambda: narrow_llm.metrics.cancelled == 1, lambda: narrow_llm.metrics)
        assert (narrow_llm.metrics.running, narrow_llm.metrics.waiting) == (1, 0)


def test_a_client_that_leaves_while_its_question_is_prepared_costs_nothing(llm: LLM, idle_metrics: Idle) -> None:
    before = idle_metrics(llm)
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    app = small_app(llm, Tell(before_read=wait))
    with running(app) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/tell", json={"prompt": "Gone", "n": LONG}, timeout=0.3)
        assert begun.is_set()
        wait_until(lambda: service_of(app).limits._accounts[""].running == 0)
        go_on.set()
        wait_until(lambda: llm.metrics.cancelled == before.cancelled + 1, lambda: llm.metrics)
        after = idle_metrics(llm)
    assert after.tokens_written - before.tokens_written < LONG / 2


def test_a_client_that_leaves_in_its_body_is_forgotten(llm: LLM) -> None:
    app = small_app(llm)
    with running(app) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"POST /v1/tell HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            wait_until(lambda: service_of(app).limits._accounts[""].running == 1)
        wait_until(lambda: service_of(app).limits._accounts[""].running == 0)


def test_a_slow_reader_is_waited_for(llm: LLM, idle_metrics: Idle) -> None:
    pushed: list[int] = []
    before = idle_metrics(llm)
    with running(small_app(llm, Tell(on_push=pushed.append, padding=500_000))) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": "Slow", "n": 100, "stream": True}).encode()
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"POST /v1/tell HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            wait_until(lambda: llm.metrics.finished == before.finished + 1, lambda: llm.metrics)
            # All is computed, but no more was made ready than sockets hold.
            assert 1 <= len(pushed) < 60
            received = b""
            while b"[DONE]" not in received:
                received = received[-100:] + sock.recv(1 << 20)
    assert len(pushed) == 100


def test_slow_preparations_do_not_stop_the_server(llm: LLM) -> None:
    go_on = threading.Event()
    app = small_app(llm, Tell(before_read=lambda: _assert(go_on.wait(60))))
    with running(app) as url:
        replies: list[int] = []

        def ask() -> None:
            replies.append(httpx.post(f"{url}/v1/tell", json={"prompt": "x"}).status_code)

        askers = [threading.Thread(target=ask) for _ in range(8)]
        for asker in askers:
            asker.start()
        wait_until(lambda: service_of(app).limits._accounts[""].running == 8)
        assert httpx.get(f"{url}/health").status_code == 200
        go_on.set()
        for asker in askers:
            asker.join(60)
    assert replies == [200] * 8


def _assert(is_so: bool) -> None:
    assert is_so


def test_an_error_in_a_stream_is_its_last_event(llm: LLM, idle_metrics: Idle) -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise Fault("that is enough", status=500, kind="unexpected_output")

    with TestClient(small_app(llm, Tell(on_push=fail))) as client:
        reply = client.post("/v1/tell", json={"prompt": "Once", "n": LONG, "stream": True})
    events = events_of(reply.text)
    assert reply.status_code == 200
    assert [name for name, _ in events] == ["begin", None, None, "error"]
    assert json.loads(events[-1][1]) == {"error": {"message": "that is enough", "type": "unexpected_output"}}
    idle_metrics(llm)


@pytest.mark.parametrize("stream", [False, True])
def test_an_unforeseen_error_is_logged_under_a_number_and_says_nothing_else(
    llm: LLM, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int = 2) -> None:
        if number == 2:
            raise ZeroDivisionError("the secret")

    endpoint = Tell(on_push=fail) if stream else Tell(before_read=fail)
    with TestClient(small_app(llm, endpoint)) as client, caplog.at_level(logging.ERROR):
        reply = client.post("/v1/tell", json={"prompt": "Once", "stream": stream}, headers={"X-Request-Id": "my-1"})
    body = json.loads(events_of(reply.text)[-1][1]) if stream else reply.json()
    assert reply.status_code == (200 if stream else 500)
    assert body["error"] == {"message": "the server could not answer request my-1", "type": "server_error"}
    assert "the secret" not in reply.text
    assert "request my-1 failed" in caplog.text and "ZeroDivisionError: the secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_ends_when_its_time_is_over(llm: LLM, idle_metrics: Idle, stream: bool) -> None:
    before = idle_metrics(llm)
    with TestClient(small_app(llm, timeout_s=0.5)) as client:
        reply = client.post("/v1/tell", json={"prompt": "Late", "n": LONG, "stream": stream})
    error = json.loads(events_of(reply.text)[-1][1]) if stream else reply.json()
    assert reply.status_code == (200 if stream else 504)
    assert error["error"]["type"] == "timeout_error"
    after = idle_metrics(llm)
    assert after.requests == before.requests + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_stops_says_so_to_whom_it_is_answering(llm: LLM, idle_metrics: Idle, stream: bool) -> None:
    before = idle_metrics(llm)
    app = small_app(llm)
    with TestClient(app) as client:

        def stop() -> None:
            wait_until(lambda: llm.metrics.tokens_written > before.tokens_written + 2)
            assert client.portal is not None
            client.portal.call(service_of(app).stopping.set)

        stopper = threading.Thread(target=stop)
        stopper.start()
        reply = client.post("/v1/tell", json={"prompt": "Stop", "n": LONG, "stream": stream})
        stopper.join(60)
        later = client.get("/health")
    error = json.loads(events_of(reply.text)[-1][1]) if stream else reply.json()
    assert reply.status_code == (200 if stream else 503)
    assert (error["error"]["type"], later.status_code) == ("server_unavailable", 503)
    idle_metrics(llm)


def test_too_many_waiting_requests_are_refused(narrow_llm: LLM) -> None:
    first = {"prompt": "First", "n": LONG, "stream": True}
    with running(small_app(narrow_llm)) as url, httpx.stream("POST", f"{url}/v1/tell", json=first):
        wait_until(lambda: narrow_llm.metrics.running == 1)
        waiter = threading.Thread(target=_ask_in_vain, args=(url,))
        waiter.start()
        wait_until(lambda: narrow_llm.metrics.waiting == 1, lambda: narrow_llm.metrics)
        reply = httpx.post(f"{url}/v1/tell", json={"prompt": "Third"})
        waiter.join(60)
    assert (reply.status_code, reply.json()["error"]["type"]) == (429, "engine_overloaded_error")
    assert int(reply.headers["Retry-After"]) >= 1


def _ask_in_vain(url: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/tell", json={"prompt": "Second"}, timeout=2)


def test_an_engine_that_was_closed_is_said(narrow_llm: LLM) -> None:
    with TestClient(small_app(narrow_llm)) as client:
        assert client.get("/health").status_code == 200
        narrow_llm.close()
        reply, health = client.post("/v1/tell", json={"prompt": "x"}), client.get("/health")
    assert (reply.status_code, reply.json()["error"]["type"]) == (503, "server_unavailable")
    assert (health.status_code, "engine" in health.json()["error"]["message"]) == (503, True)


def test_an_engine_that_failed_is_said(narrow_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(core: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("openk3.engine.core.EngineCore.step", fail)
    with TestClient(small_app(narrow_llm)) as client:
        reply = client.post("/v1/tell", json={"prompt": "x"})
        wait_until(lambda: client.get("/health").status_code == 503)
    assert reply.status_code == 503


def test_faults_of_a_body_have_the_form_of_the_dialect(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        replies = [client.post(path, content=b"{") for path in ("/v1/tell", "/foreign/v1/tell", "/v1/count")]
    assert [reply.status_code for reply in replies] == [400] * 3
    assert replies[0].json()["error"]["type"] == "invalid_request_error"
    assert replies[1].json()["type"] == "error"


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_sent(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.post("/v1/tell", json={"prompt": "word " * 20_000, "stream": True})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_limit_of_the_client_s_own_must_leave_room_for_the_prompt(llm: LLM, idle_metrics: Idle) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.post("/v1/tell", json={"prompt": "x", "n": LONG, "most": llm.max_tokens})
        assert (reply.status_code, "together with" in reply.text) == (400, True)
        assert client.post("/v1/tell", json={"prompt": "x", "most": llm.max_tokens - 1}).status_code == 200
    idle_metrics(llm)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(llm: LLM, chunked: bool) -> None:
    body = b'{"prompt": "' + b"x" * 3_000_000 + b'"}'
    with running(small_app(llm, max_body_bytes=1000)) as url:
        content = iter([body[:100], body[100:]]) if chunked else body
        reply = httpx.post(f"{url}/v1/tell", content=content)
    assert reply.status_code == 413
    assert "expected at most 1,000" in reply.json()["error"]["message"]


def test_a_counter_is_served_the_same_way(llm: LLM) -> None:
    with TestClient(small_app(llm, api_keys=(("a", "sk-a"),))) as client:
        assert client.post("/v1/count", json={"text": "four"}).status_code == 401
        headers = {"x-api-key": "sk-a"}
        assert client.post("/v1/count", json={"text": "four"}, headers=headers).json() == {"count": 4}
        assert client.post("/v1/count", json={}, headers=headers).status_code == 400


def test_one_request_does_not_see_another_ones_text(llm: LLM) -> None:
    """BerriAI/litellm#35023: another request's text in the reply."""
    prompts = [f"Number {number} said" for number in range(5)]
    with running(small_app(llm)) as url:
        alone = [httpx.post(f"{url}/v1/tell", json={"prompt": prompt, "n": 8}).json()["text"] for prompt in prompts]
        together: dict[str, str] = {}

        def ask(prompt: str) -> None:
            reply = httpx.post(f"{url}/v1/tell", json={"prompt": prompt, "n": 8, "stream": True})
            pieces = [json.loads(data) for name, data in events_of(reply.text) if name is None and data != "[DONE]"]
            together[prompt] = "".join(piece["text"] for piece in pieces)

        askers = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(60)
    assert [together[prompt] for prompt in prompts] == alone


def test_events_are_one_line_each_and_safe_to_encode() -> None:
    assert event_bytes(Event("[DONE]")) == b"data: [DONE]\n\n"
    assert event_bytes(Event({"a": "é\n\u2028"}, "x")) == 'event: x\ndata: {"a":"é\\n\u2028"}\n\n'.encode()
    assert event_bytes(Event({"a": "\ud83d"})) == b'data: {"a":"\\ud83d"}\n\n'
    lines = event_bytes(Event({"text": "\r\n\n"})).split(b"\n")
    assert len(lines) == 3 and re.fullmatch(rb"data: \{.*\}", lines[0])


def test_nothing_of_the_server_is_needed_to_know_the_contract() -> None:
    """Endpoints are tested without a server: their contract imports no part of one."""
    source = Path(__file__).parents[2] / "src/openk3/server/endpoint.py"
    assert not re.search(r"import (fastapi|starlette|uvicorn)|from (fastapi|starlette|uvicorn)", source.read_text())
