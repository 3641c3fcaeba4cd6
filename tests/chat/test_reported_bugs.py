"""Faults that were reported of other implementations of this format; each once as a test, under where it was reported.

Unusual: most are parsed as a stream, at once, and as text, because each of these went wrong in one and not in another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from openk3.chat.parse import StreamParser, TextParser, collect, merge
from openk3.chat.render import render
from openk3.protocol.messages import AssistantTurn, ContentDelta, Delta, Message, ToolArgumentsDelta, ToolCall
from openk3.tokenizer.bpe import Tokenizer

Encoder = Callable[[str], list[int]]
Parse = Callable[..., AssistantTurn]

CALL = (
    '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>'
    '<|open|>argument key="a" type="string"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
)
CALLED = (ToolCall("f_0", "f", '{"a":"x"}'),)
END = "<|close|>message<|sep|><|end_of_msg|>"


def run(parser: Any, pieces: Sequence[Any], reason: Any) -> AssistantTurn:
    return collect([delta for piece in pieces for delta in parser.push(piece)] + parser.finish(reason), reason)


@pytest.fixture(params=["one by one", "at once", "text by character", "text at once"])
def parse(request: pytest.FixtureRequest, bytewise: Tokenizer, markup: Encoder) -> Parse:
    def turn(text: str, *, channel: Any = "think", declared: bool = True, reason: Any = "stop") -> AssistantTurn:
        options: dict[str, Any] = {"channel": channel, "tools_declared": declared}
        match request.param:
            case "one by one":
                return run(StreamParser(bytewise, **options), [[token] for token in markup(text)], reason)
            case "at once":
                return run(StreamParser(bytewise, **options), [markup(text)], reason)
            case "text by character":
                return run(TextParser(**options), text, reason)
            case _:
                return run(TextParser(**options), [text], reason)

    return turn


class TestRow1:
    """vllm-project/vllm#53246: the think channel is not closed before another one opens."""

    def test_before_tools(self, parse: Parse) -> None:
        assert parse(f"Hm.{CALL}{END}") == AssistantTurn("Hm.", None, CALLED, "tool_calls")

    def test_before_the_response(self, parse: Parse) -> None:
        assert parse(f"Hm.<|open|>response<|sep|>Hi<|close|>response<|sep|>{END}") == AssistantTurn(
            "Hm.", "Hi", (), "stop"
        )


@pytest.mark.parametrize(
    "terminator",
    [
        "<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        "<|open|>tools<|sep|>",
        "<|close|>think<|open|>",
        "<|end_of_msg|>",
    ],
)
def test_row_2_end_of_reasoning_is_noticed(bytewise: Tokenizer, markup: Encoder, terminator: str) -> None:
    """vllm-project/vllm#54273."""
    parser = StreamParser(bytewise, channel="think", tools_declared=True)
    parser.push(markup("Hm."))
    assert parser.in_reasoning
    parser.push(markup(terminator))
    assert not parser.in_reasoning


def test_row_3_closing_tags_are_never_content(parse: Parse) -> None:
    """vllm-project/vllm#51399: also where the response itself is not closed."""
    assert parse(f"<|close|>think<|sep|><|open|>response<|sep|>Hi{END}").content == "Hi"


def test_row_4_markers_with_spaces_inserted(parse: Parse) -> None:
    """vllm-project/vllm#50367."""
    spaced = (
        "Hm.<|close|> think <|sep|> <|open|> response <|sep|>Hi<|close|> response <|sep|> <|close|> message <|sep|>"
    )
    assert parse(spaced) == AssistantTurn("Hm.", "Hi", (), "stop")


def test_row_5_arguments_stream(bytewise: Tokenizer, markup: Encoder) -> None:
    """vllm-project/vllm#50604: each character of a string is out when it is in."""
    parser = StreamParser(bytewise, channel="response", tools_declared=True)
    tag = '<|open|>argument key="a" type="string"<|sep|>'
    parser.push(markup(f'<|open|>tools<|sep|><|open|>call tool="f"<|sep|>{tag}'))
    assert [parser.push(markup(piece)) for piece in "{ab"] == [[ToolArgumentsDelta(0, piece)] for piece in "{ab"]


def test_row_6_tools_opened_within_the_response(parse: Parse) -> None:
    """vllm-project/vllm#51355."""
    assert parse(f"Let me see.{CALL}{END}", channel="response") == AssistantTurn(
        None, "Let me see.", CALLED, "tool_calls"
    )


def test_row_7_cut_while_thinking(parse: Parse) -> None:
    """vllm-project/vllm#50258: all of it is reasoning."""
    assert parse("Hm. So", reason="length") == AssistantTurn("Hm. So", None, (), "length")


@pytest.mark.parametrize("value", ["Oslo", "{'a': 1}", "[1,", "", "01", "\\", "\x00"], ids=repr)
def test_row_9_values_that_are_not_json(parse: Parse, value: str) -> None:
    """sgl-project/sglang#34604: they become strings, nothing is raised."""
    text = (
        f'<|open|>call tool="f"<|sep|><|open|>argument key="a" type="object"<|sep|>{value}<|close|>argument<|sep|>{END}'
    )
    (made,) = parse(text).tool_calls
    assert json.loads(str(made.arguments)) == {"a": value}


@pytest.mark.parametrize("space", ["", "\n"], ids=["directly", "on a new line"])
def test_row_10_closing_think_without_its_separator(parse: Parse, space: str) -> None:
    """sgl-project/sglang#32567."""
    text = f"Hm.<|close|>think{space}<|open|>response<|sep|>Hi<|close|>response<|sep|>{END}"
    assert parse(text) == AssistantTurn("Hm.", "Hi", (), "stop")


class TestRow11:
    """sgl-project/sglang#39583: calls although no tool was declared."""

    def test_are_dropped(self, parse: Parse) -> None:
        text = f"Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|>{CALL}{END}"
        assert parse(text, declared=False) == AssistantTurn("Hm.", "Hi", (), "stop")

    def test_leave_nothing_behind(self, parse: Parse) -> None:
        assert parse(f"Hm.{CALL}{END}", declared=False) == AssistantTurn("Hm.", None, (), "stop")


def test_row_13_several_tags_at_once(bytewise: Tokenizer, markup: Encoder) -> None:
    """ai-dynamo/frontend-crates#152."""
    text = f"Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|>{CALL}{END}"
    parser = StreamParser(bytewise, channel="think", tools_declared=True)
    deltas = [*parser.push(markup(text)), *parser.finish("stop")]
    assert collect(deltas, "stop") == AssistantTurn("Hm.", "Hi", CALLED, "tool_calls")
    assert len(deltas) == 5


class TestRow14:
    """ai-dynamo/frontend-crates#196."""

    def test_repeated_argument_leaves_valid_json(self, parse: Parse) -> None:
        values = "".join(f'<|open|>argument key="a" type="number"<|sep|>{i}<|close|>argument<|sep|>' for i in (1, 2))
        (made,) = parse(f'<|open|>tools<|sep|><|open|>call tool="f"<|sep|>{values}{END}').tool_calls
        assert made.arguments == '{"a":1}'

    def test_call_of_another_tool_is_passed_on(self, parse: Parse) -> None:
        assert parse(f"Hm.{CALL}{END}", declared=True).tool_calls == CALLED


def test_row_15_stop_is_called_stop(parse: Parse) -> None:
    """ROCm/ATOM#1727: the reason does not name the token."""
    assert parse(f"Hm.{END}").finish_reason == "stop"


def test_row_16_channels_follow_the_tags_only(parse: Parse) -> None:
    """MoonshotAI/Kimi-K3#45: reasoning that talks of its end is still reasoning."""
    text = "I close think. response: </think> [EOS] <|im_end|> Now.<|close|>think<|sep|><|open|>response<|sep|>Hi"
    turn = parse(f"{text}{END}")
    assert (turn.reasoning or "").startswith("I close think. response: </think>")
    assert (turn.reasoning or "").endswith("Now.")
    assert turn.content == "Hi"


@pytest.mark.parametrize("text", ["Hm", "Hm.<|close|>think<|sep|><|open|>response<|sep|>H", f"Hm.{CALL}"], ids=repr)
def test_row_17_a_limit_is_length_in_every_way(parse: Parse, text: str) -> None:
    """odysseus-dev/odysseus#5863."""
    assert parse(text, reason="length").finish_reason == "length"


@pytest.mark.parametrize(
    ("written", "content"), [(f"llo<|close|>response<|sep|>{END}", "llo"), (END, None)], ids=["goes on", "ends at once"]
)
def test_row_18_partial_answer(bytewise: Tokenizer, markup: Encoder, written: str, content: str | None) -> None:
    """platberlitz/SillyBunny#801: what follows a prefix is content, and empty only if the model ends at once."""
    messages = [Message(role="assistant", content="He", reasoning="Hm.", partial=True)]
    prompt = render(messages, tokenizer=bytewise)
    parser = StreamParser(bytewise, channel=prompt.channel, tools_declared=False)
    assert run(parser, [markup(written)], "stop") == AssistantTurn(None, content, (), "stop")


def test_row_20_answers_do_not_mix(bytewise: Tokenizer, markup: Encoder) -> None:
    """BerriAI/litellm#35023: parsers share nothing."""
    texts = [f"R{i}.<|close|>think<|sep|><|open|>response<|sep|>é{i}{CALL.replace('x', str(i))}{END}" for i in range(8)]
    parsers = [StreamParser(bytewise, channel="think", tools_declared=True) for _ in texts]
    deltas: list[list[Delta]] = [[] for _ in texts]
    for step in zip(*map(markup, texts), strict=True):
        for number, token in enumerate(step):
            deltas[number] += parsers[number].push([token])
    for number, parser in enumerate(parsers):
        turn = collect(merge(deltas[number] + parser.finish("stop")), "stop")
        called = ToolCall("f_0", "f", f'{{"a":"{number}"}}')
        assert turn == AssistantTurn(f"R{number}.", f"é{number}", (called,), "tool_calls")


def test_row_22_call_straight_from_the_opened_response(parse: Parse) -> None:
    """sgl-project/sglang#39895: without thinking, a forced call starts inside the response."""
    assert parse(f"<|close|>response<|sep|>{CALL}{END}", channel="response").tool_calls == CALLED


def test_row_23_text_that_looks_like_a_call_is_text(bytewise: Tokenizer) -> None:
    """JustVugg/colibri#1226: only control ids make tags, not what spells them."""
    parser = StreamParser(bytewise, channel="response", tools_declared=True)
    assert parser.push(bytewise.encode(CALL + END)) == [ContentDelta(CALL + END)]
