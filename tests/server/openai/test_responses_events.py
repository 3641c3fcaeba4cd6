"""Answers of the Responses API: items and events, as the official client reads them, streamed and whole alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openk3.llm.answer import Piece
from openk3.protocol.messages import ReasoningDelta
from openk3.protocol.sampling import Usage
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.responses import Responses
from tests.server.openai.conftest import CACHED, Dialect, response, thought
from tests.server.openai.responses_harness import (
    body,
    call,
    calling,
    data_of,
    function,
    kinds,
    streamed,
    whole,
    without_ids,
)

SAID = calling(call("get_weather", "city", "Köln"), call("get_weather", "city", "", 2), reasoning="Hm…", text="Look:")


@pytest.fixture(scope="module")
def responses(model: ServedModel) -> Dialect:
    return Dialect(model, Responses())


def test_reasoning_text_and_calls_come_in_the_documented_order(responses: Dialect) -> None:
    data = streamed(responses, body(tools=[function()]), SAID)

    called = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert kinds(data) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *called,
        *called,
        "completed",
    ]


def test_every_event_names_its_item(responses: Dialect) -> None:
    data = streamed(responses, body(tools=[function()]), SAID)

    output = data[-1]["response"]["output"]
    for one in data[2:-1]:
        item = output[one["output_index"]]
        assert one.get("item_id", item["id"]) == item["id"]
        if "item" in one:
            assert one["item"]["id"] == item["id"]
    assert [item["id"].split("_")[0] for item in output] == ["rs", "msg", "fc", "fc"]
    assert len({item["id"] for item in output}) == 4


def test_what_was_streamed_is_what_the_items_say(responses: Dialect) -> None:
    data = streamed(responses, body(tools=[function()]), SAID)

    reasoning, message, *calls = data[-1]["response"]["output"]
    texts = dict[int, str]()
    for one in data:
        if one["type"].endswith(".delta"):
            texts[one["output_index"]] = texts.get(one["output_index"], "") + one["delta"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": texts[0]}]
    assert message["content"][0]["text"] == texts[1] == "Look:"
    assert [one["arguments"] for one in calls] == [texts[2], texts[3]] == ['{"city":"Köln"}', '{"city":""}']
    assert [one["item"] for one in data if one["type"] == "response.output_item.done"] == data[-1]["response"]["output"]


def test_streamed_and_whole_are_the_same(responses: Dialect) -> None:
    asked = body(tools=[function()], instructions="Be brief.")
    data = streamed(responses, asked, SAID)

    assert without_ids(data[-1]["response"]) == without_ids(whole(responses, asked, SAID))


def test_a_whole_response(responses: Dialect) -> None:
    answer = whole(responses, body(tools=[function()]), SAID)

    assert answer["object"] == "response"
    assert answer["status"] == "completed"
    assert answer["store"] is False
    assert answer["id"].startswith("resp_")
    assert without_ids(answer["output"]) == [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm…"}],
            "encrypted_content": None,
            "status": "completed",
        },
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Look:", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "call_id": "get_weather_0",
            "name": "get_weather",
            "arguments": '{"city":"Köln"}',
            "status": "completed",
        },
        {
            "type": "function_call",
            "call_id": "get_weather_1",
            "name": "get_weather",
            "arguments": '{"city":""}',
            "status": "completed",
        },
    ]


def test_the_response_repeats_what_it_was_asked(responses: Dialect) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = body(
        tools=[function()],
        instructions="Be brief.",
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "schema": schema}, "verbosity": "low"},
        max_output_tokens=50,
        temperature=0.5,
    )

    answer = whole(responses, asked, thought("", '{"a": 1}'))

    assert answer["tools"] == asked["tools"]
    assert answer["instructions"] == "Be brief."
    assert answer["reasoning"] == {"effort": "low", "summary": "auto"}
    assert answer["text"]["format"] == {"type": "json_schema", "name": "output", "schema": schema}
    assert (answer["max_output_tokens"], answer["temperature"], answer["top_p"]) == (50, 0.5, 0.95)
    assert answer["tool_choice"] == "auto"


def test_usage(responses: Dialect) -> None:
    usage = whole(responses, body(), thought("abc", "de"))["usage"]

    assert usage["input_tokens_details"] == {"cached_tokens": CACHED, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 3}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    data = streamed(responses, body(), thought("abc", "de"))
    assert data[-1]["response"]["usage"] == usage
    assert data[0]["response"]["usage"] is None


@pytest.mark.parametrize(
    ("limit", "statuses"),
    [
        pytest.param(2, ["incomplete"], id="in reasoning (bug 17 of the chat format)"),
        pytest.param(25, ["completed", "incomplete"], id="in the text"),
    ],
)
def test_a_limit_leaves_the_response_incomplete(responses: Dialect, limit: int, statuses: list[str]) -> None:
    asked, said = body(max_output_tokens=limit), thought("abc", "defghijklmnopqrstuvwxyz")
    data = streamed(responses, asked, said)
    answer = data[-1]["response"]

    assert data[-1]["type"] == "response.incomplete"
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in answer["output"]] == statuses
    assert without_ids(answer) == without_ids(whole(responses, asked, said))


def test_a_call_that_a_limit_cuts_is_incomplete(responses: Dialect) -> None:
    asked = body(tools=[function()], reasoning={"effort": "none"})
    said = "<|close|>response<|sep|><|open|>tools<|sep|>" + call("get_weather", "city", "Berlin and Paris")
    cut = next(
        n for n in range(200) if '"Ber' in _last_arguments(responses, {**asked, "max_output_tokens": n + 1}, said)
    )

    data = streamed(responses, {**asked, "max_output_tokens": cut + 1}, said)

    item = data[-1]["response"]["output"][-1]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"city":"Ber')
    assert data[-1]["type"] == "response.incomplete"


def _last_arguments(responses: Dialect, asked: dict[str, Any], said: str) -> str:
    output = whole(responses, asked, said)["output"]
    return str(output[-1].get("arguments", "")) if output else ""


def test_an_empty_answer_is_one_without_items(responses: Dialect) -> None:
    data = streamed(responses, body(), thought("", ""))

    assert kinds(data) == ["created", "in_progress", "completed"]
    assert data[-1]["response"]["output"] == []


def test_without_thinking_there_is_no_reasoning(responses: Dialect) -> None:
    answer = whole(responses, body(reasoning={"effort": "none"}), response("Hi"))

    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["reasoning"]["effort"] == "none"


def test_bug_10_the_answer_comes_once_and_without_markers(responses: Dialect) -> None:
    data = streamed(responses, body(tools=[function()]), SAID)

    written = json.dumps(data, ensure_ascii=False)
    assert "<|" not in written
    assert "".join(one["delta"] for one in data if one["type"] == "response.output_text.delta") == "Look:"
    assert len([one for one in data if one["type"] == "response.output_text.done"]) == 1


def test_bug_11_arguments_come_as_they_are_written(responses: Dialect) -> None:
    said = calling(call("get_weather", "city", "a long name of a city"))
    data = streamed(responses, body(tools=[function()]), said)

    assert len([one for one in data if one["type"] == "response.function_call_arguments.delta"]) > 10


def test_log_probabilities_stand_beside_the_text(responses: Dialect) -> None:
    asked = body(include=["message.output_text.logprobs"], top_logprobs=2)
    data = streamed(responses, asked, thought("abc", "dé"))

    (item,) = data[-1]["response"]["output"][1]["content"]
    assert [entry["token"] for entry in item["logprobs"]] == ["d", "bytes:\\xc3", "bytes:\\xa9"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in item["logprobs"])
    deltas = [one for one in data if one["type"] == "response.output_text.delta"]
    assert [entry for one in deltas for entry in one["logprobs"]] == item["logprobs"]
    assert without_ids(whole(responses, asked, thought("abc", "dé"))) == without_ids(data[-1]["response"])


def test_a_failure_is_the_last_event(responses: Dialect, model: ServedModel) -> None:
    events = responses.endpoint.events(responses.endpoint.read(body(stream=True), model), model)
    usage = Usage(10, 1)
    sent = [*events.begin(usage), *events.push(Piece((), (ReasoningDelta("Hm"),)), usage)]

    data = data_of([*sent, *events.fail(Fault("the server is stopping", status=503, kind="server_unavailable"))])

    assert data[-1]["type"] == "response.failed"
    failed = data[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "server_error", "message": "the server is stopping"}
    assert failed["id"] == data[0]["response"]["id"]


@pytest.mark.parametrize(
    ("status", "code"), [(429, "rate_limit_exceeded"), (504, "server_error"), (400, "invalid_prompt")]
)
def test_a_failure_has_a_code_that_clients_know(responses: Dialect, model: ServedModel, status: int, code: str) -> None:
    events = responses.endpoint.events(responses.endpoint.read(body(), model), model)
    (failed,) = data_of(list(events.fail(Fault("no", status=status))))

    assert failed["response"]["error"]["code"] == code


def test_nothing_comes_after_the_last_event(responses: Dialect) -> None:
    """This API has no [DONE]."""
    assert responses.events(body(), thought("", "Hi"))[-1].name == "response.completed"
