"""Coding agents get good streams: their requests, as they send them, to the addresses that the guide configures.

Unusual: what the model says plays no part, only that a client which takes the protocol at its word is not misled.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from tests.guides.agent_requests import (
    CLAUDE_CODE_HEADERS,
    CLAUDE_CODE_STEP,
    CODEX_HEADERS,
    CODEX_STEP,
    claude_code,
    codex,
    opencode,
)
from tests.guides.pages import KEY, WRITTEN_URL, blocks
from tests.server.harness import events_of

PAGE = "docs/guides/coding-agents.md"
SHORT = 40
Event = dict[str, Any]


class Agent:
    """Sends requests as one agent is configured to."""

    def __init__(self, address: str, headers: dict[str, str]) -> None:
        self._address = address
        self._client = httpx.Client(headers={**headers, "authorization": f"Bearer {KEY}"}, timeout=60)

    def post(self, body: dict[str, Any], more: str = "") -> httpx.Response:
        head, mark, query = self._address.partition("?")
        return self._client.post(f"{head}{more}{mark}{query}", json=body)

    def events(self, body: dict[str, Any]) -> list[tuple[str | None, str]]:
        reply = self.post(body)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        return events_of(reply.text)

    def leave_after_the_first_text(self, body: dict[str, Any]) -> None:
        with self._client.stream("POST", self._address, json=body) as reply:
            assert reply.status_code == 200
            assert any("delta" in line for line in reply.iter_lines())

    def close(self) -> None:
        self._client.close()


def _agent(address: str, headers: dict[str, str]) -> Iterator[Agent]:
    agent = Agent(address, headers)
    yield agent
    agent.close()


@pytest.fixture
def claude_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads(blocks(PAGE, "json", "Claude Code")[0].code)["env"]
    return config


@pytest.fixture
def codex_config() -> dict[str, Any]:
    return tomllib.loads(blocks(PAGE, "toml", "Codex")[0].code)


@pytest.fixture
def opencode_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads(blocks(PAGE, "json", "OpenCode")[0].code)
    return config


@pytest.fixture
def claude(claude_config: dict[str, Any], url: str) -> Iterator[Agent]:
    base = claude_config["ANTHROPIC_BASE_URL"].replace(WRITTEN_URL, url)
    yield from _agent(f"{base}/v1/messages?beta=true", CLAUDE_CODE_HEADERS)


@pytest.fixture
def codex_agent(codex_config: dict[str, Any], url: str) -> Iterator[Agent]:
    provider = codex_config["model_providers"][codex_config["model_provider"]]
    assert provider["wire_api"] == "responses"
    yield from _agent(f"{provider['base_url'].replace(WRITTEN_URL, url)}/responses", CODEX_HEADERS)


@pytest.fixture
def opencode_agent(opencode_config: dict[str, Any], url: str) -> Iterator[Agent]:
    base = opencode_config["provider"]["openk3"]["options"]["baseURL"].replace(WRITTEN_URL, url)
    yield from _agent(f"{base}/chat/completions", {"user-agent": "opencode/1.2 ai-sdk/openai-compatible"})


def message_of(events: list[tuple[str | None, str]]) -> dict[str, Any]:
    """Put a message together as Anthropic's clients do, and check the order of its events on the way."""
    datas: list[Event] = [json.loads(data) for _, data in events]
    assert [data["type"] for data in datas] == [name for name, _ in events]
    first, *middle, before_last, last = [data for data in datas if data["type"] != "ping"]
    assert (first["type"], before_last["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    assert first["message"]["content"] == []
    blocks_of: list[dict[str, Any]] = []
    is_open = False
    for data in middle:
        assert (data["type"] == "content_block_start") != is_open
        is_open = data["type"] != "content_block_stop"
        if data["type"] == "content_block_start":
            blocks_of.append(data["content_block"] | {"deltas": []})
        assert data["index"] == len(blocks_of) - 1
        if data["type"] == "content_block_delta":
            blocks_of[-1]["deltas"].append(data["delta"])
    assert not is_open
    usage = first["message"]["usage"] | before_last["usage"]
    return first["message"] | before_last["delta"] | {"content": list(map(_block, blocks_of)), "usage": usage}


def _block(parts: dict[str, Any]) -> dict[str, Any]:
    kinds = {
        "thinking": {"thinking_delta", "signature_delta"},
        "text": {"text_delta"},
        "tool_use": {"input_json_delta"},
    }
    deltas: list[dict[str, Any]] = parts.pop("deltas")
    assert {delta["type"] for delta in deltas} <= kinds[parts["type"]]
    for delta in deltas:
        for name in delta.keys() - {"type", "partial_json"}:
            parts[name] += delta[name]
    if parts["type"] == "thinking":
        assert deltas[-1]["type"] == "signature_delta"
    if parts["type"] == "tool_use":
        text = "".join(delta["partial_json"] for delta in deltas)
        parts["input"] = json.loads(text) if text else {}
    return parts


def test_claude_code_gets_its_turns(claude: Agent, claude_config: dict[str, Any]) -> None:
    model = claude_config["ANTHROPIC_MODEL"]
    effort = {"effort": claude_config["CLAUDE_CODE_EFFORT_LEVEL"]}
    body = claude_code(f"{model}[1m]", max_tokens=SHORT, output_config=effort)
    first = message_of(claude.events(body))
    assert first["content"][0]["type"] == "thinking"
    assert first["stop_reason"] in ("end_turn", "max_tokens", "tool_use")
    assert 0 < first["usage"]["output_tokens"] <= SHORT

    body = claude_code(model, max_tokens=SHORT)
    body["messages"] += CLAUDE_CODE_STEP
    assert message_of(claude.events(body))["usage"]["output_tokens"] > 0


def test_claude_code_finds_its_prefix_again(claude: Agent, claude_config: dict[str, Any]) -> None:
    """Although the line at the beginning of its system prompt is another one each time."""
    model = claude_config["ANTHROPIC_MODEL"]
    body = claude_code(model, 1, max_tokens=SHORT)
    first = message_of(claude.events(body))
    counted = claude.post(claude_code(model, 2), "/count_tokens").json()["input_tokens"]
    assert counted == first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]

    body = claude_code(model, 3, max_tokens=SHORT)
    body["messages"] += CLAUDE_CODE_STEP
    usage = message_of(claude.events(body))["usage"]
    assert usage["cache_read_input_tokens"] > counted / 2
    assert usage["input_tokens"] < counted


def test_what_claude_code_asks_on_the_side(claude: Agent, claude_config: dict[str, Any], url: str) -> None:
    assert httpx.head(url, timeout=30).status_code == 200
    names = [name for name in claude_config if name.endswith("_MODEL")]
    assert len(names) == 4
    for name in names:
        body = {"model": claude_config[name], "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
        answer = claude.post({**body, "metadata": {"user_id": "x"}}).json()
        assert (answer["type"], answer["stop_reason"]) == ("message", "max_tokens")


def test_claude_code_may_leave_an_answer_of_32_thousand_tokens(claude: Agent) -> None:
    claude.leave_after_the_first_text(claude_code("kimi-k3"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]}, "runs no tools"),
        ({"output_config": {"effort": "xhigh"}}, "max"),
        ({"model": "claude-haiku-4-5-20251001"}, "kimi-k3"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "only text"),
    ],
)
def test_claude_code_is_told_what_is_not_here(claude: Agent, change: dict[str, Any], told: str) -> None:
    reply = claude.post(claude_code("kimi-k3") | change)
    assert reply.status_code in (400, 404)
    assert reply.json()["type"] == "error"
    assert told in reply.json()["error"]["message"]


def response_of(events: list[tuple[str | None, str]]) -> dict[str, Any]:
    """Return the response at the end of a stream, and check that its items came one by one and whole."""
    datas: list[Event] = [json.loads(data) for _, data in events]
    assert [data["type"] for data in datas] == [name for name, _ in events]
    assert all(data["sequence_number"] == number for data, number in zip(datas, count(), strict=False))
    assert [data["type"] for data in datas[:2]] == ["response.created", "response.in_progress"]
    added = [data for data in datas if data["type"] == "response.output_item.added"]
    done = [data for data in datas if data["type"] == "response.output_item.done"]
    assert [data["item"]["id"] for data in added] == [data["item"]["id"] for data in done]
    assert [data["output_index"] for data in done] == list(range(len(done)))
    last = datas[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    assert last["response"]["output"] == [data["item"] for data in done]
    response: dict[str, Any] = last["response"]
    return response


def test_codex_gets_its_turns(codex_agent: Agent, codex_config: dict[str, Any]) -> None:
    # Codex gives no limit of its own; here there is one so that the answer is short
    reasoning = {"effort": codex_config["model_reasoning_effort"], "summary": "auto"}
    body = codex(codex_config["model"], max_output_tokens=SHORT, reasoning=reasoning)
    first = response_of(codex_agent.events(body))
    assert first["output"][0]["type"] == "reasoning"
    assert first["usage"]["output_tokens"] <= SHORT

    body["input"] += [*CODEX_STEP, *first["output"], {"role": "user", "content": "Go on."}]
    second = response_of(codex_agent.events(body))
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_codex_may_leave_an_answer_without_a_limit(codex_agent: Agent) -> None:
    codex_agent.leave_after_the_first_text(codex("kimi-k3"))


def test_codex_gets_a_patch_that_follows_its_grammar(codex_agent: Agent) -> None:
    choice = {"type": "custom", "name": "apply_patch"}
    body = codex("kimi-k3", tool_choice=choice, max_output_tokens=100, temperature=0, reasoning={"effort": "none"})
    deltas = [
        json.loads(data)["delta"]
        for name, data in codex_agent.events(body)
        if name == "response.custom_tool_call_input.delta"
    ]
    assert "".join(deltas).startswith("*** Begin Patch\n*** ")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tools": [{"type": "web_search", "external_web_access": False}]}, "web_search"),
        ({"tools": [{"type": "image_generation", "output_format": "png"}]}, "image_generation"),
        ({"reasoning": {"effort": "medium"}}, "high"),
        ({"previous_response_id": "resp_1"}, "nothing is stored"),
    ],
)
def test_codex_is_told_what_is_not_here(codex_agent: Agent, change: dict[str, Any], told: str) -> None:
    reply = codex_agent.post(codex("kimi-k3") | change)
    assert reply.status_code == 400
    assert told in reply.json()["error"]["message"]


def test_opencode_gets_its_turns(opencode_agent: Agent, opencode_config: dict[str, Any]) -> None:
    model = opencode_config["model"].removeprefix("openk3/")
    assert list(opencode_config["provider"]["openk3"]["models"]) == [model]
    *frames, done = [data for _, data in opencode_agent.events(opencode(model, max_tokens=SHORT))]
    assert done == "[DONE]"
    *chunks, summary = [json.loads(frame) for frame in frames]
    assert summary["choices"] == [] and summary["usage"]["completion_tokens"] <= SHORT
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert any(delta.get("reasoning_content") for delta in deltas)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count(None) == len(chunks) - 1
