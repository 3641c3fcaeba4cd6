"""Every schema of the dialect is enforced: random walks through its grammar meet it, and what meets it is allowed.

Unusual: jsonschema is the judge, which shares nothing with llguidance. It is not told of ``$id``, which may be an
address that it would ask for.
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from openk3.chat.grammar import answer_grammar, token_bytes
from openk3.chat.mfjs import check_parameters
from openk3.chat.parse import StreamParser, collect
from openk3.chat.render import render_dialogue
from openk3.engine.grammar import GrammarCompiler
from openk3.errors import ChatError
from openk3.protocol.messages import AssistantTurn, Message, ResponseFormat, ToolCall
from openk3.protocol.request import Grammar
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from tests.chat.mfjs_schemas import as_parameters, documents

TOKENIZER = Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))
SPECIAL = TOKENIZER.special
COMPILER = GrammarCompiler(token_bytes(TOKENIZER), [SPECIAL.end_of_msg], TOKENIZER.vocab_size)
MOST_TOKENS = 4000
CLOSING = [SPECIAL.close, SPECIAL.end_of_msg, *b'"}]']
GOING_ON = [*b",0"]

walks = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 10**6)


def called(parameters: Any) -> Grammar:
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    grammar = answer_grammar(channel="response", special=SPECIAL, tools=[tool], tool_choice="required")
    assert grammar is not None
    return grammar


def answered(schema: Any) -> Grammar:
    wanted = ResponseFormat(type="json_schema", schema=schema)
    grammar = answer_grammar(channel="response", special=SPECIAL, response_format=wanted)
    assert grammar is not None
    return grammar


def walk(grammar: Grammar, seed: int) -> AssistantTurn:
    """Choose allowed tokens at random up to the end, the further the more such as close something; read the answer."""
    rng = random.Random(seed)
    matcher = COMPILER.compile(grammar)
    ids: list[int] = []
    while not ids or ids[-1] != SPECIAL.end_of_msg:
        assert len(ids) < MOST_TOKENS, TOKENIZER.decode(ids[:300])
        allowed = matcher.allowed()
        biased = (
            CLOSING if len(ids) > MOST_TOKENS // 10 and any(allowed[token] for token in CLOSING) else CLOSING + GOING_ON
        )
        possible = [token for token in biased if allowed[token]]
        if not possible or rng.random() > 0.1 + len(ids) / 200:
            possible = allowed.nonzero().flatten().tolist()
        ids.append(rng.choice(possible))
        matcher.accept(ids[-1])
    parser = StreamParser(TOKENIZER, channel="response", tools_declared=True)
    return collect([*parser.push(ids), *parser.finish("stop")], "stop")


def faults(value: Any, schema: Any) -> list[str]:
    known = {key: part for key, part in schema.items() if key != "$id"}
    return [error.message for error in Draft202012Validator(known).iter_errors(value)]


def is_allowed(grammar: Grammar, arguments: dict[str, Any]) -> bool:
    """Say whether a call, as a conversation would show it, is what the grammar lets a model write."""
    call = Message(role="assistant", content="", tool_calls=(ToolCall("a", "f", arguments),))
    dialogue = [Message(role="user", content="x"), call]
    rendered = render_dialogue(dialogue, tokenizer=TOKENIZER, thinking=False, effort=None)
    ids = [token for token, trained in zip(rendered.ids, rendered.trained, strict=True) if trained]
    return COMPILER.compile(grammar).count_allowed(ids) == len(ids)


def is_finite(value: Any) -> bool:
    """Say whether rendering leaves a value as it is: a number beyond float64 is read as infinity."""
    if isinstance(value, dict | list):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


@walks
@given(documents(), seeds)
def test_arguments_meet_every_schema(schema: dict[str, Any], seed: int) -> None:
    parameters = as_parameters(schema)
    turn = walk(called(parameters), seed)
    assert turn.tool_calls and turn.finish_reason == "tool_calls"
    for call in turn.tool_calls:
        assert faults(json.loads(str(call.arguments)), parameters) == [], call.arguments


@walks
@given(documents(), seeds)
def test_responses_meet_every_schema_on_one_line_and_are_allowed_as_arguments(
    schema: dict[str, Any], seed: int
) -> None:
    content = walk(answered(schema), seed).content or ""
    value = json.loads(content)
    assert faults(value, schema) == [], content
    assert not {"\n", "\r", "\t"} & set(content)
    assert not is_finite(value) or is_allowed(called(as_parameters(schema)), {"value": value}), content


@walks
@given(
    documents().filter(lambda schema: {"$ref", "anyOf", "properties", "additionalProperties"} & schema.keys()), seeds
)
def test_parameters_themselves_may_be_any_schema_of_an_object(schema: dict[str, Any], seed: int) -> None:
    try:
        check_parameters(schema, strict=True, where="it")
    except ChatError as error:
        assert 'it.type is required and must be "object"' in str(error)
        return
    grammar = called(schema)
    for call in walk(grammar, seed).tool_calls:
        arguments = json.loads(str(call.arguments))
        assert faults(arguments, schema) == [], call.arguments
        assert not is_finite(arguments) or is_allowed(grammar, arguments), call.arguments


NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "value": {"type": "number"}},
    "required": ["value", "next"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "list that ends": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "itself": {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "name": {"type": "string"}},
        "required": ["name"],
    },
    "children": {
        "type": "object",
        "properties": {"all": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["all"],
    },
    "path into a definition": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x/properties/id"}, "b": {"$ref": "#/$defs/x/properties/list/items"}},
        "required": ["a", "b"],
        "$defs": {
            "x": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer", "minimum": 3, "maximum": 5},
                    "list": {"type": "array", "items": {"type": "string", "enum": ["x", "y z"]}},
                },
            }
        },
    },
    "chain of names": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b", "title": "A"}, "b": {"$ref": "#/$defs/c"}, "c": {"type": "boolean"}},
    },
    "each refers to the other": {
        "$ref": "#/$defs/a b",
        "$defs": {
            "a b": {"type": "object", "properties": {"y": {"$ref": "#/$defs/ü%"}}, "additionalProperties": False},
            "ü%": {"type": "object", "properties": {"z": {"$ref": "#/$defs/a b"}}, "additionalProperties": False},
        },
    },
    "many values": {"type": "string", "enum": [f"icons/brand-{number}" for number in range(900)]},
    "many alternatives": {"anyOf": [{"type": "string", "enum": [f"v{number}"]} for number in range(200)]},
    "longest text": {"type": "string", "maxLength": 5_000_000},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
    "names of keywords": {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in ["$ref", "required", "anyOf", "$defs", "type", "const"]},
        "required": ["$ref", "required", "anyOf", "$defs", "type", "const"],
        "additionalProperties": False,
    },
    "all types": {"type": ["string", "null", "integer", "boolean", "array", "object", "number"]},
    "decimals": {"type": "number", "minimum": -10.5111111, "maximum": 20.333333333},
    "exactly three": {
        "type": "array",
        "items": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        "minItems": 3,
        "maxItems": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_kinds(kind: str, seed: int) -> None:
    schema = KINDS[kind]
    parameters = as_parameters(schema)
    check_parameters(parameters, strict=True, where="it")
    for call in walk(called(parameters), seed).tool_calls:
        arguments = json.loads(str(call.arguments))
        assert faults(arguments, parameters) == [], call.arguments
    value = json.loads(walk(answered(schema), seed).content or "")
    assert faults(value, schema) == []
    assert not is_finite(value) or is_allowed(called(parameters), {"value": value})


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("list that ends", {"value": 1}),
        ("itself", {"name": "a", "child": {"name": 5}}),
        ("children", {"all": [{}]}),
        ("path into a definition", {"a": 6, "b": "x"}),
        ("path into a definition", {"a": 3, "b": "z"}),
        ("chain of names", 1),
        ("each refers to the other", {"y": {"z": {"y": {"other": 1}}}}),
        ("many values", "icons/brand-900"),
        ("many alternatives", "v"),
        ("pattern and length", "abcde"),
        ("names of keywords", {"$ref": 1, "required": 1, "anyOf": 1, "$defs": 1, "type": 1}),
        ("decimals", -10.6),
        ("exactly three", [None, True]),
    ],
)
def test_what_does_not_meet_the_schema_cannot_be_written(kind: str, bad: Any) -> None:
    assert not is_allowed(called(as_parameters(KINDS[kind])), {"value": bad})


def test_an_alternative_that_is_the_whole_again_adds_nothing() -> None:
    schema = {"anyOf": [{"$ref": "#"}, {"type": "integer", "minimum": 4, "maximum": 6}]}
    assert walk(answered(schema), 0).content in {"4", "5", "6"}
    grammar = called(as_parameters(schema))
    assert [value for value in range(9) if is_allowed(grammar, {"value": value})] == [4, 5, 6]


def test_a_reference_to_the_parameters_means_all_of_them() -> None:
    grammar = called(KINDS["itself"])
    assert is_allowed(grammar, {"child": {"child": {"name": "c"}, "name": "b"}, "name": "a"})
    assert not is_allowed(grammar, {"child": {"child": {"name": 5}, "name": "b"}, "name": "a"})


@pytest.mark.parametrize(
    "identifier", ["", "my-schema", "#user", "http://example.com/s.json", "https://x/s#/$defs/name"]
)
def test_any_identifier_will_do(identifier: str) -> None:
    schema = {"$id": identifier, "$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "enum": ["x"]}}}
    assert walk(answered(schema), 0).content == '"x"'
    assert is_allowed(called(as_parameters(schema)), {"value": "x"})
    assert not is_allowed(called(as_parameters(schema)), {"value": "y"})
