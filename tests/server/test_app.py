"""The application's paths: which there are, who may use them, and how errors at others are said."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from starlette.testclient import TestClient

from openk3 import LLM
from openk3.server.access_log import AccessLog
from openk3.server.app import all_counters, all_endpoints, create_app
from openk3.server.settings import ServerSettings
from tests.server.harness import Count, Foreign, Tell, small_app


def test_models_have_capabilities(llm: LLM) -> None:
    with TestClient(small_app(llm, names=("nano", "kimi-k3"))) as client:
        models = client.get("/v1/models").json()
        one = client.get("/v1/models/kimi-k3").json()
    assert (models["object"], [model["id"] for model in models["data"]]) == ("list", ["nano", "kimi-k3"])
    assert one == models["data"][1]
    assert one | {"created": 0} == {
        "id": "kimi-k3",
        "object": "model",
        "created": 0,
        "owned_by": "openk3",
        "context_length": llm.max_tokens,
        "supports_image_in": False,
        "supports_video_in": False,
        "supports_reasoning": True,
    }


def test_a_model_that_there_is_not(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.get("/v1/models/org/other")
    assert (reply.status_code, reply.json()["error"]["type"]) == (404, "resource_not_found_error")
    assert "'org/other'" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/nano", "/v1/usage"])
def test_paths_below_v1_take_a_key(llm: LLM, path: str) -> None:
    with TestClient(small_app(llm, api_keys=(("a", "sk-a"),))) as client:
        refused = client.get(path)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "invalid_authentication_error")
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert client.get(path, headers={"Authorization": "Bearer sk-b"}).status_code == 401
        assert client.get(path, headers={"Authorization": "Bearer sk-a"}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_what_watches_a_server_needs_no_key(llm: LLM, path: str) -> None:
    with TestClient(small_app(llm, api_keys=(("a", "sk-a"),))) as client:
        assert client.get(path).status_code == client.head(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "foreign"),
    [
        ("GET", "/v1/tell", 405, False),
        ("DELETE", "/v1/models", 405, False),
        ("POST", "/v1/tell/", 404, False),
        ("POST", "/v1/other", 404, False),
        ("GET", "/v1/users/me/balance", 404, False),
        ("GET", "/docs", 404, False),
        ("GET", "/openapi.json", 404, False),
        ("GET", "/foreign/v1/other", 404, True),
        ("GET", "/foreign/v1/tell", 405, True),
        ("GET", "/foreign", 404, True),
    ],
)
def test_errors_at_unknown_paths_have_the_nearest_dialect(
    llm: LLM, method: str, path: str, status: int, foreign: bool
) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.request(method, path)
    assert reply.status_code == status
    assert ("type" in reply.json()) == foreign
    if status == 405:
        assert set(re.split(", ?", reply.headers["allow"])) & {"POST", "GET"}


def test_the_two_families_say_unknown_paths_in_their_own_form(llm: LLM) -> None:
    with TestClient(create_app(llm)) as client:
        openai = client.post("/v1/nowhere").json()
        anthropic = [client.post(path).json() for path in ("/anthropic/v1/nowhere", "/v1/messages/nowhere")]
    assert openai["error"]["type"] == "resource_not_found_error"
    assert [(body["type"], body["error"]["type"]) for body in anthropic] == [("error", "not_found_error")] * 2


def test_no_two_endpoints_have_a_path_in_common() -> None:
    paths = [path for one in (*all_endpoints(), *all_counters()) for path in one.paths]
    assert len(set(paths)) == len(paths)
    assert {"/v1/chat/completions", "/v1/completions", "/anthropic/v1/messages", "/v1/messages"} <= set(paths)


def test_pages_of_others_may_not_ask_unless_they_are_named(llm: LLM) -> None:
    question = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with TestClient(small_app(llm), base_url="http://127.0.0.1:8000") as client:
        assert client.options("/v1/tell", headers=question).status_code == 405
        assert "access-control-allow-origin" not in client.get("/v1/models", headers=question).headers
    with TestClient(small_app(llm, cors_origins=("https://a.example",), api_keys=(("a", "sk-a"),))) as client:
        asked = client.options("/v1/tell", headers={**question, "Access-Control-Request-Headers": "authorization"})
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://a.example")
        reply = client.post("/v1/tell", json={"prompt": "x"}, headers={"Origin": "https://a.example"})
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (401, "https://a.example")
        assert "X-Msh-Usage-Cached-Tokens" in reply.headers["access-control-expose-headers"]
        other = client.options("/v1/tell", headers={**question, "Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(("given", "kept"), [("my.request-1", True), ("a b", False), ("x" * 129, False), ("", False)])
def test_requests_have_numbers(llm: LLM, given: str, kept: bool) -> None:
    with TestClient(small_app(llm)) as client:
        reply = client.get("/nowhere", headers={"X-Request-Id": given})
        other = client.get("/health")
    number = reply.headers["X-Request-Id"]
    assert number == reply.headers["request-id"]
    assert number == given if kept else re.fullmatch(r"req_[0-9a-f]{32}", number)
    assert other.headers["X-Request-Id"] != number


def test_an_unforeseen_error_of_a_path_says_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("the secret")

    monkeypatch.setattr("openk3.server.app.models_list", fail)
    with TestClient(small_app(llm)) as client:
        reply = client.get("/v1/models", headers={"X-Request-Id": "my-2"})
    assert (reply.status_code, reply.headers["X-Request-Id"]) == (500, "my-2")
    assert reply.json()["error"]["message"] == "the server could not answer request my-2"
    assert "request my-2 failed" in caplog.text


def test_every_request_is_a_line_of_the_log_without_its_content(llm: LLM) -> None:
    stream = StringIO()
    settings = ServerSettings(api_keys=(("alice", "sk-alice"),))
    app = create_app(llm, settings, endpoints=[Tell(), Foreign()], counters=[Count()], pages=[], log=AccessLog(stream))
    with TestClient(app) as client:
        headers = {"authorization": "Bearer sk-alice", "X-Request-Id": "my-3"}
        body = {"prompt": "Unmentionable", "n": 3}
        usages = [
            client.post("/v1/tell", json={**body, "stream": False}, headers=headers).json()["usage"],
            client.post("/v1/tell?query=hidden", json={**body, "stream": True}, headers=headers) and None,
        ]
        client.post("/v1/tell", json=body)
        client.get("/health")
        client.get("/metrics")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["status"], line["key"], line["path"]) for line in lines] == [
        (200, "alice", "/v1/tell"),
        (200, "alice", "/v1/tell"),
        (401, None, "/v1/tell"),
    ]
    first = lines[0]
    assert set(first) == {
        *("time", "request_id", "key", "method", "path", "status", "duration_s"),
        *("prompt_tokens", "cached_tokens", "completion_tokens", "first_token_s", "finish_reason"),
    }
    assert usages[0] is not None and first["prompt_tokens"] == usages[0]["prompt_tokens"]
    assert (first["request_id"], first["finish_reason"], lines[1]["completion_tokens"]) == ("my-3", "length", 3)
    assert 0 < first["first_token_s"] <= first["duration_s"]
    assert not any(secret in stream.getvalue() for secret in ("Unmentionable", "sk-alice", "hidden"))


def test_a_log_that_nobody_reads_stops_nothing(llm: LLM) -> None:
    stream = StringIO()
    stream.close()
    app = create_app(llm, endpoints=[Tell()], counters=[], pages=[], log=AccessLog(stream))
    with TestClient(app) as client:
        assert client.get("/v1/models").status_code == 200


def test_keys_share_cached_prefixes_unless_they_are_isolated(llm: LLM) -> None:
    keys = (("a", "sk-a"), ("b", "sk-b"))
    for isolated in (False, True):
        body = {"prompt": f"Isolated: {isolated}. " + "on and on, " * 60, "n": 1}
        with TestClient(small_app(llm, api_keys=keys, isolate_keys=isolated)) as client:
            cached = [
                client.post("/v1/tell", json=body, headers={"x-api-key": key}).json()["usage"]["cached_tokens"]
                for key in ("sk-a", "sk-a", "sk-a", "sk-b")
            ]
        assert cached[2] > 0
        assert (cached[3] > 0) != isolated
