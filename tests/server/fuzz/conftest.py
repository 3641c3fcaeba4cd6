"""A real server whose engine computes nothing, and the bodies that it is asked with."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from openk3 import LLM
from openk3.engine.engine import Engine
from openk3.server.access_log import AccessLog
from openk3.server.app import create_app
from openk3.server.settings import ServerSettings
from tests.server.fuzz.asking import Asker, UncomputedEngine, check
from tests.server.harness import running

NORMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "nano",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "é"}], "name": "me"},
        ],
        "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}],
        "tool_choice": "auto",
        "temperature": 0.5,
        "stop": ["END"],
        "max_tokens": 3,
        "seed": 1,
        "stream": False,
        "thinking": {"type": "enabled", "effort": "low"},
    },
    "/v1/completions": {
        "model": "nano",
        "prompt": [[79, 110]],
        "max_tokens": 3,
        "stop": "END",
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 1,
    },
    "/v1/responses": {
        "model": "nano",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "max_output_tokens": 3,
        "reasoning": {"effort": "low"},
        "stream": True,
    },
    "/anthropic/v1/messages": {
        "model": "nano",
        "max_tokens": 3,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
        "stop_sequences": ["END"],
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}],
    },
    "/v1/tokenizers/estimate-token-count": {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]},
    "/anthropic/v1/messages/count_tokens": {"model": "nano", "messages": [{"role": "user", "content": "Hi"}]},
}
"""One body for each endpoint that it answers."""


@pytest.fixture(scope="session")
def asker(llm: LLM) -> Iterator[Asker]:
    """A client of a server, which at last must answer as it did at first."""
    model = llm._model
    ids = [*model.tokenizer.encode("Hm. Well."), model.tokenizer.special.end_of_msg]
    uncomputed = replace(model, engine=cast(Engine, UncomputedEngine(model.engine, ids)))
    settings = ServerSettings(max_body_bytes=1 << 20)
    with running(create_app(LLM.of(uncomputed), settings, log=AccessLog(io.StringIO()))) as url:
        asker = Asker(url)
        before = _normal(asker)
        yield asker
        assert _normal(asker) == before
        asker.close()


@pytest.fixture
def healthy(asker: Asker) -> Iterator[None]:
    """Check after a test that the server answers as if nothing had happened."""
    yield
    path = next(iter(NORMAL))
    assert asker.ask_json(path, NORMAL[path]).status == 200


def _normal(asker: Asker) -> dict[str, bytes]:
    """Ask every endpoint its normal request, and return what is the same each time."""
    replies = {path: asker.ask_json(path, body) for path, body in NORMAL.items()}
    assert all(check(path, reply) for path, reply in replies.items()), replies
    return {path: _PASSING.sub(b"", reply.body) for path, reply in replies.items()}


_PASSING = re.compile(rb"[a-z]+[-_][0-9a-f]{16,}|_at\":\d+|created\":\d+")
