"""Tools, tool choice and response format of Chat Completions: the feature cases of the vendor verifier."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.protocol.messages import ResponseFormat
from openk3.server.endpoint import ServedModel
from openk3.server.prompt import num_prompt_tokens
from tests.server.openai.conftest import HI, Reader, refusal, tool

SCHEMA = {"type": "object", "properties": {"capital": {"type": "boolean"}}, "required": ["capital"]}


def system(*tools: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "tools": list(tools), **fields}


NESTED = tool(
    parameters={
        "type": "object",
        "properties": {"where": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
        "required": ["where"],
    }
)
DYNAMIC: dict[str, dict[str, Any]] = {
    "first": {"messages": [system(tool()), HI]},
    "later": {"messages": [HI, {"role": "assistant", "content": "Yes?"}, system(tool()), HI]},
    "last": {"messages": [HI, system(tool())]},
    "three in one": {"messages": [system(tool("a"), tool("b"), tool("c")), HI]},
    "nested": {"messages": [system(NESTED), HI]},
    "two messages": {"messages": [system(tool("a")), HI, system(tool("b"))]},
    "not strict": {"messages": [system(tool(strict=False)), HI]},
    "beside global ones": {"messages": [system(tool("a")), HI], "tools": [tool("b")]},
    "required": {"messages": [system(tool()), HI], "tool_choice": "required"},
    "empty content": {"messages": [system(tool(), content=""), HI]},
    "no content": {"messages": [system(tool(), content=None), HI]},
    "developer": {"messages": [{**system(tool()), "role": "developer"}, HI]},
}


@pytest.mark.parametrize("fields", DYNAMIC.values(), ids=DYNAMIC.keys())
def test_dynamic_tools_are_accepted_as_written(read: Reader, model: ServedModel, fields: dict[str, Any]) -> None:
    asked = read(**fields)
    written = [one for message in fields["messages"] for one in message.get("tools", ())]
    assert [one for message in asked.messages for one in message.tools] == written
    assert list(asked.options["tools"]) == fields.get("tools", [])
    assert num_prompt_tokens(asked, model) > 0


BOGUS: dict[str, Any] = {
    "missing type": {"function": {"name": "a"}},
    "missing function": {"type": "function"},
    "missing name": {"type": "function", "function": {"description": "x"}},
    "leading digit": tool("1bad_name"),
    "bad character": tool("bad@name"),
    "line end": tool("bad\n"),
    "beyond ASCII": tool("été"),
    "empty name": tool(""),
    "long name": tool("a" * 257),
    "name of a wrong type": {"type": "function", "function": {"name": 5}},
    "unknown type": {"type": "plugin", "function": {"name": "a"}},
    "built in": {"type": "builtin_function", "function": {"name": "$web_search"}},
    "not an object": "get_weather",
    "null": None,
    "function is text": {"type": "function", "function": "a"},
    "description is a list": tool(description=["x"]),
    "strict is text": tool(strict="yes"),
    "parameters are a list": tool(parameters=[]),
    "parameters are of a string": tool(parameters={"type": "string"}),
}


@pytest.mark.parametrize("bogus", BOGUS.values(), ids=BOGUS.keys())
def test_bogus_tools_are_refused_wherever_they_stand(read: Reader, bogus: Any) -> None:
    assert "tools" in (refusal(read, messages=[system(bogus), HI]).param or "")
    assert (refusal(read, tools=[tool("fine"), bogus]).param or "").startswith("tools[1]")
    assert (refusal(read, messages=[HI, system(tool("fine"), bogus)]).param or "").startswith("messages[1].tools[1]")


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{**HI, "tools": [tool()]}]},
        {"messages": [HI, {"role": "assistant", "content": "x", "tools": [tool()]}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a", "tools": [tool()]}]},
        {"messages": [system(tool(), content="Be brief."), HI]},
        {"messages": [system(tool(), content=[{"type": "text", "text": "x"}]), HI]},
        {"messages": [{"role": "system", "tools": tool()}, HI]},
        {"messages": [{"role": "system", "tools": "x"}, HI]},
        {"messages": [{"role": "system", "tools": []}, HI]},
        {"messages": [system(tool(), tool()), HI]},
        {"messages": [system(tool()), system(tool()), HI]},
        {"messages": [system(tool()), HI], "tools": [tool()]},
        {"tools": [tool(), tool()]},
        {"tools": tool()},
    ],
)
def test_tools_in_wrong_places_or_twice_are_refused(read: Reader, fields: dict[str, Any]) -> None:
    refusal(read, **fields)


def test_names_and_parameters_of_tools(read: Reader) -> None:
    fine = [tool("a" * 256), tool("_x-1"), {"type": "function", "function": {"name": "bare"}}]
    assert list(read(tools=fine).options["tools"]) == fine
    assert read(tools=None).options["tools"] == read(tools=[]).options["tools"] == ()


def test_a_schema_outside_the_dialect_is_refused_with_its_path(read: Reader) -> None:
    bad = tool("bad", parameters={"type": "object", "properties": {"a": {"$ref": "other.json"}}})
    fault = refusal(read, tools=[tool("fine"), bad])
    assert fault.text.startswith("tools.function.parameters is not a valid moonshot flavored json schema, details: <At")
    assert fault.param == "tools[1].function.parameters"
    assert "at tools[1].function.parameters" in fault.text


# Tool choice.


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ("auto", None)),
        ({"tool_choice": "auto"}, ("auto", None)),
        ({"tool_choice": None}, ("auto", None)),
        ({"tool_choice": "auto", "tools": []}, ("auto", None)),
        ({"tool_choice": "none"}, ("none", None)),
        ({"tool_choice": "none", "tools": [tool()]}, ("none", None)),
        ({"tool_choice": "required", "tools": [tool()]}, ("required", None)),
        (
            {"tool_choice": {"type": "function", "function": {"name": "b"}}, "tools": [tool("a"), tool("b")]},
            ("required", "b"),
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "b"}}, "messages": [system(tool("b")), HI]},
            ("required", "b"),
        ),
    ],
)
def test_tool_choice(read: Reader, fields: dict[str, Any], choice: tuple[str, str | None]) -> None:
    options = read(**fields).options
    assert (options["tool_choice"], options["only_tool"]) == choice


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "tools": []},
        {"tool_choice": "any", "tools": [tool()]},
        {"tool_choice": "", "tools": [tool()]},
        {"tool_choice": 1, "tools": [tool()]},
        {"tool_choice": ["auto"], "tools": [tool()]},
        {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [tool()]},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"tool_choice": {"type": "function"}, "tools": [tool()]},
        {"tool_choice": {"type": "auto"}, "tools": [tool()]},
        {"tool_choice": {"function": {"name": "get_weather"}}, "tools": [tool()]},
    ],
)
def test_other_tool_choices_are_refused(read: Reader, fields: dict[str, Any]) -> None:
    assert (refusal(read, **fields).param or "").startswith("tool_choice")


# Response format.


@pytest.mark.parametrize(
    ("wanted", "read_as"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, ResponseFormat(type="json_object")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            ResponseFormat(type="json_schema", schema=SCHEMA),
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True, "description": "d"}},
            ResponseFormat(type="json_schema", schema=SCHEMA),
        ),
    ],
)
def test_response_format(read: Reader, wanted: Any, read_as: ResponseFormat | None) -> None:
    assert read(response_format=wanted).options["response_format"] == read_as


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "bogus"},
        {"type": 1},
        {},
        "json_object",
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": [SCHEMA]},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": 1, "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": "object"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": True}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": "yes"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": []}}},
    ],
)
def test_other_response_formats_are_refused(read: Reader, wanted: Any) -> None:
    assert (refusal(read, response_format=wanted).param or "").startswith("response_format")
