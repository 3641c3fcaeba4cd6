"""What a grammar takes from the schema of an argument: types, raw strings, JSON; and which schemas are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from openk3.chat.grammar_text import json_value
from openk3.chat.json_schema import ArgumentSchema
from openk3.chat.json_schema_check import TYPES, check_schema
from openk3.errors import ChatError

ANYTHING = list(TYPES)
BYTES = LLTokenizer("byte")


def matches(start: str, text: str) -> bool:
    automaton = LLMatcher(BYTES, f"start: {start}\n", log_level=0)
    assert not automaton.is_error(), automaton.get_error()
    ids = list(text.encode())
    return automaton.try_consume_tokens(ids) == len(ids) and automaton.is_accepting()


def argument(schema: Any, **root: Any) -> ArgumentSchema:
    return ArgumentSchema(schema, {"type": "object", "properties": {"a": schema}, **root})


def allows_raw(schema: Any, text: str, **root: Any) -> bool:
    return matches(f"TEXT\nTEXT: {argument(schema, **root).raw_string}", text)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (True, ANYTHING),
        (False, ANYTHING),  # nothing is possible, so nothing can be enforced
        ({}, ANYTHING),
        ({"type": "integer"}, ["number"]),
        ({"type": ["null", "string"]}, ["string", "null"]),
        ({"enum": ["a", 1, 2.5, True, None]}, ["string", "number", "boolean", "null"]),
        ({"const": {}}, ["object"]),
        ({"const": []}, ["array"]),
        ({"type": "string", "enum": ["a", 1]}, ["string"]),
        ({"type": "string", "enum": [1]}, ANYTHING),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, ["string", "array"]),
        ({"oneOf": [{"type": "string"}, {"const": 1}]}, ["string", "number"]),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "number"]}]}, ["null"]),
        ({"$ref": "#/$defs/n"}, ["number"]),
        ({"$ref": "#/$defs/list/1"}, ["boolean"]),
        ({"$ref": "#/$defs/~0a~1b"}, ["null"]),
        ({"$ref": "#/$defs/round"}, ["string", "number"]),
        ({"$ref": "http://elsewhere/"}, ANYTHING),
    ],
)
def test_types(schema: Any, types: list[str]) -> None:
    definitions = {
        "n": {"type": "number"},
        "list": [{}, {"type": "boolean"}],
        "~a/b": {"type": "null"},
        "round": {"type": ["string", "number"], "anyOf": [{"$ref": "#/$defs/round"}, True]},
    }
    assert argument(schema, **{"$defs": definitions}).types == types


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", 'a"\n\\', "é" * 99], []),
        (
            {"enum": ['quote"', "a&b", "\n", "back\\", "\x7f", "", 5]},
            ['quote"', "a&b", "\n", "back\\", "\x7f", ""],
            ["5", "q"],
        ),
        ({"const": "ä"}, ["ä"], ["", "a", "ää"]),
        ({"minLength": 2}, ["éé", "abc\n"], ["é", ""]),
        ({"maxLength": 2}, ["", "éé"], ["ééé"]),
        ({"minLength": 1.0, "maxLength": 1}, ["x"], ["", "xx"]),
        ({"pattern": "b+"}, ["abc\n", "b"], ["", "ac"]),
        ({"pattern": "^b+"}, ["bb", "bc"], ["ab"]),
        ({"pattern": "b+$"}, ["ab", "b"], ["ba"]),
        ({"pattern": "^b+$"}, ["bbb"], ["", "ab", "ba", "b\n"]),
        ({"pattern": r"^a\$"}, ["a$", "a$b"], ["a", "b$"]),
        ({"pattern": r"a\\$"}, ["a\\", "ba\\"], ["a\\b"]),
        ({"pattern": "^a|b$"}, ["ac", "cb", "a"], ["ca", "bc"]),
        ({"pattern": "^(a|b)$"}, ["a", "b"], ["ab", ""]),
        ({"pattern": "^[|]$"}, ["|"], ["", "a"]),
        ({"pattern": r"^\d\w/$"}, ["1a/"], ["٣a/", "1é/"]),  # ASCII only, as in JavaScript
        ({"pattern": "^a\nb$"}, ["a\nb"], ["ab"]),
        ({"pattern": "^a", "maxLength": 2}, ["a", "ab"], ["abc", "b"]),
        ({"allOf": [{"minLength": 2}, {"pattern": "x"}]}, ["ax"], ["x", "ab"]),
        ({"anyOf": [{"const": "a"}, {"pattern": "^b"}, {"type": "null"}]}, ["a", "bb"], ["c", "null"]),
        ({"anyOf": [{"const": "a"}, {"type": "string"}]}, ["zzz"], []),
        ({"anyOf": [{"type": "null"}, {"const": "a"}], "minLength": 1}, ["a"], ["", "null"]),
        ({"$ref": "#/$defs/s"}, ["s"], ["t", ""]),
        ({"$ref": "#/$defs/s", "maxLength": 1}, ["s"], ["ss"]),
    ],
)
def test_raw_strings(schema: Any, good: list[str], bad: list[str]) -> None:
    root = {"$defs": {"s": {"type": "string", "pattern": "^s+$"}}}
    assert [text for text in good if not allows_raw(schema, text, **root)] == []
    assert [text for text in bad if allows_raw(schema, text, **root)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": 5, "maxLength": 2},
        {"minLength": "1}/ | /(?s:.{0"},
        {"maxLength": -1},
        {"maxLength": None},
        {"minLength": True},
        {"pattern": "(?=a)b"},
        {"pattern": "(a"},
        {"pattern": r"\bword\b"},
        {"pattern": 5},
        {"pattern": "a" * 100_000},
        {"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]},
        {"format": "date"},
    ],
)
def test_what_cannot_be_enforced_is_passed_over(schema: Any) -> None:
    check_schema(schema, "it")
    assert allows_raw({"type": "string", **schema}, "text of any kind")


@pytest.mark.parametrize(
    ("schema", "type_", "good", "bad"),
    [
        (True, "number", ["1", "-2.5e3"], ['"1"', "true"]),
        ({"type": "integer", "minimum": 3}, "number", ["3", "40"], ["2", "3.5"]),
        ({"type": ["integer", "null"]}, "number", ["3"], ["null", "3.5"]),
        ({"type": ["integer", "null"]}, "null", ["null"], ["3"]),
        ({"enum": [1, "a", None, [2]]}, "number", ["1"], ["2", "null"]),
        ({"enum": [1, "a", None, [2]]}, "array", ["[2]", "[ 2 ]"], ["[]", "[3]"]),
        ({"anyOf": [{"type": "string"}, {"const": 7}]}, "number", ["7"], ["8", '"7"']),
        (
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
            "array",
            ["[]", "[true]"],
            ["[1]", "[true,true]"],
        ),
        ({"$ref": "#/$defs/o"}, "object", ['{"x": {"x": 1}}', '{"x": 5}'], ['{"x": "a"}', "{}"]),
        ({"type": "object", "description": "d", "default": {}}, "object", ["{}"], ["[]"]),
    ],
)
def test_other_values_are_json_of_one_type(schema: Any, type_: str, good: list[str], bad: list[str]) -> None:
    inner = {"anyOf": [{"$ref": "#/$defs/o"}, {"type": "integer"}]}
    recursive = {"type": "object", "properties": {"x": inner}, "required": ["x"]}
    start = json_value(argument(schema, **{"$defs": {"o": recursive}}).json_schema(type_))
    assert [text for text in good if not matches(start, text)] == []
    assert [text for text in bad if matches(start, text)] == []


@pytest.mark.parametrize("text", ["[{}1]", "{}[1]", "[1{}]", "[1{},2]", "[1,{}2]", '[{{"a"{}:1}}]', "[1]{}"])
@pytest.mark.parametrize("white", [" ", "\n", "\t", "\r\n  "])
def test_json_has_no_endless_white_space(text: str, white: str) -> None:
    start = json_value({"type": "array"})
    longest, too_long = (white * 9)[:8], (white * 9)[:9]
    is_allowed_at_all = not text.endswith("{}") and not text.startswith("{}")
    assert matches(start, text.format(""))
    assert matches(start, text.format(longest)) or not is_allowed_at_all
    assert not matches(start, text.format(too_long))


def nested(levels: int, value: Any) -> Any:
    for _ in range(levels):
        value = {"items": value}
    return value


def nested_list(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ("x", "it is 'x', expected a JSON schema"),
        (None, "it is None"),
        ({"type": "strnig"}, "type is 'strnig', expected integer, string"),
        ({"type": {}}, "type is {}"),
        ({"type": [[]]}, "type is \\[\\]"),
        ({"required": "a"}, "required is 'a', expected a list of names"),
        ({"required": [1]}, "required is \\[1\\]"),
        ({"enum": []}, "enum is \\[\\], expected a list of at least one value"),
        ({"enum": 5}, "enum is 5"),
        ({"properties": []}, "properties is \\[\\], expected an object of schemas"),
        ({"properties": {1: {}}}, "properties is {1: {}}"),
        ({"properties": {"a": {"items": {"type": "x"}}}}, "it: properties.a: items: type is 'x'"),
        ({"anyOf": {}}, "anyOf is {}, expected a list of schemas"),
        ({"$ref": "#/$defs/a"}, "\\$ref is '#/\\$defs/a', which is not in the schema"),
        ({"anyOf": [{}], "$ref": "#/anyOf/²"}, "is not in the schema"),
        ({"anyOf": [{}], "$ref": "#/anyOf/1"}, "is not in the schema"),
        (nested(60, {}), "nested more than 48 deep"),
        (nested(3000, {}), "cannot be written as JSON"),
        ({"default": nested_list(3000)}, "cannot be written as JSON"),
        ({"const": {1}}, "cannot be written as JSON: a set is not JSON"),
        ({"const": "\ud800"}, "half a surrogate pair"),
        ({"properties": {"\udfff": True}}, "half a surrogate pair"),
        ({"enum": ["a" * 50] * 9000}, "characters as JSON, expected at most"),
        ({"type": []}, "type is \\[\\]"),
        ({"type": None}, "type is None"),
        ({"$ref": 3}, "\\$ref is 3, expected text"),
        ({"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]}, "is not in the schema"),
        ({"items": [{}, {"type": 3}]}, "it: items\\[1\\]: type is 3"),
        ({"items": {1: 2}}, "it: items is {1: 2}, expected keywords that are text"),
        ({"const": 10**5000}, "cannot be written as JSON"),
        ({"$ref": "#/default", "default": {"type": 3}}, "it: #/default: type is 3"),
        ({"$ref": "#/enum/0/x", "enum": [{"x": {"properties": 3}}]}, "it: #/enum/0/x: properties is 3"),
        ({"$ref": "#/title", "title": "x"}, "it: #/title is 'x', expected a JSON schema"),
        ({"properties": {f"{n}": {} for n in range(1025)}}, "it has 1,025 properties, expected at most 1,024"),
        ({"required": [f"{n}" for n in range(1025)]}, "it has 1,025 properties"),
        ({"items": {"properties": {f"{n}": {"properties": {"a": {}}} for n in range(600)}}}, "it has 1,200 properties"),
        ({"multipleOf": 10**8}, "too many remainders"),
        ({"multipleOf": 0.12345678}, "too many remainders"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "too many remainders"),
        ({"properties": {f"{n}": {"multipleOf": 9000} for n in range(100)}}, "too many remainders"),
        ({"$ref": "http://x/#/default", "$id": "http://x/", "default": {"multipleOf": 1e7}}, "too many remainders"),
    ],
    ids=range(41),
)
def test_schemas_that_make_no_sense_are_refused(schema: Any, fault: str) -> None:
    with pytest.raises(ChatError, match=fault) as caught:
        check_schema(schema, "it")
    assert len(str(caught.value)) < 3000


def test_what_is_well_formed_is_checked_for_its_size_only() -> None:
    names = [f"{n}" for n in range(1024)]
    assert check_schema({"properties": dict.fromkeys(names, True), "required": names}, "it") == 1024
    assert check_schema({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"$ref": "#"}}}, "it") == 0
    assert check_schema({"$ref": "#named", "x": {1: 2}, "multipleOf": 0.01, "minimum": "none"}, "it") == 0
    assert check_schema({"multipleOf": -1, "items": [{"multipleOf": float("nan")}, {"multipleOf": "x"}]}, "it") == 0
    chain = {str(n): {"$ref": f"#/default/{n + 1}"} for n in range(2000)}
    assert check_schema({"$ref": "#/default/0", "default": {**chain, "2000": {"required": ["a"]}}}, "it") == 1


def test_any_mapping_will_do() -> None:
    frozen: Mapping[str, Any] = MappingProxyType({"type": "array", "items": MappingProxyType({"type": "null"})})
    check_schema(frozen, "it")
    assert matches(json_value(argument(frozen).json_schema("array")), "[null]")


def test_references_that_branch_endlessly_are_refused_soon() -> None:
    names = [f"#/$defs/{n}" for n in range(12)]
    definitions = {str(n): {"anyOf": [{"$ref": name} for name in names]} for n in range(12)}
    with pytest.raises(ChatError, match="in more than 200,000 ways"):
        _ = argument({"$ref": names[0]}, **{"$defs": definitions}).types


def test_references_that_go_round_in_circles_allow_anything() -> None:
    definitions = {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 10}, "b": {"allOf": [{"$ref": "#/$defs/b"}]}}
    for name in definitions:
        found = argument({"$ref": f"#/$defs/{name}"}, **{"$defs": definitions})
        assert found.types == ANYTHING
        assert allows_raw({"$ref": f"#/$defs/{name}"}, "any", **{"$defs": definitions})
