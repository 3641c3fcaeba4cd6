"""What an answer's grammar refuses, soon and with a reason, and what it does not hold the model to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from openk3.chat.grammar import answer_grammar, declared_tools, token_bytes
from openk3.chat.grammar_text import refusal_of
from openk3.engine.grammar import GrammarCompiler
from openk3.errors import ChatError, TokenizerError
from openk3.protocol.messages import Message, ResponseFormat
from openk3.protocol.request import Grammar
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens

OBJECT = {"type": "object"}
NO_TEXTS: list[Any] = [3, b"x", [], {}, True]


def declare(parameters: Any, name: Any = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


def grammar_of(special: SpecialTokens, **options: Any) -> Grammar:
    grammar = answer_grammar(channel="response", special=special, **options)
    assert grammar is not None
    return grammar


def is_accepted(bytewise: Tokenizer, grammar: Grammar, ids: list[int]) -> bool:
    compiler = GrammarCompiler(token_bytes(bytewise), [bytewise.special.end_of_msg], bytewise.vocab_size)
    matcher = compiler.compile(grammar)
    return matcher.count_allowed(ids) == len(ids)


def response(body: str) -> str:
    return f"{body}<|close|>response<|sep|>"


def call(arguments: str, name: str = "f", index: int = 1) -> str:
    return f'<|open|>call tool="{name}" index="{index}"<|sep|>{arguments}<|close|>call<|sep|>'


def tools(calls: str) -> str:
    return f"<|open|>tools<|sep|>{calls}<|close|>tools<|sep|>"


def argument(key: str, type_: str, value: str) -> str:
    return f'<|open|>argument key="{key}" type="{type_}"<|sep|>{value}<|close|>argument<|sep|>'


END = "<|close|>message<|sep|><|end_of_msg|>"


def test_without_tools_or_format_there_is_no_grammar(bytewise: Tokenizer) -> None:
    for channel in ("think", "response"):
        assert answer_grammar(channel=channel, special=bytewise.special) is None


def test_tools_of_system_messages_are_declared_too() -> None:
    first, second = declare(OBJECT, "a"), declare(OBJECT, "b")
    messages = [Message(role="user", content="x"), Message(role="system", tools=(second,))]
    assert declared_tools([first], messages) == [first, second]


@pytest.mark.parametrize(
    ("body", "is_right"),
    [
        (call(argument("n", "number", "3")), True),
        (call(argument("n", "number", "3") + argument("é &amp; &quot;", "string", "any <|x|> \n")), True),
        (call(argument("n", "number", "3")) + call(argument("n", "number", "4"), index=2), True),
        (call(argument("n", "number", "3"), index=2), False),
        (call(argument("n", "number", "3"), "g"), False),
        (call(argument("n", "number", "3.5")), False),
        (call(argument("n", "string", "3")), False),
        (call(argument("é &amp; &quot;", "string", "")), False),  # n is required
        (call(argument("n", "number", "3") * 2), False),
        (call(argument("n", "number", "3") + argument("other", "string", "x")), False),
        ("", False),
    ],
)
def test_a_strict_tool(bytewise: Tokenizer, markup: Any, body: str, is_right: bool) -> None:
    properties = {"n": {"type": "integer"}, 'é & "': {"type": "string"}}
    parameters = {**OBJECT, "properties": properties, "required": ["n"], "additionalProperties": False}
    grammar = grammar_of(bytewise.special, tools=[declare(parameters)], tool_choice="required")
    assert is_accepted(bytewise, grammar, markup(response("text") + tools(body) + END)) == is_right


@pytest.mark.parametrize(
    ("parameters", "arguments", "is_right"),
    [
        (None, "", True),
        (None, argument("a", "null", "null"), False),
        ({**OBJECT, "additionalProperties": False}, argument("a", "null", "null"), False),
        (OBJECT, argument("a", "null", "null") + argument("b", "array", "[1]"), True),
        ({"type": ["object", "null"], "required": ["a"]}, "", False),
        ({**OBJECT, "properties": {"a": False}}, argument("a", "null", "null"), False),
        (
            {**OBJECT, "properties": {"a": {}}, "additionalProperties": {"type": "null"}},
            argument("b", "null", "null"),
            True,
        ),
        (
            {**OBJECT, "properties": {"a": {}}, "additionalProperties": {"type": "null"}},
            argument("b", "number", "1"),
            False,
        ),
        ({**OBJECT, "required": ["a"]}, "", False),
        ({**OBJECT, "required": ["a"]}, argument("a", "number", "1"), True),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, argument("c", "number", "1"), False),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, argument("b", "number", "1"), True),
        ({**OBJECT, "anyOf": [{"required": ["a"]}]}, argument("c", "number", "1"), True),
        ({"$ref": "#/$defs/x", "$defs": {"x": {**OBJECT, "required": ["a"]}}}, "", False),
        ({**OBJECT, "patternProperties": {"^a": {"type": "null"}}}, argument("ab", "null", "null"), True),
    ],
)
def test_parameters(bytewise: Tokenizer, markup: Any, parameters: Any, arguments: str, is_right: bool) -> None:
    grammar = grammar_of(bytewise.special, tools=[declare(parameters)])
    assert is_accepted(bytewise, grammar, markup(response("") + tools(call(arguments)) + END)) == is_right


@pytest.mark.parametrize(
    ("body", "is_right"),
    [
        (response("{}") + END, True),
        (response("") + END, False),
        (response("[]") + END, False),
        (response("{}") + tools(call("")) + END, True),
        (response("") + tools(call("")) + END, True),
        (response("{") + tools(call("")) + END, False),
    ],
)
def test_a_response_in_a_format_may_be_empty_before_a_call(
    bytewise: Tokenizer, markup: Any, body: str, is_right: bool
) -> None:
    wanted = ResponseFormat(type="json_object")
    grammar = grammar_of(bytewise.special, tools=[declare(None)], response_format=wanted)
    assert is_accepted(bytewise, grammar, markup(body)) == is_right


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"tool_choice": "any"}, "tool_choice is 'any'"),
        ({"tool_choice": "required"}, "no tool is declared"),
        ({"tools": [declare(OBJECT)], "only_tool": "f"}, "only_tool is 'f' with tool_choice 'auto'"),
        ({"tools": [declare(OBJECT)], "tool_choice": "required", "only_tool": "g"}, "the declared tools are f"),
        ({"tools": ["x"]}, "tools\\[0\\] has no function with a name"),
        ({"tools": [declare(OBJECT), {"function": None}]}, "tools\\[1\\] has no function with a name"),
        ({"tools": [declare(OBJECT, "")]}, "has no function with a name"),
        ({"tools": [declare(OBJECT, 5)]}, "has no function with a name"),
        ({"tools": [declare(OBJECT, "\ud800")]}, "half a surrogate pair"),
        ({"tools": [declare({"type": "array"})]}, "tool 'f' are {'type': 'array'}, expected a schema of"),
        ({"tools": [declare(True)]}, "are True, expected a schema of an object"),
        ({"tools": [declare({"properties": {"a": {"type": "x"}}})]}, "tool 'f': properties.a: type is 'x'"),
        ({"tools": [declare({"properties": {"a": {"pattern": "\ud800"}}})]}, "half a surrogate pair"),
        (
            {"tools": [declare({"properties": {f"{m}-{n}": True for n in range(500)}}, f"f{m}") for m in range(5)]},
            "strict tools have more than 1,024 arguments and properties",
        ),
        ({"tools": [declare({"type": ["null", "array"]})]}, "expected a schema of an object"),
        ({"tools": [declare({"properties": {f"{n}": True for n in range(2000)}})]}, "has 2,000 properties"),
        ({"tools": [declare(None, f"f{n}") for n in range(1025)]}, "1,025 tools are declared, expected at most 1,024"),
        ({"tool_choice": []}, "tool_choice is \\[\\]"),
    ],
    ids=range(18),
)  # fmt: skip
def test_tools_that_make_no_sense_are_refused(bytewise: Tokenizer, options: Mapping[str, Any], fault: str) -> None:
    with pytest.raises(ChatError, match=fault):
        grammar_of(bytewise.special, **options)


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ({"type": "xml"}, "response format is 'xml'"),
        ({"type": "regex"}, "'regex' without regex"),
        ({"type": "text", "lark": "x"}, "'text' with lark"),
        ({"type": "json_object", "schema": {}}, "'json_object' with schema"),
        ({"type": "json_schema", "schema": True}, "the response schema is True"),
        ({"type": "json_schema", "schema": {"type": "x"}}, "the response schema: type is 'x'"),
        ({"type": "json_schema", "schema": {"minLength": 5, "maxLength": 2, "type": "string"}}, "cannot be enforced"),
        ({"type": "json_schema", "schema": {"enum": [float("nan")]}}, "cannot be enforced"),
        ({"type": "json_schema", "schema": {"$ref": "http://elsewhere/"}}, "cannot be enforced"),
        ({"type": "json_schema", "schema": {"$ref": "#"}}, "nothing matches it"),
        ({"type": "json_schema", "schema": {"properties": {"\ud800": {}}}}, "half a surrogate pair"),
        ({"type": "regex", "regex": "(a"}, "(?s)cannot be enforced: .*unclosed group"),
        ({"type": "regex", "regex": "(?=a)b"}, "look-around"),
        ({"type": "regex", "regex": "[a&&b]"}, "nothing matches it"),
        ({"type": "regex", "regex": "\ud800"}, "half a surrogate pair"),
        ({"type": "regex", "regex": "a|" * 100_000}, "has 200000 characters, expected at most"),
        ({"type": "lark", "lark": ""}, "is no grammar"),
        ({"type": "lark", "lark": "start: foo"}, "unknown name"),
        ({"type": "lark", "lark": 'foo: "a"'}, "no start rule"),
        ({"type": "lark", "lark": "start: \ud800"}, "half a surrogate pair"),
        ({"type": "lark", "lark": 'start: "a"\n}\nfoo: %lark {\nstart: "a"'}, "is no grammar"),
        ({"type": "lark", "lark": "start: <[259]>"}, "names special tokens"),
        ({"type": "lark", "lark": "start: <|close|>"}, "names special tokens"),
        ({"type": "lark", "lark": "start: <[999999]>"}, "names special tokens"),
        ({"type": "lark", "lark": 'start: "a"' + "\n" * 3000}, "has 3000 lines, expected at most"),
        ({"type": "lark", "lark": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000}, "too deeply nested"),
        ({"type": "lark", "lark": "start: " + '"a" | ' * 50_000 + '"b"'}, "characters, expected at most"),
        ({"type": "lark", "lark": "start: <[259]> foo"}, "is no grammar|names special tokens"),
        ({"type": []}, "response format is \\[\\]"),
        ({"type": "json_schema", "schema": {1: 2}}, "expected keywords that are text"),
        ({"type": "json_schema", "schema": 10**5000}, "the response schema is something of type int"),
        ({"type": "json_schema", "schema": {"properties": {f"{n}": {} for n in range(2000)}}}, "has 2,000 properties"),
        *(
            ({"type": type_, type_: value}, f"the {type_} of the response format is {re.escape(repr(value))}, expected")
            for type_ in ("regex", "lark")
            for value in NO_TEXTS
        ),
    ],
    ids=range(42),
)
def test_formats_that_make_no_sense_are_refused(bytewise: Tokenizer, wanted: Mapping[str, Any], fault: str) -> None:
    with pytest.raises(ChatError, match=fault) as caught:
        grammar_of(bytewise.special, response_format=ResponseFormat(**wanted))
    assert len(str(caught.value)) < 3000


def test_a_format_that_is_none_is_refused(bytewise: Tokenizer) -> None:
    with pytest.raises(ChatError, match="the response format is 3, expected ResponseFormat"):
        grammar_of(bytewise.special, response_format=3)


def test_as_many_tools_as_may_be_are_compiled(bytewise: Tokenizer, markup: Any) -> None:
    tools_ = [declare(OBJECT, f"f{n}") for n in range(1024)]
    grammar = grammar_of(bytewise.special, tools=tools_)
    for name, is_right in (("f1023", True), ("f1024", False)):
        body = markup(response("") + tools(call(argument("a", "null", "null"), name)) + END)
        assert is_accepted(bytewise, grammar, body) == is_right


def test_mappings_of_any_kind_are_schemas(bytewise: Tokenizer, markup: Any) -> None:
    schema = MappingProxyType({**OBJECT, "properties": MappingProxyType({"a": MappingProxyType({"type": "null"})})})
    wanted = ResponseFormat(type="json_schema", schema=schema)
    grammar = grammar_of(bytewise.special, tools=[MappingProxyType(declare(schema))], response_format=wanted)
    assert is_accepted(bytewise, grammar, markup(response('{"a": null}') + END))
    assert not is_accepted(bytewise, grammar, markup(response('{"a": 1}') + END))


def test_a_vocabulary_without_control_tokens_is_refused() -> None:
    with pytest.raises(TokenizerError, match="no special token"):
        grammar_of(SpecialTokens.block(256, names={}), response_format=ResponseFormat(type="json_object"))


def test_a_fault_is_said_of_long_grammars_too() -> None:
    for length in (10, 10_000):
        assert refusal_of(f'"{"a" * length}"') is None
        assert refusal_of(f'"{"a" * length}" foo') is not None


def test_a_schema_that_is_not_strict_asks_for_json_only(bytewise: Tokenizer) -> None:
    schemas: list[dict[str, Any]] = [{"type": "integer"}, {"type": "boolean"}, {"type": "integer", "not": {}}]
    written = [
        [
            grammar_of(
                bytewise.special, response_format=ResponseFormat(type="json_schema", schema=schema, strict=strict)
            )
            for schema in schemas[: 2 if strict else 3]
        ]
        for strict in (False, True)
    ]
    assert written[0][0] == written[0][1] == written[0][2]
    assert written[1][0] != written[1][1] != written[0][1]
