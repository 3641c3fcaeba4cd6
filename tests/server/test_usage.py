"""What keys have used: counted, priced, kept in a file that is never half."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from openk3 import LLM
from openk3.errors import ConfigError
from openk3.protocol.sampling import Usage
from openk3.server.usage import UsageLedger
from tests.server.harness import small_app


def test_tokens_have_the_published_prices() -> None:
    ledger = UsageLedger()
    ledger.add("a", Usage(3_000_000, 1_000_000, 1_000_000, 400_000))
    (item,) = ledger.report("a")["data"]
    assert item["cost"] == 2 * 3.00 + 1 * 0.30 + 1 * 15.00
    assert (item["requests"], item["reasoning_tokens"]) == (1, 400_000)


def test_a_key_sees_its_own_and_everybody_sees_all() -> None:
    ledger = UsageLedger()
    ledger.add("b", Usage(10, 1))
    ledger.add("a", Usage(10, 1))
    ledger.add("a", Usage(20, 2, 5, 1))
    assert [item["key"] for item in ledger.report(None)["data"]] == ["a", "b"]
    (own,) = ledger.report("a")["data"]
    assert (own["requests"], own["prompt_tokens"], own["cached_tokens"], own["completion_tokens"]) == (2, 30, 5, 3)
    (none,) = ledger.report("c")["data"]
    assert (none["requests"], none["cost"]) == (0, 0)


def test_a_file_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    ledger = UsageLedger(file)
    ledger.save()
    assert not file.exists()
    ledger.add("a", Usage(10, 1))
    ledger.save()
    written = file.stat().st_mtime_ns
    ledger.save()
    assert file.stat().st_mtime_ns == written
    again = UsageLedger(file)
    again.add("a", Usage(10, 1))
    assert again.report("a")["data"][0]["requests"] == 2
    assert os.listdir(tmp_path) == ["usage.json"]


def test_a_crash_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "usage.json"
    ledger = UsageLedger(file)
    ledger.add("a", Usage(10, 1))
    ledger.save()
    before = file.read_bytes()
    ledger.add("a", Usage(10, 1))
    with monkeypatch.context() as patch:
        patch.setattr("openk3.server.usage.os.fsync", _no_space)
        with pytest.raises(OSError, match="No space"):
            ledger.save()
    assert (file.read_bytes(), os.listdir(tmp_path)) == (before, ["usage.json"])
    ledger.save()
    assert UsageLedger(file).report("a")["data"][0]["requests"] == 2


def _no_space(fd: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"format": "openk3-usage-1"}',
        '{"format": "openk3-usage-1", "keys": {"a": {}}}',
        '{"format": "openk3-usage-1", "keys": {"a": {"requests": -1, "prompt_tokens": 0, "cached_tokens": 0, '
        '"completion_tokens": 0, "reasoning_tokens": 0}}}',
        '{"format": "other", "keys": {}}',
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="not a usage file"):
        UsageLedger(file)
    assert file.read_text() == content


def test_answers_are_counted_for_their_key(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    keys = (("alice", "sk-a"), ("bob", "sk-b"))
    alice, bob = ({"authorization": f"Bearer {key}"} for _, key in keys)
    with TestClient(small_app(llm, api_keys=keys, usage_file=file)) as client:
        usages = [
            client.post("/v1/tell", json={"prompt": "x", "n": 3}, headers=alice).json()["usage"] for _ in range(2)
        ]
        client.post("/v1/tell", json={"prompt": "x", "n": 5, "stream": True}, headers=bob)
        client.post("/v1/tell", json={}, headers=bob)
        assert client.get("/v1/usage").status_code == 401
        (own,) = client.get("/v1/usage", headers=alice).json()["data"]
        (other,) = client.get("/v1/usage", headers=bob).json()["data"]
    assert own["completion_tokens"] == sum(usage["completion_tokens"] for usage in usages) == 6
    assert own["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert (other["requests"], other["completion_tokens"]) == (1, 5)
    assert json.loads(file.read_text())["keys"]["bob"]["completion_tokens"] == 5


def test_without_keys_all_is_shown(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        client.post("/v1/tell", json={"prompt": "x", "n": 3})
        (item,) = client.get("/v1/usage").json()["data"]
    assert (item["key"], item["requests"], item["completion_tokens"]) == (None, 1, 3)
