"""Rendered is within the grammar, and the grammar within what is parsed: every walk through it is a valid answer.

Unusual: walks choose among the allowed tokens at random, with a bias to those that spell a short answer out, and are
checked by a small validator of JSON schemas that knows nothing of llguidance.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openk3.chat.grammar import answer_grammar, token_bytes
from openk3.chat.parse import StreamParser, collect
from openk3.chat.render import render_dialogue
from openk3.checkpoint.resolve import resolve_model
from openk3.engine.grammar import GrammarCompiler
from openk3.protocol.messages import AssistantTurn, Channel, Message, ResponseFormat, ToolCall, ToolDeclaration
from openk3.protocol.request import Grammar
from openk3.tokenizer.bpe import Tokenizer

_TOKENIZER = Tokenizer.load(resolve_model("nano"))
_SPECIAL = _TOKENIZER.special
_END = _SPECIAL.end_of_msg
_COMPILER = GrammarCompiler(token_bytes(_TOKENIZER), [_END], _TOKENIZER.vocab_size)
_MOST_TOKENS = 4000


def declare(name: str, parameters: Mapping[str, Any] | None = None, *, strict: bool = True) -> ToolDeclaration:
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}}


def written(message: Message, channel: Channel) -> list[int]:
    """Render a message and give what the model writes of it."""
    dialogue = [Message(role="user", content="x"), message]
    thinking = channel == "think"
    rendered = render_dialogue(dialogue, tokenizer=_TOKENIZER, thinking=thinking, effort=None)
    return [token for token, trained in zip(rendered.ids, rendered.trained, strict=True) if trained]


def is_accepted(grammar: Grammar, ids: Sequence[int]) -> bool:
    """Follow ``ids`` token by token to the very end."""
    matcher = _COMPILER.compile(grammar)
    for token in ids:
        if not matcher.allowed()[token]:
            return False
        matcher.accept(token)
    return matcher.finished


def walk(grammar: Grammar, seed: int) -> list[int]:
    """Choose allowed tokens at random up to the end; the further, the more only what closes something."""
    rng = random.Random(seed)
    matcher = _COMPILER.compile(grammar)
    closing = [_SPECIAL.close, _END, *(_TOKENIZER.encode(text)[0] for text in ('"', "}", "]", "0"))]
    ids: list[int] = []
    while not ids or ids[-1] != _END:
        assert len(ids) < _MOST_TOKENS, _TOKENIZER.decode(ids[:300])
        allowed = matcher.allowed()
        possible = [token for token in closing if allowed[token]]
        if not possible or rng.random() > 0.1 + len(ids) / 200:
            possible = allowed.nonzero().flatten().tolist()
        ids.append(rng.choice(possible))
        matcher.accept(ids[-1])
    return ids


def parsed(ids: Sequence[int], channel: Channel, *, tools_declared: bool = True) -> AssistantTurn:
    parser = StreamParser(_TOKENIZER, channel=channel, tools_declared=tools_declared)
    return collect([*parser.push(ids), *parser.finish("stop")], "stop")


def is_valid(value: Any, schema: Any) -> bool:
    """Check what the schemas here use."""
    if isinstance(schema, bool):
        return schema
    checks = {
        "string": lambda: isinstance(value, str),
        "integer": lambda: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
        "number": lambda: isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": lambda: isinstance(value, bool),
        "null": lambda: value is None,
        "array": lambda: isinstance(value, list),
        "object": lambda: isinstance(value, dict),
    }
    types = schema.get("type", list(checks))
    if not any(checks[type_]() for type_ in ([types] if isinstance(types, str) else types)):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(is_valid(value, branch) for branch in schema["anyOf"]):
        return False
    if isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            return False
        return re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        return all(is_valid(item, schema.get("items", True)) for item in value)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return set(schema.get("required", ())) <= set(value) and all(
            is_valid(item, properties.get(key, schema.get("additionalProperties", True))) for key, item in value.items()
        )
    return True


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "days": {"type": "integer"},
        "unit": {"enum": ["°C", "K", 'quote"', "a&b", 7, None]},
        'späße & "q"': {"type": ["boolean", "null"]},
        "code": {"type": "string", "pattern": "^[a-z]{2}|x$"},
        "list": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"enum": ["é"]}]}},
        "either": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    declare('wetter & "mehr"', WEATHER),
    declare("f"),
    declare("f2", {"type": "object", "properties": {}, "additionalProperties": {"type": "boolean"}}),
    declare("free", {"type": "object"}, strict=False),
]
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS if tool["function"]["strict"]}
SCHEMAS["f"] = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize("channel", ["think", "response"])
@pytest.mark.parametrize("seed", range(12))
def test_walks_give_valid_calls_of_declared_tools(channel: Channel, seed: int) -> None:
    grammar = answer_grammar(channel=channel, special=_SPECIAL, tools=TOOLS, tool_choice="required")
    assert grammar is not None
    turn = parsed(walk(grammar, seed), channel)
    assert turn.finish_reason == "tool_calls"
    for call in turn.tool_calls:
        assert isinstance(call.arguments, str)
        assert is_valid(json.loads(call.arguments), SCHEMAS.get(call.name, True)), call
        assert call.name in {tool["function"]["name"] for tool in TOOLS}


@pytest.mark.parametrize("seed", range(6))
def test_one_wanted_tool_is_the_only_one(seed: int) -> None:
    grammar = answer_grammar(channel="response", special=_SPECIAL, tools=TOOLS, tool_choice="required", only_tool="f2")
    assert grammar is not None
    assert {call.name for call in parsed(walk(grammar, seed), "response").tool_calls} == {"f2"}


@pytest.mark.parametrize("seed", range(6))
def test_without_choice_of_tools_no_walk_calls_one(seed: int) -> None:
    grammar = answer_grammar(channel="think", special=_SPECIAL, tools=TOOLS, tool_choice="none")
    assert grammar is not None
    ids = walk(grammar, seed)
    assert not parsed(ids, "think").tool_calls
    assert ids.count(_SPECIAL.open) == 1  # the response


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["alone", "with tools"])
def test_responses_keep_their_format_or_are_empty_before_a_call(tools: Sequence[ToolDeclaration], seed: int) -> None:
    wanted = ResponseFormat(type="json_schema", schema=WEATHER)
    grammar = answer_grammar(channel="think", special=_SPECIAL, tools=tools, response_format=wanted)
    assert grammar is not None
    turn = parsed(walk(grammar, seed), "think")
    if turn.content is None:
        assert turn.tool_calls
    else:
        assert is_valid(json.loads(turn.content), WEATHER), turn.content


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        (ResponseFormat(type="regex", regex=r"[a-c]{2,4}/\d|é"), r"[a-c]{2,4}/\d|é"),
        (ResponseFormat(type="lark", lark='start: WORD ("," WORD)*\nWORD: /[xy]+/'), r"[xy]+(,[xy]+)*"),
        (ResponseFormat(type="lark", lark='start: "}" | "{" // }'), r"[{}]"),
    ],
    ids=["regex", "lark", "braces"],
)
def test_patterns_hold_the_whole_response(wanted: ResponseFormat, pattern: str, seed: int) -> None:
    grammar = answer_grammar(channel="response", special=_SPECIAL, response_format=wanted)
    assert grammar is not None
    assert re.fullmatch(pattern, parsed(walk(grammar, seed), "response").content or "")


@pytest.mark.parametrize("seed", range(6))
def test_reasoning_is_free_and_masks_begin_behind_it(seed: int) -> None:
    wanted = ResponseFormat(type="json_object")
    grammar = answer_grammar(channel="think", special=_SPECIAL, response_format=wanted)
    assert grammar is not None
    matcher = _COMPILER.compile(grammar)
    rng = random.Random(seed)
    texts = ["<|close|>think<|sep|>", "é" * 3, "\x00\x7f", "{]", " ", "think", "response"]
    for text in rng.choices(texts, k=20):
        for token in _TOKENIZER.encode(text):
            assert matcher.allowed()[token]
            matcher.accept(token)
    allowed = matcher.allowed()
    special = set(_SPECIAL.names)
    assert {token for token in special if allowed[token]} == {_SPECIAL.close}
    for token in [
        _SPECIAL.close, *_TOKENIZER.encode("think"), _SPECIAL.sep,
        _SPECIAL.open, *_TOKENIZER.encode("response"), _SPECIAL.sep,
    ]:  # fmt: skip
        assert matcher.allowed()[token]
        matcher.accept(token)
    allowed = matcher.allowed()
    for token in allowed.nonzero().flatten().tolist():
        assert _TOKENIZER.token_bytes(token).startswith((b"{", b" ", b"\n", b"\r", b"\t")), token


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# llguidance wants this one character escaped within JSON, which leaves it to the writer.
_json_texts = _texts.filter(lambda text: "\x7f" not in text)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _json_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_json_texts, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(
    reasoning=_texts,
    content=_texts,
    name=_texts.filter(bool),
    calls=st.lists(st.dictionaries(_texts, _values, max_size=4), max_size=3),
    channel=st.sampled_from(["think", "response"]),
)
def test_whatever_is_rendered_of_free_tools_is_allowed(
    reasoning: str, content: str, name: str, calls: list[dict[str, Any]], channel: Channel
) -> None:
    tools = [declare(name, strict=False), declare("other", strict=False)]
    grammar = answer_grammar(channel=channel, special=_SPECIAL, tools=tools)
    assert grammar is not None
    made = tuple(ToolCall(f"{n}", name, arguments) for n, arguments in enumerate(calls))
    message = Message(role="assistant", reasoning=reasoning, content=content, tool_calls=made)
    assert is_accepted(grammar, written(message, channel))


@settings(max_examples=60)
@given(arguments=st.dictionaries(_texts, _values, min_size=1, max_size=4), name=_texts.filter(bool), data=st.data())
def test_whatever_is_rendered_by_a_strict_schema_is_allowed(
    arguments: dict[str, Any], name: str, data: st.DataObject
) -> None:
    required = data.draw(st.lists(st.sampled_from(sorted(arguments)), unique=True))
    properties = {key: data.draw(st.sampled_from(_schemas_of(value))) for key, value in arguments.items()}
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    left_out = data.draw(st.lists(st.sampled_from(sorted(arguments)), unique=True))
    given_ = {key: value for key, value in arguments.items() if key in required or key not in left_out}
    grammar = answer_grammar(channel="response", special=_SPECIAL, tools=[declare(name, schema)])
    assert grammar is not None
    message = Message(role="assistant", content="", tool_calls=(ToolCall("a", name, given_),))
    assert is_accepted(grammar, written(message, "response"))


def _schemas_of(value: Any) -> list[Any]:
    """List schemas that ``value`` meets."""
    types = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    name = types.get(type(value), "null")
    schemas: list[Any] = [True, {"type": name}, {"type": ["null", name]} if name != "null" else {"type": "null"}]
    schemas.append({"anyOf": [{"type": "null"}, {"type": name}]} if name != "null" else {})
    if isinstance(value, str):
        schemas += [{"type": "string", "minLength": len(value), "maxLength": len(value)}, {"enum": ["other", value]}]
    return schemas


def test_calls_are_numbered_in_order() -> None:
    tools = [declare("f")]
    grammar = answer_grammar(channel="response", special=_SPECIAL, tools=tools)
    assert grammar is not None
    calls = tuple(ToolCall(str(n), "f", {}) for n in range(40))
    ids = written(Message(role="assistant", content="", tool_calls=calls), "response")
    assert is_accepted(grammar, ids)
    third = _TOKENIZER.encode("3")
    at = next(i for i in range(len(ids)) if ids[i : i + 1] == third and _TOKENIZER.decode(ids[:i]).endswith('index="'))
    assert not is_accepted(grammar, [*ids[:at], *_TOKENIZER.encode("4"), *ids[at + 1 :]])
