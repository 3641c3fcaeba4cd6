"""Input of the Responses API: which messages items become, which are refused, and that ours come back unharmed."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.chat.render import render
from openk3.protocol.messages import Message, TextPart, ToolCall
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.responses import Responses
from tests.server.openai.conftest import Dialect, thought
from tests.server.openai.responses_harness import body, call, calling, custom, function

USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city":"Rome"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


@pytest.fixture(scope="module")
def responses(model: ServedModel) -> Dialect:
    return Dialect(model, Responses())


def messages(model: ServedModel, given: Any, **fields: Any) -> list[Message]:
    return list(Responses().read(body(given, **fields), model).messages)


def fault(model: ServedModel, given: Any, **fields: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        messages(model, given, **fields)
    assert caught.value.status == 400
    return caught.value


def test_a_text_is_the_users(model: ServedModel) -> None:
    assert messages(model, "Hi") == [Message(role="user", content="Hi")]


def test_instructions_come_first(model: ServedModel) -> None:
    assert messages(model, "Hi", instructions="Be brief.")[0] == Message(role="system", content="Be brief.")


@pytest.mark.parametrize(
    ("role", "known"), [("user", "user"), ("developer", "system"), ("system", "system"), ("assistant", "assistant")]
)
@pytest.mark.parametrize("kind", [{}, {"type": "message"}], ids=["easy", "typed"])
def test_roles(model: ServedModel, role: str, known: str, kind: dict[str, str]) -> None:
    (message,) = messages(model, [{**kind, "role": role, "content": "Hi"}])

    assert (message.role, message.content) == (known, "Hi")


def test_parts_of_a_message(model: ServedModel) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]

    assert messages(model, [{"role": "user", "content": parts}])[0].content == (TextPart("a"), TextPart("b"))


def test_a_turn_of_several_items_is_one_message(model: ServedModel) -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
        CALL,
        {**CALL, "call_id": "c2"},
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        OUTPUT,
    ]

    _, turn, second, first = messages(model, items)

    assert turn == Message(
        role="assistant",
        content="Look.",
        reasoning="Hm.",
        tool_calls=(
            ToolCall("c1", "get_weather", '{"city":"Rome"}'),
            ToolCall("c2", "get_weather", '{"city":"Rome"}'),
        ),
    )
    assert first == Message(role="tool", content="sunny", tool_call_id="c1", tool="get_weather")
    assert second == Message(role="tool", content=(TextPart("rain"),), tool_call_id="c2", tool="get_weather")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        pytest.param({"summary": [{"type": "summary_text", "text": "short"}]}, "short", id="summary"),
        pytest.param(
            {
                "summary": [{"type": "summary_text", "text": "short"}],
                "content": [{"type": "reasoning_text", "text": "all of it"}],
            },
            "all of it",
            id="content wins over summary",
        ),
        pytest.param({"summary": [], "content": None, "encrypted_content": "x"}, None, id="somebody else's secret"),
        pytest.param(
            {"summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]},
            "a\n\nb",
            id="several parts",
        ),
    ],
)
def test_reasoning_belongs_to_the_turn_after_it(model: ServedModel, item: dict[str, Any], text: str | None) -> None:
    reply = {"role": "assistant", "content": "Yes."}
    turn = messages(model, [USER, {"type": "reasoning", **item}, reply])[1]

    assert turn == Message(role="assistant", content="Yes.", reasoning=text)


def test_reasoning_alone_is_a_turn(model: ServedModel) -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}

    assert messages(model, [USER, thinking, USER])[1] == Message(role="assistant", reasoning="Hm.")


def test_reasoning_begins_a_turn(model: ServedModel) -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    reply = {"role": "assistant", "content": "Yes."}

    turns = messages(model, [thinking, reply, thinking, reply])

    assert [(turn.reasoning, turn.content) for turn in turns] == [("Hm.", "Yes.")] * 2


def test_two_texts_are_two_turns(model: ServedModel) -> None:
    turns = messages(model, [{"role": "assistant", "content": text} for text in ("a", "b")])

    assert [turn.content for turn in turns] == ["a", "b"]


def test_a_custom_call_is_one_with_a_text(model: ServedModel) -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** x"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    ]

    turn, result = messages(model, items)

    assert turn.tool_calls == (ToolCall("c1", "apply_patch", {"input": "*** x"}),)
    assert result.tool == "apply_patch"


def test_a_call_in_a_namespace_has_its_full_name(model: ServedModel) -> None:
    (turn,) = messages(model, [{**CALL, "namespace": "crm"}])

    assert turn.tool_calls[0].name == "crm__get_weather"


def test_tools_that_come_later_are_declared_there(model: ServedModel) -> None:
    later = {"type": "additional_tools", "role": "developer", "tools": [function("later")]}
    asked = Responses().read(body([USER, later], tools=[function()], tool_choice="required"), model)

    assert asked.messages[1].tools[0]["function"]["name"] == "later"
    assert [tool["function"]["name"] for tool in asked.options["tools"]] == ["get_weather"]
    assert set(asked.body.tools) == {"get_weather", "later"}


def test_later_tools_alone_can_be_required(model: ServedModel) -> None:
    later = {"type": "additional_tools", "role": "developer", "tools": [function("later")]}

    assert Responses().read(body([USER, later], tool_choice="required"), model).options["tool_choice"] == "required"


def test_a_search_of_the_web_is_passed_over(model: ServedModel) -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    }

    assert len(messages(model, [USER, search])) == 1


@pytest.mark.parametrize(
    ("given", "path", "expected"),
    [
        (None, "input", "expected a string or a list of items"),
        ([], "input", "at least one item"),
        (7, "input", "a string or a list of items"),
        (["Hi"], "input[0]", "an item, an object"),
        ([{}], "input[0].type", "expected message"),
        ([{"type": "computer_call"}], "input[0].type", "function_call"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type", "nothing is stored here"),
        ([{"role": "tool", "content": "x"}], "input[0].role", "developer"),
        ([{"role": "user"}], "input[0].content", "a list of parts"),
        ([{"role": "user", "content": {"text": "Hi"}}], "input[0].content", "a list of parts"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].type", "only, not an image"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0].type", "text only, not a file"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text", "a string"),
        ([{"role": "user", "content": [None]}], "input[0].content[0]", "a part"),
        ([{"type": "reasoning", "summary": "Hm."}], "input[0].summary", "a list of parts"),
        ([{"type": "reasoning", "summary": [{"type": "x"}]}], "input[0].summary[0].type", "summary_text"),
        ([{**CALL, "call_id": ""}], "input[0].call_id", "the id of a call"),
        ([{**CALL, "name": 3}], "input[0].name", "a string"),
        ([{**CALL, "name": ""}], "input[0].name", "the name of a tool"),
        ([{**CALL, "arguments": {"city": "Rome"}}], "input[0].arguments", "a string with the JSON of an object"),
        ([OUTPUT], "input[0].call_id", "the id of a call before it"),
        ([CALL, {**OUTPUT, "output": None}], "input[1].output", "a list of parts"),
        ([CALL, {**OUTPUT, "output": [{"type": "input_image"}]}], "input[1].output[0].type", "text only, not an image"),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "n"}], "input[0].input", "a string"),
        ([{"type": "additional_tools", "role": "user", "tools": []}], "input[0].role", "developer"),
        ([{"type": "additional_tools"}], "input[0].tools", "a list of tools"),
        ([{"type": "additional_tools", "tools": [{"type": "custom"}]}], "input[0].tools[0].name", "the name of the"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_path(model: ServedModel, given: Any, path: str, expected: str) -> None:
    error = fault(model, given)

    assert error.param == path
    assert error.text.startswith(path)
    assert expected in error.text


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(thought("Hm.", "Yes."), id="text"),
        pytest.param(thought("", ""), id="nothing"),
        pytest.param(thought("Hm.", ""), id="reasoning"),
        pytest.param(
            calling(
                call("get_weather", "city", "Rome"), call("apply_patch", "input", '"a"\n', 2), reasoning="r", text="t"
            ),
            id="calls",
        ),
        pytest.param(calling(call("mcp__docs__find", "city", "Rome")), id="namespace"),
        pytest.param(
            calling('<|open|>call tool="get_weather" index="1"<|sep|><|close|>call<|sep|>'), id="no arguments"
        ),
    ],
)
def test_bug_19_whatever_is_emitted_is_accepted_back(responses: Dialect, model: ServedModel, said: str) -> None:
    namespace = {"type": "namespace", "name": "mcp__docs__", "description": "", "tools": [function("find")]}
    tools = [function(strict=False), custom(), namespace]
    output = responses.whole(body(tools=tools), said)["output"]
    results = [
        {"type": item["type"] + "_output", "call_id": item["call_id"], "output": "ok"}
        for item in output
        if item["type"].endswith("_call")
    ]

    asked = Responses().read(body([USER, *output, *results, USER], tools=tools), model)

    past, tokenizer = list(asked.messages), model.tokenizer
    rendered = tokenizer.decode(render(past, tokenizer=tokenizer, tools=asked.options["tools"]).ids)
    if output:
        turn = said.removesuffix("<|close|>message<|sep|><|end_of_msg|>")
        assert turn in rendered  # the model reads again exactly what it wrote


@pytest.mark.parametrize("limit", [1, 3, 30, 60, 75, 90, 100, 110, 120])
def test_what_a_limit_cut_is_accepted_back(responses: Dialect, model: ServedModel, limit: int) -> None:
    said = calling(call("get_weather", "city", "Rome and Paris and London"), reasoning="r", text="t")
    output = responses.whole(body(tools=[function()], max_output_tokens=limit), said)["output"]

    past = list(Responses().read(body([USER, *output, USER], tools=[function()]), model).messages)

    assert render(past, tokenizer=model.tokenizer).ids


def test_bug_13_history_that_lost_its_reasoning_is_accepted(model: ServedModel) -> None:
    _, turn, _, _ = messages(model, [USER, CALL, OUTPUT, USER])

    assert turn.reasoning is None
    assert len(turn.tool_calls) == 1


def test_bug_14_an_empty_text_beside_a_call_is_accepted(model: ServedModel) -> None:
    turn = messages(model, [USER, {"role": "assistant", "content": ""}, CALL, OUTPUT])[1]

    assert (turn.content, len(turn.tool_calls)) == ("", 1)
