"""Bodies of the Responses API: parameters, tools, formats, and what a server without a memory refuses."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.server.endpoint import Asked, ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.responses import Responses
from tests.server.openai.responses_harness import body, custom, function

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "d", "tools": [function("find"), custom("edit")]}


def read(model: ServedModel, **fields: Any) -> Asked:
    return Responses().read(body(**fields), model)


def fault(model: ServedModel, **fields: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        read(model, **fields)
    return caught.value


def test_defaults_are_the_models(model: ServedModel) -> None:
    asked = read(model)
    params = asked.options["params"]

    assert params is not None
    assert (params.temperature, params.top_p, params.max_tokens) == (1.0, 0.95, 131_072)
    assert (asked.options["thinking"], asked.options["effort"]) == (True, "max")
    assert (asked.stream, asked.explicit_max_tokens) == (False, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "stream": True, "include": ["reasoning.encrypted_content"], "parallel_tool_calls": False},
        {"store": True, "background": False, "previous_response_id": None, "conversation": None},
        {"metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "truncation": "auto", "client_metadata": {}},
        {"prompt_cache_key": "k", "safety_identifier": "s", "text": {"verbosity": "low"}, "reasoning": None},
        {"tools": [], "tool_choice": "auto", "instructions": None, "max_output_tokens": None},
        {"stream_options": {"include_obfuscation": False}, "an invention": [1]},
        {"text": {"format": {"type": "text"}}, "reasoning": {"summary": "auto", "effort": None}},
    ],
)
def test_what_clients_send_along_is_accepted(model: ServedModel, fields: dict[str, Any]) -> None:
    assert read(model, **fields).messages


def test_an_agents_request(model: ServedModel) -> None:
    """What Codex sends, with what a user of it sets for K3."""
    asked = read(
        model,
        given=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Permissions."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        ],
        instructions="You are a coding agent.",
        tools=[function("shell", strict=False), custom(format={"type": "text"})],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "high", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="0199",
    )

    assert [message.role for message in asked.messages] == ["system", "system", "user"]
    assert asked.options["effort"] == "high"
    assert asked.stream


@pytest.mark.parametrize(("name", "status"), [("gpt-5", 404), (None, 400), (3, 400)])
def test_the_model_must_be_this_one(model: ServedModel, name: Any, status: int) -> None:
    with pytest.raises(Fault) as caught:
        Responses().read({**body(), "model": name}, model)
    assert caught.value.status == status


def test_a_schema_outside_of_the_dialect_is_named_by_path_and_rule(model: ServedModel) -> None:
    bad = {"type": "object", "properties": {"a": {"$ref": "other.json"}}}

    error = fault(model, tools=[function(parameters=bad)])

    assert "not a valid moonshot flavored json schema" in error.text
    assert "tools[0].parameters" in error.text


def test_bug_15_a_tool_that_is_not_strict_may_have_it(model: ServedModel) -> None:
    loose = {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}}}

    assert read(model, tools=[function(parameters=loose, strict=False)]).options["tools"]


@pytest.mark.parametrize("effort", ["low", "high", "max"])
def test_bugs_6_and_21_the_level_of_effort_is_kept(model: ServedModel, effort: str) -> None:
    asked = read(model, reasoning={"effort": effort})

    assert (asked.options["effort"], asked.body.repeated["reasoning"]["effort"]) == (effort, effort)


@pytest.mark.parametrize(("summary", "repeated"), [("auto", "auto"), (None, None), ("", None), (1, None), ([], None)])
def test_a_summary_is_never_made(model: ServedModel, summary: Any, repeated: str | None) -> None:
    """All of the reasoning is given, so what kind of summary is wanted changes nothing."""
    assert read(model, reasoning={"summary": summary}).body.repeated["reasoning"]["summary"] == repeated


def test_thinking_can_be_switched_off(model: ServedModel) -> None:
    for switch in ({"reasoning": {"effort": "none"}}, {"thinking": {"type": "disabled"}}):
        asked = read(model, **switch)
        assert (asked.options["thinking"], asked.body.channel) == (False, "response")
        assert asked.options["params"] is not None
        assert asked.options["params"].temperature == 0.6


def test_the_clients_limit_is_kept(model: ServedModel) -> None:
    asked = read(model, max_output_tokens=2**20)

    assert asked.explicit_max_tokens == 2**20


def test_functions_are_declared_in_the_form_of_the_chat_format(model: ServedModel) -> None:
    described = function(description="Asks.", strict=True, defer_loading=False)
    (declared,) = read(model, tools=[described]).options["tools"]

    assert declared == {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Asks.",
            "parameters": described["parameters"],
            "strict": True,
        },
    }


def test_null_is_as_good_as_nothing_in_a_tool(model: ServedModel) -> None:
    given = {"type": "function", "name": "now", "description": None, "parameters": None, "strict": None}
    (declared,) = read(model, tools=[given]).options["tools"]

    assert declared["function"] == {"name": "now"}


def test_a_custom_tool_is_a_function_of_one_text(model: ServedModel) -> None:
    (declared,) = read(model, tools=[custom()]).options["tools"]

    assert declared["function"] == {
        "name": "apply_patch",
        "description": "Edits files.",
        "parameters": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
            "additionalProperties": False,
        },
        "strict": True,
    }


def test_tools_of_a_namespace_have_its_name_before_theirs(model: ServedModel) -> None:
    asked = read(model, tools=[function("find"), NAMESPACE])

    names = [tool["function"]["name"] for tool in asked.options["tools"]]
    assert names == ["find", "crm__find", "crm__edit"]
    assert asked.body.repeated["tools"] == [function("find"), NAMESPACE]


@pytest.mark.parametrize(
    ("choice", "wanted", "only"),
    [
        (None, "auto", None),
        ("auto", "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "name": "find"}, "required", "find"),
        ({"type": "custom", "name": "edit", "namespace": "crm"}, "required", "crm__edit"),
    ],
)
def test_tool_choice(model: ServedModel, choice: Any, wanted: str, only: str | None) -> None:
    asked = read(model, tools=[function("find"), NAMESPACE], tool_choice=choice)

    assert (asked.options["tool_choice"], asked.options["only_tool"]) == (wanted, only)
    assert asked.body.repeated["tool_choice"] == (choice if only else wanted)


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_formats(model: ServedModel, kind: str) -> None:
    schema = {"schema": SCHEMA} if kind == "json_schema" else {}
    wanted = read(model, text={"format": {"type": kind, **schema}}).options["response_format"]

    assert wanted is not None
    assert (wanted.type, wanted.schema) == (kind, schema.get("schema"))


@pytest.mark.parametrize("value", [float("nan"), 10**400, 1e308, "\ud800", [[]], {"a": {}}, True, -1])
@pytest.mark.parametrize(
    "name",
    ["input", "instructions", "tools", "tool_choice", "text", "reasoning", "include", "max_output_tokens", "stop",
     "seed", "temperature", "top_p", "top_logprobs", "stream", "store", "background", "conversation", "prompt"],
)  # fmt: skip
def test_any_value_is_read_or_refused(model: ServedModel, name: str, value: Any) -> None:
    try:
        asked = read(model, **{"given" if name == "input" else name: value})
    except Fault as refused:
        assert refused.status == 400
        refused.text.encode()
    else:
        assert asked.messages
