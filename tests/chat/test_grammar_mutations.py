"""Schemas that went wrong anywhere: they are compiled or refused with an error of ours, and nothing else happens."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from openk3.chat.grammar import answer_grammar, token_bytes
from openk3.engine.grammar import GrammarCompiler
from openk3.errors import ChatError, ConfigError
from openk3.protocol.messages import ResponseFormat
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens

TOKENIZER = Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))
COMPILER = GrammarCompiler(token_bytes(TOKENIZER), [TOKENIZER.special.end_of_msg], TOKENIZER.vocab_size)

HEALTHY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^a|b$"},
        "number": {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": 10.5, "multipleOf": 0.5},
        "list": {"type": "array", "prefixItems": [{"const": 1}], "items": {"enum": [1, "a", None]}, "minItems": 1},
        "either": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/node"}], "title": "t", "default": {"x": [1]}},
        "all": {"allOf": [{"type": "string"}, {"oneOf": [{"minLength": 2}, {"format": "date"}]}]},
        "map": {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": {"type": "integer"}},
    },
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "not": {"const": 3}}},
}


def nested(levels: int, step: str) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {step: value} if step in ("items", "not") else {step: [value]}
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give every container within ``value`` with each of its keys or positions."""
    steps = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for step in steps:
        yield value, step
        yield from places(value[step])


KEYWORDS = [
    *sorted({step for _, step in places(HEALTHY) if isinstance(step, str)}),
    "if", "then", "else", "contains", "propertyNames", "dependentSchemas", "definitions", "x-guidance", "$id",
    "$schema", "$anchor", "uniqueItems", "minProperties", "unevaluatedProperties", "nobody's keyword",
]  # fmt: skip
JUNK: list[Any] = [
    None, True, False, 0, -1, 2.5, 10**30, 10**400, 10**5000, math.nan, math.inf, "", "x", "#", "#/", "#/$defs/node",
    "#/required/0", "#/default", "#x", "http://x/", "\ud800", "\x00", "(", "a{1,99999}", [], [[]], [1], ["text"], [{}],
    {}, {"": {}}, {1: {}}, {None: 1}, {("a",): 1}, {"$ref": "#"}, {"$ref": "#/properties/all"}, {"type": "string"},
    b"x", object(), {1}, (1, "text"), nested(60, "items"), nested(3000, "not"), nested(40, "anyOf"),
    {str(n): {} for n in range(1100)}, ["a"] * 3000,
]  # fmt: skip

changes = st.lists(
    st.tuples(
        st.sampled_from(["replace", "remove", "add", "rename"]),
        st.integers(0, 10_000),
        st.sampled_from(KEYWORDS),
        st.sampled_from(JUNK),
    ),
    min_size=1,
    max_size=3,
)


def change(container: Any, step: Any, how: str, keyword: str, junk: Any) -> None:
    """Spoil one place of a schema, if an earlier change left it there."""
    if isinstance(container, list):
        container[step : step + 1] = [] if how == "remove" else [junk]
    elif how == "add":
        container[keyword] = junk
    elif how == "replace":
        container[step] = junk
    elif step in container:
        value = container.pop(step)
        if how == "rename":
            container[junk if isinstance(junk, str | int | float | bytes | None) else ("a", "pair")] = value


def check_that_it_is_followed_or_refused(schema: Any) -> None:
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}
    wanted = ResponseFormat(type="json_schema", schema=schema)
    for options in ({"tools": [strict]}, {"response_format": wanted}):
        try:
            grammar = answer_grammar(channel="response", special=TOKENIZER.special, **options)
            assert grammar is not None
            assert COMPILER.compile(grammar).allowed().any()
        except (ChatError, ConfigError) as error:
            assert len(str(error)) < 3000


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=changes)
@example(changes=[("add", 0, "$ref", "#/default"), ("add", 0, "default", {"type": 3})])
@example(changes=[("rename", 0, "", 1)])
def test_a_spoilt_schema_is_followed_or_refused(changes: list[tuple[str, int, str, Any]]) -> None:
    schema = copy.deepcopy(HEALTHY)
    healthy = list(places(schema))
    for how, where, keyword, junk in changes:
        change(*healthy[where % len(healthy)], how, keyword, junk)
    check_that_it_is_followed_or_refused(schema)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_every_keyword_with_every_junk(keyword: str) -> None:
    for junk in JUNK:
        check_that_it_is_followed_or_refused({keyword: junk})


def test_the_healthy_schema_is_followed() -> None:
    grammar = answer_grammar(
        channel="response",
        special=TOKENIZER.special,
        response_format=ResponseFormat(type="json_schema", schema=HEALTHY),
    )
    assert grammar is not None
    matcher = COMPILER.compile(grammar)
    text = b'{"text": "ab", "number": 2.5, "list": [1, "a"], "either": {"next": {}}}'
    assert matcher.count_allowed([*text]) == len(text)
