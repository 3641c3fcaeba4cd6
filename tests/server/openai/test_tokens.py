"""Counting a prompt's tokens."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.tokens import EstimateTokens
from tests.server.openai.conftest import Dialect, ask, thought, tool

FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
OFF = {"type": "disabled"}


def count(body: dict[str, Any], model: ServedModel) -> int:
    counted = EstimateTokens().count(body, model)
    assert counted.keys() == {"data"}
    total = counted["data"]["total_tokens"]
    assert type(total) is int
    return total


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"thinking": OFF},
        {"reasoning_effort": "low"},
        {"tools": [tool()]},
        {"tools": [tool()], "tool_choice": "required"},
        {"response_format": FORMAT},
        {"messages": [{"role": "system", "tools": [tool()]}, {"role": "user", "content": "é"}]},
        {"messages": [{"role": "assistant", "content": "Once", "partial": True}]},
    ],
)
def test_the_count_is_what_an_answer_would_cost(chat: Dialect, model: ServedModel, fields: dict[str, Any]) -> None:
    assert count(ask(**fields), model) == chat.whole(ask(**fields), thought("", ""))["usage"]["prompt_tokens"]


def test_everything_that_is_rendered_counts(model: ServedModel) -> None:
    plain = count(ask(), model)
    assert count(ask(thinking=OFF), model) < plain < count(ask(tools=[tool()]), model)
    assert plain < count(ask(response_format=FORMAT), model)
    assert plain < count(ask(tool_choice="none"), model)


def test_wrong_bodies_are_refused(model: ServedModel) -> None:
    for messages in ([], [{"role": "tool", "content": "x", "tool_call_id": "unknown"}]):
        with pytest.raises(Fault) as caught:
            count(ask(messages=messages), model)
        assert caught.value.status == 400
        assert EstimateTokens().error(caught.value)["error"]["message"] == caught.value.text
    with pytest.raises(Fault, match="no model"):
        count(ask(model="other"), model)
