"""The Moonshot-flavoured JSON schema: what each level refuses, in the words that users of Moonshot's service met."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openk3.chat.mfjs import Level, check, check_parameters, check_response_schema
from openk3.errors import ChatError
from tests.chat.mfjs_schemas import as_parameters, documents

WHERE = "tools.function.parameters"
STRING = {"type": "string"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def defined(**properties: Any) -> dict[str, Any]:
    return {**of(**properties), "$defs": {"s": STRING, "either": {"anyOf": [STRING, {"type": "null"}]}}}


def refusal(schema: Any, level: Level = "strict") -> str | None:
    """Give the path and the reason of a refusal; None if there is none."""
    try:
        check(schema, level, WHERE)
    except ChatError as error:
        opening = f"{WHERE} is not a valid moonshot flavored json schema, details: <At path '"
        assert error.message.startswith(opening) and error.message.endswith(">")
        return error.message[len(opening) : -1].replace("': ", ": ", 1)
    return None


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        # farion1231/cc-switch#5006, MoonshotAI/kimi-cli#2030
        (of(a={"anyOf": [STRING, {"enum": ["x"]}]}), "properties.a.anyOf[1]: type is not defined"),
        (of(view={"enum": ["text"]}), "properties.view: type is not defined"),
        ({"properties": {"a": STRING}}, "root: type is not defined"),
        # MoonshotAI/kimi-code#2661
        (
            {"type": "object", "anyOf": [{"type": "object"}]},
            "root: when using anyOf, type should be defined in anyOf items instead of the parent schema",
        ),
        # farion1231/cc-switch#6614, #6942
        (
            {**defined(), "$defs": {"s": STRING, "__schema20": {"type": "string", "$ref": "#/$defs/s"}}},
            "$defs.__schema20: when using $ref, type should be defined in the referenced schema "
            "instead of the parent schema",
        ),
        # CommandCodeAI/command-code#594, farion1231/cc-switch#4618
        (of(a=STRING, b={"$ref": "#/properties/a"}), "properties.b.$ref: references must start with #/$defs/"),
        (of(b={"$ref": "#/definitions/x"}), "properties.b.$ref: references must start with #/$defs/"),
        (of(b={"$ref": "http://x/y.json"}), "properties.b.$ref: references must start with #/$defs/"),
        (of(b={"$ref": "#/$defs/"}), "properties.b.$ref: definition name cannot be empty"),
        (of(b={"$ref": "#/$defs/x"}), "properties.b.$ref: $defs not found for reference: #/$defs/x"),
        (defined(b={"$ref": "#/$defs/x"}), "properties.b.$ref: invalid $ref path: #/$defs/x"),
        (defined(b={"$ref": "#/$defs/either/anyOf"}), "properties.b.$ref: invalid $ref path: #/$defs/either/anyOf"),
        (of(b={"$ref": 5}), "properties.b.$ref: $ref must be a string"),
        (
            defined(b={"$ref": "#/$defs/s", "minLength": 1}),
            "properties.b: keyword 'minLength' is not allowed at the same level as $ref",
        ),
        (of(a={"anyOf": [STRING], "enum": []}), "properties.a.enum: enum array cannot be empty"),
        (
            of(a={"anyOf": [STRING], "minLength": 3}),
            "properties.a: keyword 'minLength' is not allowed at the same level as anyOf",
        ),
        # can1357/oh-my-pi#5952, diegosouzapw/OmniRoute#13586
        (of(outputSchema=True), "properties: property schema for 'outputSchema' must be an object"),
        (of(content="string"), "properties: property schema for 'content' must be an object"),
        (of(a={"type": "array", "items": [STRING]}), "properties.a.items: items must be an object"),
        ({**of(a=STRING), "required": ["b"]}, "required: required property 'b' is not defined in properties"),
        ({**of(), "required": "a"}, "required: required must be an array"),
        ({**of(), "required": [1]}, "required: items in required array must be strings"),
        (
            {**of(), "additionalProperties": 5},
            "additionalProperties: additionalProperties must be a boolean or an object",
        ),
        ({**of(), "properties": []}, "properties: properties must be an object"),
        ({**of(), "description": None}, "description: description must be a string"),
        ({**of(), "$id": 5}, "$id: $id must be a string"),
        (of(a={**STRING, "$id": "x"}), "properties.a: keyword $id must be at root level"),
        (of(a={**STRING, "pattern": 5}), "properties.a.pattern: pattern must be a string"),
        ({"type": "objekt"}, "root: invalid type"),
        ({"type": None}, "root: type must be string or array of strings"),
        ({"type": []}, "root: type array cannot be empty"),
        ({"type": ["string", ["number"]]}, "root: invalid type in type array"),
        (
            {"type": ["string", "integer"], "minimum": 3},
            "root: keyword minimum is not allowed in combination with multiple types",
        ),
        ({**of(), "$defs": []}, "$defs: $defs must be an object"),
        ({**of(), "$defs": {"a/b": {}}}, "$defs: $defs property name 'a/b' cannot contain '/' character"),
        ({**of(), "$defs": {"": {}}}, "$defs: $defs property name cannot be empty"),
        ({"anyOf": "x"}, "anyOf: anyOf must be an array"),
        ({"anyOf": []}, "anyOf: anyOf must have 1-500 items"),
        ({"anyOf": [{}] * 501}, "anyOf: anyOf must have 1-500 items"),
        ({"anyOf": [STRING, []]}, "anyOf: schema in anyOf must be an object"),
        ({**STRING, "enum": {}}, "enum: enum must be an array"),
        ({**STRING, "enum": [str(n) for n in range(1001)]}, "enum: enum array cannot have more than 1000 items"),
        ({**STRING, "enum": ["a", 1]}, "enum: enum value (1) does not match any type in [string]"),
        ({"type": "integer", "enum": [1, 2.5]}, "enum: enum value (2.5) does not match any type in [integer]"),
        ({"type": "number", "enum": [1, True]}, "enum: enum value (True) does not match any type in [number]"),
        ({"type": "object", "enum": [{}]}, "root: type object is not allowed in combination with enum"),
        ({**STRING, "minLength": 10, "maxLength": 5}, "minLength: minLength (10) cannot be greater than maxLength (5)"),
        ({**STRING, "minLength": -1}, "root: minLength must be non-negative"),
        ({**STRING, "maxLength": "5"}, "root: maxLength must be an integer"),
        ({"type": "array", "minItems": None}, "root: minItems must be an integer"),
        ({"type": "integer", "minimum": 1.5}, "root: minimum is not a valid integer"),
        ({"type": "number", "maximum": "5"}, "root: maximum must be a number"),
        ({"type": "number", "minimum": math.nan}, "root: invalid number: NaN or Infinity not allowed"),
        (
            {**of(node={"$ref": "#"}), "required": ["node"]},
            "root: detected infinite recursion without termination condition",
        ),
        ([], "root: schema must be an object, got []"),
        ({5: {}}, "root: keywords must be strings"),
    ],
)  # fmt: skip
def test_what_is_asked_to_be_enforced_must_be_in_the_dialect(schema: Any, refused: str) -> None:
    assert refusal(schema) == refused
    assert refusal(schema, "ultra") == refused


@pytest.mark.parametrize(
    ("schema", "refused"),
    [
        (of(a={**STRING, "format": "uuid", "const": 1}), "properties.a: unsupported keywords: const, format"),
        ({**of(), "$schema": "http://json-schema.org/draft-07/schema#"}, "root: unsupported keywords: $schema"),
        ({**of(), "minLength": 1}, "root: invalid keywords: minLength"),
        ({"type": "null", "items": {}}, "root: invalid keywords: items"),
        ({"type": ["string", "string"]}, "type: duplicate types in type array"),
        ({**of(a=STRING), "required": ["a", "a"]}, "required: duplicate items in required array: a"),
        (of(required=STRING), "properties: property name 'required' is reserved for JSON Schema keywords"),
        (
            defined(a={"$ref": "#/$defs/s", "default": "x"}),
            "properties.a: keyword 'default' is not allowed at the same level as $ref",
        ),
    ],
)
def test_only_ultra_refuses_what_the_service_passes_over(schema: Any, refused: str) -> None:
    assert refusal(schema, "ultra") == refused
    assert refusal(schema) is None


NODE = {**of(next={"$ref": "#/$defs/n"}), "required": ["next"]}


@pytest.mark.parametrize(
    ("schema", "is_finite"),
    [
        (of(next={"$ref": "#"}), True),
        ({**of(nodes={"type": "array", "items": {"$ref": "#"}}), "required": ["nodes"]}, True),
        ({**of(nodes={"type": "array", "items": {"$ref": "#"}, "minItems": 1}), "required": ["nodes"]}, False),
        ({**of(next={"anyOf": [{"$ref": "#"}, {"type": "null"}]}), "required": ["next"]}, True),
        ({**of(next={"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}), "required": ["next"]}, False),
        ({**of(node={"$ref": "#/$defs/n"}), "$defs": {"n": NODE}}, True),
        ({**of(node={"$ref": "#/$defs/n"}), "required": ["node"], "$defs": {"n": NODE}}, False),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}}, False),
        ({"$ref": "#"}, False),
        ({"anyOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": ["object", "null"]}}}, True),
    ],
)
def test_recursion_must_be_able_to_end(schema: Any, is_finite: bool) -> None:
    assert (refusal(schema) is None) == is_finite
    assert refusal(schema, "lite") is None


def test_long_chains_of_references_are_followed_in_time_proportional_to_their_length() -> None:
    chain = {
        str(n): {**of(a={"$ref": f"#/$defs/{n + 1}"}, b={"$ref": "#/$defs/0"}), "required": ["a"]} for n in range(3000)
    }
    assert refusal({**of(), "$defs": {**chain, "3000": STRING}}) is None
    ends = {**of(a={"$ref": "#/$defs/0"}), "required": ["a"]}
    assert refusal({**ends, "$defs": {**chain, "3000": STRING}}) is None
    endless = {**chain, "3000": {"$ref": "#/$defs/7"}}
    assert refusal({**ends, "$defs": endless}) == "root: detected infinite recursion without termination condition"


@pytest.mark.parametrize(
    "schema",
    [
        {}, {"description": "anything"}, {"$defs": {"unused": {}}, "type": "object"}, of(**{"": STRING}), of(a={}),
        {"type": "object", "additionalProperties": {}}, {"type": ["object", "null"]}, {**of(), "required": []},
        {**of(ключ=STRING, **{'q"&': STRING}), "$id": "#user"}, defined(a={"$ref": "#/$defs/s", "description": "d"}),
        {"anyOf": [of(), {**STRING, "title": "t"}], "$defs": {}, "$id": ""},
        {"$ref": "#/$defs/o", "$defs": {"o": of()}}, defined(a={"$ref": "#/$defs/either/anyOf/1"}),
        defined(a={"allOf": [{"$ref": "#/$defs/s"}], "description": "d"}), of(a={"type": "integer", "maximum": 10**16}),
        of(a={"type": "number", "minimum": -10.5111111, "enum": [1, 2.5]}),
        of(a={"type": ["string", "null"], "enum": ["value", None], "default": None}), of(a={"anyOf": [{}, STRING]}),
        of(a={"type": "array", "items": {}, "minItems": 3, "maxItems": 3}), of(a={**STRING, "minLength": 5.0}),
    ],
)  # fmt: skip
def test_parameters_in_the_dialect(schema: Any) -> None:
    check_parameters(schema, strict=True, where=WHERE)
    check_parameters(schema, strict=False, where=WHERE)
    check_response_schema(schema, strict=True, where="response_format.json_schema.schema")


@pytest.mark.parametrize(
    ("schema", "strict", "lenient"),
    [
        ({"type": "string"}, False, False),
        ({"type": ["string", "null"]}, False, False),
        ({"properties": {"a": STRING}}, False, True),
        ({"oneOf": [{"type": "object"}]}, False, True),
        ({"anyOf": [STRING, {"type": "integer"}]}, False, True),
        ({"$ref": "#/$defs/s", "$defs": {"s": STRING}}, False, True),
        ({"type": "object"}, True, True),
        (None, True, True),
    ],
)
def test_parameters_are_of_an_object(schema: Any, strict: bool, lenient: bool) -> None:
    for is_strict, is_right in ((True, strict), (False, lenient)):
        if is_right:
            check_parameters(schema, strict=is_strict, where=WHERE)
        else:
            with pytest.raises(ChatError, match=r'tools\.function\.parameters\.type is required and must be "object"'):
                check_parameters(schema, strict=is_strict, where=WHERE)


@pytest.mark.parametrize(
    "schema",
    [
        of(a={"enum": [1, "a"]}, b={"$ref": "#/definitions/x"}, c={"anyOf": [True], "type": "string"}, d=True),
        of(a={"type": ["string", "integer"], "minimum": "5"}, b={"$ref": "http://x/"}, c={"items": [STRING]}),
        {
            **of(node={"$ref": "#"}),
            "required": ["node", "node", "other"],
            "oneOf": 5,
            "description": None,
            "$schema": 1,
        },
        of(a={"$id": "x", "$defs": {"a/b": False}, "type": "string", "minLength": 9, "maxLength": 1}),
    ],
)
def test_without_strict_anything_well_formed_will_do(schema: Any) -> None:
    check_parameters(schema, strict=False, where=WHERE)
    check_response_schema(schema, strict=False, where=WHERE)


@pytest.mark.parametrize(
    "bad", [5, "x", [], {"type": "x"}, of(a={"required": [1]}), of(a={"anyOf": {}}), of(a="string")]
)
def test_without_strict_what_is_malformed_is_still_refused(bad: Any) -> None:
    with pytest.raises(ChatError, match="At path '"):
        check_parameters(bad, strict=False, where=WHERE)
    with pytest.raises(ChatError, match="At path '"):
        check_response_schema(bad, strict=False, where="response_format.json_schema.schema")


@pytest.mark.parametrize("level", ["ultra", "strict", "lite"])
def test_nesting_has_an_end(level: Level) -> None:
    deep: dict[str, Any] = {"type": "array"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    assert "schema depth exceeds maximum limit of" in str(refusal(deep, level))
    circular = of()
    circular["properties"]["self"] = circular
    assert "schema depth exceeds maximum limit of" in str(refusal(circular, level))
    assert refusal(deep, "loose") is None


@settings(max_examples=100)
@given(documents())
def test_every_kind_of_the_dialect_passes_every_level(schema: dict[str, Any]) -> None:
    for level in get_args(Level):
        check(schema, level, WHERE)
        check(as_parameters(schema), level, WHERE)


JUNK: list[Any] = [
    None, True, 0, -1, 2.5, 10**400, math.nan, math.inf, "", "x", "#", "#/", "#/$defs/A", "\ud800", [], [[]], [1],
    [{}], {}, {"": {}}, {1: {}}, {None: 1}, {"$ref": "#"}, {"type": "string"}, {"enum": [1, "a"]}, b"x", object(), {1},
    (1, "x"),
    {"properties": {"\ud800": 5}}, ["string"] * 600,
]  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give every container within ``value`` with each of its keys or positions."""
    steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield value, step
        yield from places(value[step])


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(documents(), st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(JUNK)), min_size=1, max_size=3))
def test_junk_anywhere_is_allowed_or_refused_by_its_path(
    schema: dict[str, Any], changes: list[tuple[int, Any]]
) -> None:
    changed: Any = {"": copy.deepcopy(schema)}
    for number, junk in changes:
        found = list(places(changed))
        container, step = found[number % len(found)]
        container[step] = copy.deepcopy(junk) if isinstance(junk, dict | list) else junk
    refused = [refusal(changed[""], level) for level in ("loose", "lite", "strict", "ultra")]
    for weaker, stronger in pairwise(refused):
        assert weaker is None or stronger is not None
    assert all(": " in text and text.encode() for text in refused if text)


OUTSIDE: list[tuple[str, Any]] = [
    ("const", 1), ("oneOf", [{}]), ("allOf", [{}]), ("not", {}), ("if", {}), ("format", "date"), ("uniqueItems", True),
    ("multipleOf", 2), ("exclusiveMinimum", 0), ("prefixItems", [{}]), ("minProperties", 1), ("patternProperties", {}),
    ("$anchor", "a"), ("$comment", "c"), ("examples", []), ("definitions", {}), ("nobody's", None), ("contains", {}),
    ("dependentRequired", {}), ("propertyNames", {}), ("unevaluatedProperties", False), ("deprecated", True),
]  # fmt: skip


@settings(max_examples=60)
@given(documents(), st.sampled_from(OUTSIDE), st.integers(0, 10**6))
def test_keywords_outside_the_dialect_are_named_with_their_path(
    schema: dict[str, Any], outside: tuple[str, Any], number: int
) -> None:
    schema = {**of(inner=copy.deepcopy(schema)), **{key: schema[key] for key in ("$defs", "$id") if key in schema}}
    schema["properties"]["inner"] = {key: part for key, part in schema["properties"]["inner"].items() if key[0] != "$"}
    schema["properties"]["inner"][outside[0]] = outside[1]
    assert f"unsupported keywords: {outside[0]}" in str(refusal(schema, "ultra"))
    assert str(refusal(schema, "ultra")).startswith("properties.inner: ")


@pytest.mark.parametrize(
    "more",
    [
        {"allOf": 5},
        {"allOf": [5]},
        {"allOf": [None]},
        {"oneOf": {"a": 1}},
        {"oneOf": [[]]},
        {"allOf": [{"type": 5}]},
        {"allOf": [{"type": [{}]}]},
        {"allOf": [{"enum": 5}]},
    ],
)
def test_keywords_outside_the_dialect_are_looked_into_only_if_they_make_sense(more: dict[str, Any]) -> None:
    with pytest.raises(ChatError, match="it"):
        check_parameters({"type": "object", **more}, strict=True, where="it")


def test_references_that_double_at_every_step_are_not_followed_to_the_end() -> None:
    definitions: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": {"type": "object"}}}
    with pytest.raises(ChatError, match="more than 1,000 ways"):
        check_parameters(schema, strict=True, where="it")
