"""How answers look: on a terminal, without colour, through a pipe, as JSON."""

from __future__ import annotations

import io
import json

import pytest

from openk3.cli.answer_printer import AnswerPrinter
from openk3.cli.json_lines import JsonLinesPrinter, answer_object
from openk3.protocol.messages import (
    AssistantTurn,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
)
from openk3.protocol.sampling import Usage

ANSWER: list[Delta] = [ReasoningDelta("Hm"), ReasoningDelta("."), ContentDelta("Hel"), ContentDelta("lo")]

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 0, "reasoning_tokens": 0}


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def show(content: io.StringIO, reasoning: io.StringIO, deltas: list[Delta]) -> tuple[str, str]:
    printer = AnswerPrinter(content, reasoning)
    for delta in deltas:
        printer.show(delta)
    printer.close()
    return content.getvalue(), reasoning.getvalue()


def test_on_a_terminal_thinking_is_dim_and_set_off_by_a_line() -> None:
    screen = Screen()
    shown, _ = show(screen, screen, ANSWER)
    assert shown == "\x1b[2mHm\x1b[0m\x1b[2m.\x1b[0m\n\nHello\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_without_colour_words_say_what_is_thinking(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    screen = Screen()
    assert show(screen, screen, ANSWER)[0] == "[thinking] Hm.\n\nHello\n"


def test_through_pipes_only_the_answer_goes_to_stdout() -> None:
    assert show(io.StringIO(), io.StringIO(), ANSWER) == ("Hello\n", "[thinking] Hm.\n")


def test_an_answer_without_thinking_has_no_empty_lines() -> None:
    screen = Screen()
    assert show(screen, screen, [ContentDelta("Hello\n")])[0] == "Hello\n"
    assert show(io.StringIO(), io.StringIO(), []) == ("", "")


def test_an_answer_stopped_while_thinking_ends_its_line() -> None:
    assert show(io.StringIO(), io.StringIO(), ANSWER[:1]) == ("", "[thinking] Hm\n")


def test_control_characters_cannot_command_a_terminal() -> None:
    hostile = "a\x1b]0;title\x07\x9b2J\r\tb\n"
    screen = Screen()
    shown, _ = show(screen, screen, [ReasoningDelta(hostile), ContentDelta(hostile)])
    assert shown.count("\x1b") == 2  # our own, around the dim text
    assert shown.endswith("a\ufffd]0;title\ufffd\ufffd2J\ufffd\tb\n")
    # A program gets what the model wrote.
    assert show(io.StringIO(), io.StringIO(), [ContentDelta(hostile)])[0] == hostile


def test_json_lines() -> None:
    stream = io.StringIO()
    printer = JsonLinesPrinter(stream)
    calls = [ToolCallStart(0, "get_0", "get"), ToolArgumentsDelta(0, "{}"), ToolCallEnd(0)]
    for delta in [ReasoningDelta("é"), ContentDelta("b"), *calls]:
        printer.show(delta)
    printer.close()
    printer.end(AssistantTurn("é", "b", (), "stop"), Usage(3, 4))
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"type": "reasoning", "text": "é"},
        {"type": "content", "text": "b"},
        {"type": "tool_call", "index": 0, "id": "get_0", "name": "get"},
        {"type": "tool_arguments", "index": 0, "text": "{}"},
        {"type": "tool_call_end", "index": 0},
        {"type": "end", "finish_reason": "stop", "usage": USAGE},
    ]


def test_an_answer_as_one_object() -> None:
    turn = AssistantTurn(None, "b", (ToolCall("get_0", "get", {"a": 1}),), "tool_calls")
    assert answer_object(turn, Usage(3, 4)) == {
        "reasoning": None,
        "content": "b",
        "tool_calls": ({"id": "get_0", "name": "get", "arguments": {"a": 1}},),
        "finish_reason": "tool_calls",
        "usage": USAGE,
    }


def test_each_answer_says_anew_that_it_thinks() -> None:
    content, reasoning = io.StringIO(), io.StringIO()
    printer = AnswerPrinter(content, reasoning)
    for thought in ("one", "two"):  # the first answer has nothing but thinking
        printer.show(ReasoningDelta(thought))
        printer.close()
    assert reasoning.getvalue() == "[thinking] one\n[thinking] two\n" and content.getvalue() == ""
