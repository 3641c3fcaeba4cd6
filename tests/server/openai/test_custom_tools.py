"""Custom tools: their text out of the JSON of arguments, in whatever pieces it comes, and what it can be held to."""

from __future__ import annotations

import json

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.custom_tools import CustomInput, custom_arguments
from openk3.server.openai.responses import Responses
from tests.server.openai.responses_harness import LARK, body, custom, grammar

TEXTS = [
    "",
    "plain",
    'a "quoted" \\ one',
    "line\nline\r\n\ttab",
    "ümläut 🙂",
    "\x00\x7f",
    '"}',
    '{"input":"x"}',
    "\\u0041\\",
]


def read(pieces: list[str]) -> list[str]:
    """What comes of each piece, and in the end."""
    text = CustomInput()
    return [*(text.push(piece) for piece in pieces), text.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_the_text_comes_back_wherever_the_json_is_cut(text: str, is_ascii: bool) -> None:
    if is_ascii and "🙂" in text:
        text = text.replace("🙂", "")  # nobody writes halves of surrogate pairs
    written = json.dumps(custom_arguments(text), ensure_ascii=is_ascii, separators=(",", ":"))

    assert "".join(read([written])) == text
    assert "".join(read(list(written))) == text
    for cut in range(len(written)):
        assert "".join(read([written[:cut], written[cut:]])) == text


def test_the_text_is_not_held_back() -> None:
    assert read(['{"input":"ab', "c", "\\", "nd", '"}']) == ["ab", "c", "", "\nd", "", ""]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        pytest.param('{"input":"abc', "abc", id="cut in the text"),
        pytest.param('{"input":"abc\\', "abc", id="cut in an escape"),
        pytest.param('{"inp', "", id="cut before the text"),
        pytest.param("", "", id="nothing"),
        pytest.param("{}", "", id="no argument"),
        pytest.param('{ "input" : "abc" }', "abc", id="spaced"),
        pytest.param('{"b":1,"input":"abc"}', "abc", id="another argument"),
        pytest.param('{"patch":"abc"}', '{"patch":"abc"}', id="only another argument"),
        pytest.param('{"input":3}', '{"input":3}', id="no text"),
        pytest.param("*** Begin", "*** Begin", id="no JSON"),
        pytest.param("[1]", "[1]", id="no object"),
        pytest.param('{"input":"a\\qb"}', "a\\qb", id="an escape that JSON does not have"),
    ],
)
def test_arguments_that_are_not_what_was_declared(written: str, text: str) -> None:
    assert "".join(read([written])) == text
    assert "".join(read(list(written))) == text


def test_a_pattern_is_one_of_the_whole_text(model: ServedModel) -> None:
    asked = Responses().read(body(tools=[custom(format=grammar("regex", "a|b"))]), model)
    (declared,) = asked.options["tools"]

    assert declared["function"]["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:a|b)$"}


def test_a_grammar_is_refused_and_not_passed_over(model: ServedModel) -> None:
    with pytest.raises(Fault, match="cannot hold a call to a grammar") as caught:
        Responses().read(body(tools=[custom(format=grammar("lark", LARK))]), model)

    assert caught.value.param == "tools[0].format.syntax"
