"""Calls in answers of the Responses API: custom tools, namespaces, and what stands around calls."""

from __future__ import annotations

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.openai.responses import Responses
from tests.server.openai.conftest import Dialect, response
from tests.server.openai.responses_harness import (
    body,
    call,
    calling,
    custom,
    function,
    kinds,
    streamed,
    whole,
    without_ids,
)

NESTED = {"type": "namespace", "name": "mcp__docs__", "description": "Docs.", "tools": [function("find")]}


@pytest.fixture(scope="module")
def responses(model: ServedModel) -> Dialect:
    return Dialect(model, Responses())


def test_a_custom_tool_gets_its_text_as_it_is_written(responses: Dialect) -> None:
    text = 'line "one"\n\tline \\two\\ ümläut 🙂\x01'
    said = calling(call("apply_patch", "input", text), reasoning="r")
    data = streamed(responses, body(tools=[custom()]), said)

    assert kinds(data)[-6:] == [
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    deltas = [one["delta"] for one in data if one["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == text
    assert len(deltas) > 10
    item = data[-1]["response"]["output"][-1]
    assert item["id"].startswith("ctc_")
    assert without_ids(item) == {
        "type": "custom_tool_call",
        "call_id": "apply_patch_0",
        "name": "apply_patch",
        "input": text,
        "status": "completed",
    }


def test_a_tool_of_a_namespace_is_called_by_its_own_name(responses: Dialect) -> None:
    answer = whole(responses, body(tools=[NESTED]), calling(call("mcp__docs__find", "city", "Rome")))

    (item,) = answer["output"]
    assert (item["name"], item["namespace"], item["call_id"]) == ("find", "mcp__docs__", "mcp__docs__find_0")


def test_a_call_of_an_undeclared_tool_is_passed_on(responses: Dialect) -> None:
    answer = whole(responses, body(tools=[function()]), calling(call("other", "city", "Rome")))

    assert answer["output"][0]["name"] == "other"


def test_calls_are_dropped_where_no_tool_is_declared(responses: Dialect) -> None:
    assert whole(responses, body(), calling(call("other", "city", "Rome"), text="Hi"))["output"][0]["type"] == "message"


def test_text_after_a_call_is_an_item_of_its_own(responses: Dialect) -> None:
    said = (
        f"<|close|>think<|sep|><|open|>tools<|sep|>{call('get_weather', 'city', 'Rome')}<|close|>tools<|sep|>"
        f"<|open|>response<|sep|>{response('Wait.')}"
    )
    answer = whole(responses, body(tools=[function()]), said)

    assert [item["type"] for item in answer["output"]] == ["function_call", "message"]
    assert without_ids(streamed(responses, body(tools=[function()]), said)[-1]["response"]) == without_ids(answer)
