"""What a model's ids mean, rule by rule, with a vocabulary of single bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from openk3.chat.parse import StreamParser, collect, count_calls, merge
from openk3.protocol.messages import (
    AssistantTurn,
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
)
from openk3.tokenizer.bpe import Tokenizer

Encoder = Callable[[str], list[int]]
Parse = Callable[..., AssistantTurn]
END = "<|end_of_msg|>"
SEP = "<|sep|>"


def opening(name: str, **attributes: str) -> str:
    return f"<|open|>{name}" + "".join(f' {key}="{value}"' for key, value in attributes.items()) + SEP


def closing(name: str) -> str:
    return f"<|close|>{name}{SEP}"


def argument(key: str, type_: str, value: str) -> str:
    return opening("argument", key=key, type=type_) + value + closing("argument")


def call(tool: str, *values: str) -> str:
    return opening("call", tool=tool, index="1") + "".join(values) + closing("call")


def tools(*calls: str) -> str:
    return opening("tools") + "".join(calls) + closing("tools")


THOUGHT = f"Hm.{closing('think')}"
ANSWERED = f"{THOUGHT}{opening('response')}Hi{closing('response')}"
FINISHED = f"{closing('message')}{END}"


@pytest.fixture
def deltas_of(bytewise: Tokenizer, markup: Encoder) -> Callable[..., list[Delta]]:
    def deltas(text: str, *, reason: Any = "stop", channel: Any = "think", declared: bool = True) -> list[Delta]:
        parser = StreamParser(bytewise, channel=channel, tools_declared=declared)
        return merge([delta for token in markup(text) for delta in parser.push([token])] + parser.finish(reason))

    return deltas


@pytest.fixture
def parse(deltas_of: Callable[..., list[Delta]]) -> Parse:
    def turn(text: str, *, reason: Any = "stop", **options: Any) -> AssistantTurn:
        return collect(deltas_of(text, reason=reason, **options), reason)

    return turn


class TestChannels:
    def test_reasoning_and_response(self, parse: Parse) -> None:
        assert parse(ANSWERED + FINISHED) == AssistantTurn("Hm.", "Hi", (), "stop")

    def test_without_thinking(self, parse: Parse) -> None:
        assert parse(f"Hi{closing('response')}{FINISHED}", channel="response") == AssistantTurn(None, "Hi", (), "stop")

    def test_nothing(self, parse: Parse) -> None:
        assert parse(END) == AssistantTurn(None, None, (), "stop")

    @pytest.mark.parametrize(
        "ending",
        [closing("response") + FINISHED, FINISHED, END, "", tools(call("f")) + FINISHED],
        ids=["close response", "close message", "end of message", "engine stopped", "tools"],
    )
    def test_ends_of_a_response(self, parse: Parse, ending: str) -> None:
        turn = parse(f"{THOUGHT}{opening('response')}Hi{ending}")
        assert (turn.reasoning, turn.content) == ("Hm.", "Hi")

    def test_whitespace_between_channels_is_dropped(self, parse: Parse) -> None:
        response = f"{opening('response')}Hi{closing('response')}"
        turn = parse(f"{THOUGHT}\n {response}\n\n{tools(call('f'))}\n{closing('message')}\n{END}")
        assert (turn.reasoning, turn.content, len(turn.tool_calls)) == ("Hm.", "Hi", 1)

    def test_text_between_channels_is_the_response_if_there_is_no_other(self, parse: Parse) -> None:
        assert parse(f"{THOUGHT}\nHi there\n{FINISHED}").content == "Hi there"
        assert parse(f"{THOUGHT} stray {opening('response')}Hi{closing('response')} stray{FINISHED}").content == "Hi"

    def test_text_after_the_message_is_dropped(self, parse: Parse) -> None:
        assert parse(f"{ANSWERED}{FINISHED}more{opening('response')}more{END}").content == "Hi"
        assert parse(f"{ANSWERED}{closing('message')}more{opening('tools')}{call('f')}") == parse(ANSWERED)

    def test_another_message_is_not_part_of_the_answer(self, parse: Parse) -> None:
        run_on = f"{ANSWERED}{opening('message', role='user')}And you?{closing('message')}"
        assert parse(run_on) == AssistantTurn("Hm.", "Hi", (), "stop")

    def test_another_message_ends_an_unclosed_response(self, parse: Parse) -> None:
        run_on = f"{THOUGHT}{opening('response')}Hi{opening('message', role='user')}And you?{END}"
        assert parse(run_on) == AssistantTurn("Hm.", "Hi", (), "stop")

    def test_a_channel_opened_again(self, parse: Parse) -> None:
        again = f"Hm.{opening('think')} So.{closing('think')}{opening('response')}H{opening('response')}i{FINISHED}"
        assert parse(again) == AssistantTurn("Hm. So.", "Hi", (), "stop")

    def test_thinking_after_the_response(self, parse: Parse) -> None:
        turn = parse(f"{ANSWERED}{opening('think')} Wait.{closing('think')}{FINISHED}")
        assert (turn.reasoning, turn.content) == ("Hm. Wait.", "Hi")

    @pytest.mark.parametrize("name", ["response", "tools", "call", "argument", "json", "foo", ""])
    def test_closing_what_is_not_open_says_nothing(self, parse: Parse, name: str) -> None:
        assert parse(f"H{closing(name)}m.{closing('think')}").reasoning == "Hm."

    def test_unknown_tags_and_tokens_say_nothing(self, parse: Parse) -> None:
        turn = parse(f"H{opening('foo', bar='x')}m.<|sep|>[EOS]<|media_pad|><|reserved_token_264|>{closing('foo')}")
        assert turn.reasoning == "Hm."


class TestCalls:
    def test_several(self, parse: Parse) -> None:
        first = call("get", argument("city", "string", "Oslo"), argument("days", "number", "2"))
        turn = parse(ANSWERED + tools(first, call("get")) + FINISHED)
        calls = (ToolCall("get_0", "get", '{"city":"Oslo","days":2}'), ToolCall("get_1", "get", "{}"))
        assert turn == AssistantTurn("Hm.", "Hi", calls, "tool_calls")

    def test_deltas_stream(self, deltas_of: Callable[..., list[Delta]]) -> None:
        assert deltas_of(ANSWERED + tools(call("f", argument("a", "string", "x"))) + FINISHED) == [
            ReasoningDelta("Hm."),
            ContentDelta("Hi"),
            ToolCallStart(0, "f_0", "f"),
            ToolArgumentsDelta(0, '{"a":"x"}'),
            ToolCallEnd(0),
        ]

    @pytest.mark.parametrize(
        ("type_", "value", "expected"),
        [
            ("string", 'say "hi"\\\n\x00', '"say \\"hi\\"\\\\\\n\\u0000"'),
            ("string", "17", '"17"'),
            ("string", "", '""'),
            ("number", " 2 ", "2"),
            ("number", "1.5", "1.5"),
            ("boolean", "true", "true"),
            ("null", "null", "null"),
            ("object", '{"a": [1, {"é": "ü"}]}', '{"a":[1,{"é":"ü"}]}'),
            ("array", "[ ]", "[]"),
            ("number", "seventeen", '"seventeen"'),
            ("boolean", "True", '"True"'),
            ("number", "", '""'),
            ("object", '{"a": ', '"{\\"a\\": "'),
            ("number", "NaN", '"NaN"'),
            ("number", "1e999", "1e999"),
            ("array", '[-1.0E+999, "1e999", 1.50, {"k": [2e400]}]', '[-1.0E+999,"1e999",1.5,{"k":[2e400]}]'),
            ("object", '{"\\ud83d": 1e999, "é": "é"}', '{"\\ud83d":1e999,"é":"é"}'),
            ("array", "[1e999, -Infinity]", '"[1e999, -Infinity]"'),
            ("number", "1e-999", "0.0"),
            ("string2", "17", "17"),
            ("string", "🙂", '"🙂"'),
            ("object", '"\\ud83d"', '"\\ud83d"'),
            ("number", "9" * 5000, f'"{"9" * 5000}"'),
            ("array", "[" * 100_000, f'"{"[" * 100_000}"'),
        ],
        ids=lambda value: ascii(value)[:24],
    )
    def test_values(self, parse: Parse, type_: str, value: str, expected: str) -> None:
        (made,) = parse(tools(call("f", argument("a", type_, value)))).tool_calls
        assert made.arguments == f'{{"a":{expected}}}'
        json.loads(made.arguments)

    def test_attributes_are_unescaped(self, parse: Parse) -> None:
        (made,) = parse(tools(call("a&quot;&amp;quot;", argument("k&amp;&quot;", "string", "&amp;")))).tool_calls
        assert (made.name, made.id) == ('a"&quot;', 'a"&quot;_0')
        assert json.loads(str(made.arguments)) == {'k&"': "&amp;"}

    def test_index_in_the_tag_does_not_count(self, parse: Parse) -> None:
        made = parse(tools(opening("call", tool="f", index="9") + closing("call"), call("g"))).tool_calls
        assert [one.id for one in made] == ["f_0", "g_1"]

    @pytest.mark.parametrize(
        "tag",
        [opening("call"), opening("call", index="1"), opening("call", tool=""), '<|open|>call tool="f<|sep|>'],
        ids=["no attributes", "no tool", "empty tool", "no closing quote"],
    )
    def test_without_a_tool_is_dropped(self, parse: Parse, tag: str) -> None:
        turn = parse(ANSWERED + tools(tag + argument("a", "string", "x") + closing("call"), call("g")))
        assert turn.tool_calls == (ToolCall("g_0", "g", "{}"),)

    def test_argument_without_a_key_is_dropped(self, parse: Parse) -> None:
        keyless = opening("argument", type="string") + "x" + closing("argument")
        assert parse(tools(call("f", keyless, argument("a", "number", "1")))).tool_calls[0].arguments == '{"a":1}'

    def test_argument_without_a_type_is_json_or_text(self, parse: Parse) -> None:
        values = [opening("argument", key=key) + value + closing("argument") for key, value in (("a", "1"), ("b", "x"))]
        assert parse(tools(call("f", *values))).tool_calls[0].arguments == '{"a":1,"b":"x"}'

    @pytest.mark.parametrize("text", ['{"a": 1}', "{}", ' {"a": 1}\n'], ids=repr)
    def test_json_payload_is_passed_on_as_it_is(self, parse: Parse, text: str) -> None:
        payload = opening("json", type="object") + text + closing("json")
        assert parse(tools(call("f", payload))).tool_calls[0].arguments == text

    @pytest.mark.parametrize(
        "text", ["{bad", "[1]", "17", '"é\\"', '{"a": NaN}', "{'a': 1}", "[" * 100_000], ids=lambda text: text[:10]
    )
    @pytest.mark.parametrize("ending", [closing("json") + closing("call"), closing("call"), END, ""], ids=repr)
    def test_json_payload_that_is_no_object_is_the_input(self, parse: Parse, text: str, ending: str) -> None:
        unclosed = opening("tools") + opening("call", tool="f") + opening("json") + text
        assert json.loads(str(parse(unclosed + ending).tool_calls[0].arguments)) == {"input": text}

    def test_json_payload_comes_when_it_closes(self, bytewise: Tokenizer, markup: Encoder) -> None:
        parser = StreamParser(bytewise, channel="response", tools_declared=True)
        parser.push(markup(opening("tools") + opening("call", tool="f") + opening("json")))
        assert parser.push(markup('{"a": 1}')) == []
        assert parser.push(markup(closing("json"))) == [ToolArgumentsDelta(0, '{"a": 1}')]

    def test_json_payload_cut_at_a_limit_comes_as_it_is(self, bytewise: Tokenizer, markup: Encoder) -> None:
        parser = StreamParser(bytewise, channel="response", tools_declared=True)
        parser.push(markup(opening("tools") + opening("call", tool="f") + opening("json") + '{"a": '))
        assert parser.finish("length") == [ToolArgumentsDelta(0, '{"a": ')]

    @pytest.mark.parametrize("text", ["", " \n"], ids=repr)
    def test_empty_json_payload_is_no_arguments(self, parse: Parse, text: str) -> None:
        payload = opening("json") + text + closing("json")
        assert parse(tools(call("f", payload))).tool_calls[0].arguments == "{}"
        assert parse(tools(call("f", payload, argument("a", "number", "1")))).tool_calls[0].arguments == '{"a":1}'

    def test_json_payload_and_arguments_do_not_mix(self, parse: Parse) -> None:
        payload, single = opening("json") + '{"j":1}' + closing("json"), argument("a", "number", "1")
        assert parse(tools(call("f", payload, single, payload))).tool_calls[0].arguments == '{"j":1}'
        assert parse(tools(call("f", single, payload))).tool_calls[0].arguments == '{"a":1}'

    def test_text_between_the_tags_is_dropped(self, parse: Parse) -> None:
        body = (
            f"{opening('tools')} x {opening('call', tool='f')} x {argument('a', 'number', '1')} x {closing('call')} x "
        )
        turn = parse(f"{ANSWERED}{body}{closing('tools')}")
        assert turn == AssistantTurn("Hm.", "Hi", (ToolCall("f_0", "f", '{"a":1}'),), "tool_calls")

    @pytest.mark.parametrize(
        "ending",
        [
            closing("argument") + closing("call") + closing("tools"),
            closing("json"),
            closing("call"),
            closing("tools"),
            closing("message"),
            END,
            "",
            opening("response"),
            opening("argument", key="a"),
            opening("json"),
        ],
    )
    def test_what_the_model_leaves_open_ends_with_what_is_around_it(self, parse: Parse, ending: str) -> None:
        unclosed = opening("tools") + opening("call", tool="f") + opening("argument", key="a", type="string") + "x"
        turn = parse(ANSWERED + unclosed + ending)
        assert turn == AssistantTurn("Hm.", "Hi", (ToolCall("f_0", "f", '{"a":"x"}'),), "tool_calls")

    def test_call_within_a_call_ends_it(self, parse: Parse) -> None:
        nested = opening("call", tool="f") + opening("argument", key="a", type="string") + "x" + call("g")
        made = parse(ANSWERED + opening("tools") + nested + closing("tools")).tool_calls
        assert made == (ToolCall("f_0", "f", '{"a":"x"}'), ToolCall("g_1", "g", "{}"))

    def test_call_without_a_tools_tag(self, parse: Parse) -> None:
        turn = parse(f"{THOUGHT}{opening('response')}Hi{call('f', argument('a', 'string', 'x'))}{FINISHED}")
        assert turn == AssistantTurn("Hm.", "Hi", (ToolCall("f_0", "f", '{"a":"x"}'),), "tool_calls")

    def test_ids_go_on_over_the_conversation(self, bytewise: Tokenizer, markup: Encoder) -> None:
        history = [Message(role="assistant", tool_calls=(ToolCall("f_0", "f", None), ToolCall("f_1", "f", None)))]
        options: dict[str, Any] = {"channel": "think", "tools_declared": True, "call_id_offset": count_calls(history)}
        parser = StreamParser(bytewise, **options)
        starts = [delta for delta in parser.push(markup(tools(call("f")))) if isinstance(delta, ToolCallStart)]
        assert starts == [ToolCallStart(0, "f_2", "f")]


class TestEnds:
    def test_cut_in_a_call_closes_nothing(self, deltas_of: Callable[..., list[Delta]]) -> None:
        unclosed = opening("tools") + opening("call", tool="f") + opening("argument", key="a", type="string") + "Os"
        assert deltas_of(unclosed, reason="length") == [ToolCallStart(0, "f_0", "f"), ToolArgumentsDelta(0, '{"a":"Os')]

    def test_cut_in_a_tag_drops_it(self, parse: Parse) -> None:
        cut = f"{THOUGHT}{opening('response')}Hi<|open|>tools"
        assert parse(cut, reason="length") == AssistantTurn("Hm.", "Hi", (), "length")
        assert parse(f'{cut}{SEP}<|open|>call tool="f"', reason="length") == AssistantTurn("Hm.", "Hi", (), "length")
        assert parse(f'{cut}{SEP}<|open|>call tool="f"', reason="stop").tool_calls == (ToolCall("f_0", "f", "{}"),)

    def test_cut_after_calls_is_not_tool_calls(self, parse: Parse) -> None:
        turn = parse(ANSWERED + tools(call("f")), reason="length")
        assert (len(turn.tool_calls), turn.finish_reason) == (1, "length")

    def test_cut_right_after_a_call_leaves_it_whole(self, deltas_of: Callable[..., list[Delta]]) -> None:
        assert deltas_of(opening("tools") + call("f"), reason="length") == [
            ToolCallStart(0, "f_0", "f"),
            ToolArgumentsDelta(0, "{}"),
            ToolCallEnd(0),
        ]

    def test_cut_in_a_character(self, bytewise: Tokenizer) -> None:
        parser = StreamParser(bytewise, channel="think", tools_declared=False)
        assert parser.push([0x61, 0xF0, 0x9F]) == [ReasoningDelta("a")]
        assert parser.finish("length") == []

    def test_ended_in_a_character(self, bytewise: Tokenizer) -> None:
        parser = StreamParser(bytewise, channel="think", tools_declared=False)
        assert parser.push([0x61, 0xF0, 0x9F]) == [ReasoningDelta("a")]
        assert parser.finish("stop") == [ReasoningDelta("\ufffd")]

    def test_character_does_not_reach_over_a_tag(self, bytewise: Tokenizer, markup: Encoder) -> None:
        parser = StreamParser(bytewise, channel="think", tools_declared=False)
        ids = [0xF0, 0x9F, *markup(closing("think") + opening("response")), 0x99, 0x82]
        assert parser.push(ids) == [ReasoningDelta("\ufffd"), ContentDelta("\ufffd\ufffd")]

    def test_left_early(self) -> None:
        turn = collect([ContentDelta("H"), ToolCallStart(0, "f_0", "f"), ToolArgumentsDelta(0, "{")], None)
        assert turn == AssistantTurn(None, "H", (ToolCall("f_0", "f", "{"),), None)

    def test_nothing_comes_after_the_finish(self, bytewise: Tokenizer, markup: Encoder) -> None:
        parser = StreamParser(bytewise, channel="think", tools_declared=True)
        parser.push(markup("Hm"))
        assert parser.finish("stop") == []
        assert parser.push(markup(f".{closing('think')}{opening('response')}x")) == []
        assert parser.finish("stop") == []

    @pytest.mark.parametrize(
        ("given", "expected"), [("stop", "tool_calls"), ("tool_calls", "tool_calls"), ("length", "length")]
    )
    def test_finish_reason_while_streaming(
        self, bytewise: Tokenizer, markup: Encoder, given: Any, expected: str
    ) -> None:
        parser = StreamParser(bytewise, channel="think", tools_declared=True)
        parser.push(markup(tools(call("f"))))
        assert parser.finish_reason(given) == expected


def test_in_reasoning_follows_the_channel(bytewise: Tokenizer, markup: Encoder) -> None:
    parser = StreamParser(bytewise, channel="think", tools_declared=True)
    assert parser.in_reasoning
    parser.push(markup("Hm.<|close|>think"))
    assert parser.in_reasoning
    parser.push(markup(SEP))
    assert not parser.in_reasoning


def test_in_response_follows_the_channel(bytewise: Tokenizer, markup: Encoder) -> None:
    parser = StreamParser(bytewise, channel="think", tools_declared=True)
    steps = ["Hm.", closing("think"), opening("response"), "Hi", closing("response"), opening("tools"), call("f"), END]
    active = []
    for step in steps:
        parser.push(markup(step))
        active.append(parser.in_response)
    assert active == [False, False, True, True, False, False, False, False]
    assert StreamParser(bytewise, channel="response", tools_declared=True).in_response
