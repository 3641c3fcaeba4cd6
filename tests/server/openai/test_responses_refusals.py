"""What a body of the Responses API must not hold: each refusal says where, what, and what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.responses import Responses
from tests.server.openai.responses_harness import body, custom, function, grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMESPACE = {"type": "namespace", "name": "crm", "description": "d", "tools": [function("find"), custom("edit")]}


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored here"),
        ({"conversation": "conv_1"}, "conversation", "nothing is stored here"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "nothing is stored here"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "nothing is stored here"),
        ({"background": True}, "background", "expected false"),
        ({"background": "no"}, "background", "true or false"),
        ({"store": "yes"}, "store", "true or false"),
        ({"stream": 1}, "stream", "true or false"),
        ({"instructions": ["x"]}, "instructions", "a string"),
        ({"reasoning": "high"}, "reasoning", "an object"),
        ({"reasoning": {"effort": "medium"}}, "reasoning.effort", "low, high or max"),
        ({"reasoning": {"effort": "minimal"}}, "reasoning.effort", "low, high or max"),
        ({"reasoning": {"effort": {"level": "max"}}}, "reasoning.effort", "a string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1 to"),
        ({"max_output_tokens": 2**20 + 1}, "max_output_tokens", "1 to 1048576"),
        ({"max_output_tokens": "5"}, "max_output_tokens", "a whole number"),
        ({"temperature": 1.1}, "temperature", "from 0 to 1"),
        ({"temperature": -0.1}, "temperature", "from 0 to 1"),
        ({"top_p": 0.8}, "top_p", "0.95"),
        ({"presence_penalty": 0.5}, "presence_penalty", "0"),
        ({"top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ({"include": "all"}, "include", "a list of strings"),
        ({"include": [1]}, "include[0]", "a string"),
        ({"prompt_cache_key": 1}, "prompt_cache_key", "a string"),
        ({"text": "json"}, "text", "an object"),
        ({"text": {"format": "json"}}, "text.format", "an object"),
        ({"text": {"format": {}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "a JSON schema"),
        ({"text": {"format": {"type": "json_schema", "schema": []}}}, "text.format.schema", "an object"),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA, "strict": 1}}}, "text.format.strict", "true"),
        ({"text": {"format": {"type": "json_schema", "schema": SCHEMA, "name": 1}}}, "text.format.name", "a string"),
        ({"tools": {}}, "tools", "a list of tools"),
        ({"tools": ["x"]}, "tools[0]", "an object"),
        ({"tools": [{}]}, "tools[0].type", "function, custom or namespace"),
        ({"tools": [{"type": "x"}]}, "tools[0].type", "function, custom or namespace"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "no web_search of its own"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type", "no local_shell of its own"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "the name of the tool"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name", "the name of the tool"),
        ({"tools": [function("1x")]}, "tools[0].name", "the first one a letter"),
        ({"tools": [function("a@b")]}, "tools[0].name", "letters, digits"),
        ({"tools": [function("a" * 129)]}, "tools[0].name", "at most 128"),
        ({"tools": [function(strict=1)]}, "tools[0].strict", "true or false"),
        ({"tools": [function(description=1)]}, "tools[0].description", "a string"),
        ({"tools": [function(), function()]}, "tools[1].name", "tools[0] declares already"),
        ({"tools": [function("crm__find"), NAMESPACE]}, "tools[1].tools[0].name", "declares already"),
        ({"tools": [{**NAMESPACE, "name": "x" * 125}]}, "tools[0].tools[0].name", "at most 128 characters with"),
        ({"tools": [{**NAMESPACE, "tools": None}]}, "tools[0].tools", "a list of tools"),
        ({"tools": [{**NAMESPACE, "tools": [NAMESPACE]}]}, "tools[0].tools[0].type", "function or custom"),
        ({"tools": [custom(format={"type": "xml"})]}, "tools[0].format.type", "text or grammar"),
        ({"tools": [custom(format={"type": "grammar"})]}, "tools[0].format.syntax", "lark or regex"),
        ({"tools": [custom(format=grammar("bnf", "x"))]}, "tools[0].format.syntax", "lark or regex"),
        ({"tools": [custom(format=grammar("regex", "(x"))]}, "tools[0].format.definition", "can be enforced"),
        ({"tools": [custom(format=grammar("regex", "\ud800"))]}, "tools[0].format.definition", "whole characters"),
        ({"tools": [custom(format=grammar("regex", ""))]}, "tools[0].format.definition", "1 to"),
        ({"tool_choice": "required"}, "tool_choice", "where no tool is declared"),
        ({"tool_choice": "maybe"}, "tool_choice", "auto, none or required"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [function()]}, "tool_choice.name", "get_weather"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.type", "or custom"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "the name of a tool"),
    ],
)  # fmt: skip
def test_what_is_refused(model: ServedModel, fields: dict[str, Any], path: str, expected: str) -> None:
    with pytest.raises(Fault) as caught:
        Responses().read(body(**fields), model)
    error = caught.value

    assert (error.status, error.param) == (400, path)
    assert path in error.text
    assert expected in error.text
