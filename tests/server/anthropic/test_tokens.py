"""Counting tokens gives what an answer would be billed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openk3.server.anthropic.tokens import CountTokens
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from tests.cli.scripted import answer
from tests.server.anthropic.conftest import Dialect

TOOL = {"name": "f", "input_schema": {"type": "object"}}
SCHEMA = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"system": "Be brief."},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low"}},
        {"output_config": {"format": SCHEMA}},
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]},
    ],
)
def test_a_count_is_what_an_answer_is_billed(dialect: Callable[..., Dialect], more: dict[str, Any]) -> None:
    made = dialect(answer("", "4"))
    body = {"model": "kimi-k3", "messages": [{"role": "user", "content": "Hi"}], **more}
    usage = made.whole({**body, "max_tokens": 10})["usage"]
    assert made.client.messages.count_tokens(**body).input_tokens == made.script.num_prompt_tokens
    assert made.script.num_prompt_tokens == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_what_cannot_be_understood_is_refused_the_same_way(model: ServedModel) -> None:
    with pytest.raises(Fault, match="messages is missing") as raised:
        CountTokens().count({"model": "kimi-k3"}, model)
    assert CountTokens().error(raised.value)["error"]["type"] == "invalid_request_error"
