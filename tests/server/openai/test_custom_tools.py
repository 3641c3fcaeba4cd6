"""Custom tools: their text out of the JSON of arguments, in whatever pieces it comes, and what it can be held to."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from openk3.chat.grammar import answer_grammar, token_bytes
from openk3.engine.grammar import GrammarCompiler
from openk3.errors import EngineError
from openk3.protocol.messages import ToolDeclaration
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.custom_tools import CustomInput, custom_arguments
from openk3.server.openai.responses import Responses
from tests.cli.scripted import spell
from tests.server.openai.responses_harness import LARK, body, call, calling, custom, function, grammar

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


CODEX = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""


@pytest.mark.parametrize(
    ("definition", "patch", "is_allowed"),
    [
        (LARK, "*** Begin Patch\n+a\n-b\n*** End Patch", True),
        (LARK, "*** Begin Patch\na\n*** End Patch", False),
        (LARK, "*** Begin Patch\n", False),
        (CODEX, "*** Begin Patch\n*** Add File: a b\n+c\n+\n*** Delete File: d\n*** End Patch", True),
        (CODEX, "*** Begin Patch\n*** Add File: a b\nc\n*** End Patch", False),
    ],
)
def test_a_call_is_held_to_its_grammar(model: ServedModel, definition: str, patch: str, is_allowed: bool) -> None:
    tools = [custom("other"), custom(format=grammar("lark", definition)), function()]
    asked = Responses().read(body(tools=tools), model)
    said = calling(call("apply_patch", "input", patch), call("other", "input", "<any>\n", 2), reasoning="r", text="t")

    assert follows(model, asked.options["tools"], said) is is_allowed


def follows(model: ServedModel, tools: Sequence[ToolDeclaration], said: str) -> bool:
    """Tell whether the grammar of an answer with these tools takes ``said``."""
    tokenizer = model.tokenizer
    wanted = answer_grammar(channel="think", special=tokenizer.special, tools=tools)
    assert wanted is not None
    stops = (tokenizer.special.end_of_msg, tokenizer.special.eos)
    matcher = GrammarCompiler(token_bytes(tokenizer), stops, tokenizer.vocab_size).compile(wanted)
    try:
        for token in spell(tokenizer, said):
            matcher.accept(token)
    except EngineError:
        return False
    return True


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("start: x", "no grammar"),
        ("start: <[5]>", "special tokens"),
        ('start: "a" }\nx: {', "no grammar"),
        ('start: "a"\n' + "\n" * 3000, "lines"),
    ],
)
def test_a_grammar_that_is_none_is_refused(model: ServedModel, definition: str, expected: str) -> None:
    with pytest.raises(Fault, match=expected) as caught:
        Responses().read(body(tools=[custom(format=grammar("lark", definition))]), model)

    assert caught.value.param == "tools[0].format.definition"
