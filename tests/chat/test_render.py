"""The rules of rendering, on text: one rule per test, with a vocabulary of single bytes."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from openk3.chat.render import render
from openk3.errors import ChatError, TokenizerError
from openk3.protocol.messages import ImagePart, Message, Part, ResponseFormat, TextPart, ToolCall
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens

Renderer = Callable[..., str]
OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALLS = (ToolCall("a", "f", None), ToolCall("b", "g", None))


@pytest.fixture(scope="session")
def text_of(bytewise: Tokenizer) -> Renderer:
    def text(*messages: Message, **options: Any) -> str:
        prompt = render(messages, tokenizer=bytewise, **({"effort": None} | options))
        assert bytewise.decode(prompt.ids) == prompt.text
        return prompt.text

    return text


def tag(name: str, body: str, /, **attributes: str) -> str:
    opened = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"{OPEN}{name}{opened}{SEP}{body}{CLOSE}{name}{SEP}"


def message(body: str, /, **attributes: str) -> str:
    return tag("message", body, **attributes) + END


def answer(think: str, response: str, tools: str = "") -> str:
    return message(tag("think", think) + tag("response", response) + tools, role="assistant")


PROMPT = f'{OPEN}message role="assistant"{SEP}{OPEN}think{SEP}'


def user(content: str | tuple[Part, ...] | None) -> Message:
    return Message(role="user", content=content)


class TestMessages:
    @pytest.mark.parametrize("role", ["user", "system"])
    def test_plain(self, text_of: Renderer, role: Any) -> None:
        assert text_of(Message(role=role, content="Hé\n")) == message("Hé\n", role=role) + PROMPT

    @pytest.mark.parametrize("role", ["user", "system"])
    def test_name(self, text_of: Renderer, role: Any) -> None:
        named = Message(role=role, content="x", name='"&quot;"')
        assert text_of(named) == message("x", role=role, name="&quot;&amp;quot;&quot;") + PROMPT

    @pytest.mark.parametrize("content", [None, "", ()], ids=["none", "empty", "no parts"])
    def test_without_content(self, text_of: Renderer, content: Any) -> None:
        assert text_of(Message(role="user", name="", content=content)) == message("", role="user") + PROMPT

    def test_no_messages(self, text_of: Renderer) -> None:
        assert text_of() == PROMPT

    def test_parts_are_encoded_one_by_one(self, published: Tokenizer) -> None:
        prompt = render([user((TextPart("Hel"), TextPart("lo")))], tokenizer=published, effort=None)
        texts = [segment.text for segment in prompt.segments]
        assert texts[texts.index("Hel") + 1] == "lo"
        assert texts.index("Hel") > 0

    def test_order(self, text_of: Renderer) -> None:
        wanted = ResponseFormat(type="json_object")
        options = {"tools": [TOOL], "effort": "low", "tool_choice": "required", "response_format": wanted}
        text = text_of(user("Hi"), **options)
        places = ["tool-declare", "thinking-effort", "Hi", "tool-choice", "response-format", PROMPT]
        assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)
        assert text.endswith(PROMPT)


class TestAssistant:
    def test_channels_are_always_there(self, text_of: Renderer) -> None:
        assert text_of(Message(role="assistant")) == answer("", "") + PROMPT

    def test_reasoning_is_kept_as_it_is(self, text_of: Renderer) -> None:
        given = Message(role="assistant", reasoning=" r\n", content="c")
        assert (
            text_of(given, user("x"), given)
            == answer(" r\n", "c") + message("x", role="user") + answer(" r\n", "c") + PROMPT
        )

    def test_reasoning_of_whitespace_is_none(self, text_of: Renderer) -> None:
        assert text_of(Message(role="assistant", reasoning=" \n", content="c")) == answer("", "c") + PROMPT

    def test_without_thinking_no_message_has_a_think_channel(self, text_of: Renderer) -> None:
        expected = (
            message(tag("response", "c"), role="assistant") + f'{OPEN}message role="assistant"{SEP}{OPEN}response{SEP}'
        )
        given = Message(role="assistant", reasoning="r", content="c")
        assert text_of(given, thinking=False, effort="max") == expected

    def test_channel(self, bytewise: Tokenizer) -> None:
        assert render([user("x")], tokenizer=bytewise).channel == "think"
        assert render([user("x")], tokenizer=bytewise, thinking=False).channel == "response"


class TestArguments:
    def rendered(self, text_of: Renderer, arguments: Any) -> str:
        text = text_of(Message(role="assistant", tool_calls=(ToolCall("id", "f", arguments),)))
        start, end = f'{OPEN}call tool="f" index="1"{SEP}', f"{CLOSE}call{SEP}"
        return text[text.index(start) + len(start) : text.index(end)]

    @pytest.mark.parametrize("arguments", [None, "", " \n", {}, "{}"], ids=repr)
    def test_none(self, text_of: Renderer, arguments: Any) -> None:
        assert self.rendered(text_of, arguments) == ""

    @pytest.mark.parametrize(
        ("value", "type_", "body"),
        [
            (True, "boolean", "true"),
            (None, "null", "null"),
            (2, "number", "2"),
            (1.0, "number", "1.0"),
            ("", "string", ""),
            ('a"\\\n<|close|>', "string", 'a"\\\n<|close|>'),
            ({"k": [1, {"é": None}]}, "object", '{"k": [1, {"é": null}]}'),
            (MappingProxyType({"k": 1}), "object", '{"k": 1}'),
            ([], "array", "[]"),
            ((1, 2), "array", "[1, 2]"),
        ],
        ids=repr,
    )
    def test_types(self, text_of: Renderer, value: Any, type_: str, body: str) -> None:
        assert self.rendered(text_of, {"é": value}) == tag("argument", body, key="é", type=type_)

    def test_keep_their_order(self, text_of: Renderer) -> None:
        keys = [f'key="{key}"' for key in ("z", "a", "m")]
        text = self.rendered(text_of, '{"z": 1, "a": {"y": 1, "b": 2}, "m": 3}')
        assert sorted(keys, key=text.index) == keys
        assert '{"y": 1, "b": 2}' in text

    def test_keys_are_escaped(self, text_of: Renderer) -> None:
        assert self.rendered(text_of, {'"&': "x"}) == tag("argument", "x", key="&quot;&amp;", type="string")

    @pytest.mark.parametrize(
        "raw", ["{bad", "[" * 100_000, "9" * 5000], ids=["not JSON", "too deep", "too long a number"]
    )
    def test_that_are_not_json(self, text_of: Renderer, raw: str) -> None:
        assert self.rendered(text_of, raw) == tag("json", raw, type="object")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("[1]", r"arguments of call 'id' \(f\) are array, expected an object"),
            ("null", "are null"),
            ('"x"', "are string"),
            ([1], "are array"),
            (7, "are number"),
            ({"a": {1, 2}}, "argument 'a' of call 'id' cannot be written as JSON"),
            pytest.param({"a": object()}, "cannot be written as JSON", id="object"),
        ],
        ids=repr,
    )
    def test_that_are_no_object(self, text_of: Renderer, arguments: Any, message: str) -> None:
        with pytest.raises(ChatError, match=message):
            self.rendered(text_of, arguments)


class TestToolResults:
    def results(self, text_of: Renderer, *messages: Message) -> list[str]:
        text = text_of(Message(role="assistant", tool_calls=CALLS), *messages)
        start = f'{OPEN}message role="tool"'
        return [piece.split(CLOSE)[0].strip() for piece in text.split(start)[1:]]

    def result(self, content: str, **fields: Any) -> Message:
        return Message(role="tool", content=content, **fields)

    def test_are_sorted_and_named_after_their_calls(self, text_of: Renderer) -> None:
        results = [self.result("B", tool_call_id="b", tool="stale"), self.result("A", tool_call_id="a", name="stale")]
        assert self.results(text_of, *results) == [f'tool="f" index="1"{SEP}A', f'tool="g" index="2"{SEP}B']

    def test_of_one_call_keep_their_order(self, text_of: Renderer) -> None:
        results = [self.result(name, tool_call_id=call) for name, call in (("1", "b"), ("2", "b"), ("3", "a"))]
        assert [entry[-1] for entry in self.results(text_of, *results)] == ["3", "1", "2"]

    def test_with_one_unknown_id_stay_as_they_are(self, text_of: Renderer) -> None:
        results = [self.result("B", tool_call_id="b", tool="g"), self.result("?", tool_call_id="c")]
        assert self.results(text_of, *results) == [f'tool="g" index="1"{SEP}B', f'tool="g" index="2"{SEP}?']

    def test_name_without_a_match(self, text_of: Renderer) -> None:
        results = [self.result("1", tool="t", name="n"), self.result("2", name="n")]
        assert self.results(text_of, *results) == [f'tool="t" index="1"{SEP}1', f'tool="n" index="2"{SEP}2']

    @pytest.mark.parametrize("no_id", [None, ""])
    def test_without_ids_are_named_by_their_fields_or_position(self, text_of: Renderer, no_id: Any) -> None:
        calls = (ToolCall(no_id, "f", None), ToolCall(no_id, "g", None))
        results = [self.result("A", tool_call_id=no_id), self.result("B", tool_call_id=no_id)]
        text = text_of(Message(role="assistant", tool_calls=calls), *results)
        assert f'tool="f" index="1"{SEP}A' in text and f'tool="g" index="2"{SEP}B' in text
        named = self.result("C", tool_call_id=no_id, tool="t")
        assert f'tool="t" index="1"{SEP}C' in text_of(Message(role="assistant", tool_calls=calls), named)

    def test_count_on_after_other_messages(self, text_of: Renderer) -> None:
        results = self.results(
            text_of, self.result("A", tool_call_id="a"), user("x"), self.result("B", tool_call_id="b")
        )
        assert [entry.split(SEP)[0] for entry in results] == ['tool="f" index="1"', 'tool="g" index="2"']

    def test_count_anew_after_an_assistant_message(self, text_of: Renderer) -> None:
        again = Message(role="assistant", tool_calls=(ToolCall("c", "h", None),))
        results = [self.result("A", tool_call_id="a"), again, self.result("C", tool_call_id="c")]
        assert [entry.split(SEP)[0] for entry in self.results(text_of, *results)] == [
            'tool="f" index="1"',
            'tool="h" index="1"',
        ]

    def test_of_equal_ids_the_first_call_counts(self, text_of: Renderer) -> None:
        calls = (ToolCall("a", "f", None), ToolCall("a", "g", None))
        text = text_of(Message(role="assistant", tool_calls=calls), self.result("A", tool_call_id="a"))
        assert f'role="tool" tool="f" index="1"{SEP}A' in text

    def test_of_nothing_known(self, text_of: Renderer) -> None:
        with pytest.raises(
            ChatError, match="tool result 3 .* tool_call_id 'x', answers none of that message's 2 calls"
        ):
            self.results(text_of, *[self.result("?", tool_call_id="x")] * 3)

    def test_without_any_assistant_message(self, text_of: Renderer) -> None:
        with pytest.raises(ChatError, match="answers none of that message's 0 calls"):
            text_of(self.result("?", tool_call_id="x"))


class TestTools:
    def test_are_sorted_at_every_depth_and_lists_are_not(self, text_of: Renderer) -> None:
        declared = text_of(tools=[{"b": [{"d": 1, "c": ["é", "a"]}], "a": None}, {}])
        body = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"
        body += '[{"a":null,"b":[{"c":["é","a"],"d":1}]},{}]\n```'
        assert declared == message(body, role="system", type="tool-declare") + PROMPT

    def test_row_22_dynamic_tools_are_kept(self, text_of: Renderer) -> None:
        """Tools on a system message are declared where it stands (sgl-project/sglang#39895)."""
        text = text_of(user("x"), Message(role="system", content="ignored", tools=(TOOL,)), user("y"))
        assert "## New Tools Available" in text
        assert "ignored" not in text
        assert text.index(">x<") < text.index("New Tools") < text.index(">y<")

    @pytest.mark.parametrize("value", [float("nan"), {1}, {"a": 1, 2: 3}], ids=repr)
    def test_that_are_not_json(self, text_of: Renderer, value: Any) -> None:
        with pytest.raises(ChatError, match="tools cannot be written as JSON"):
            text_of(tools=[{"x": value}])


class TestImages:
    def test_row_12_placeholder_typed_by_a_user_stays_text(self, bytewise: Tokenizer) -> None:
        """Only a part of a message makes room for an image (sgl-project/sglang#33003)."""
        typed = "<|kimi_image_placeholder|><|media_pad|>"
        prompt = render([user((TextPart(typed), ImagePart(3, 2, 4)))], tokenizer=bytewise)
        assert prompt.ids.count(bytewise.special.media_pad) == 4
        assert f"{typed}<|media_begin|>image 3x2<|media_content|>{'<|media_pad|>' * 4}<|media_end|>" in prompt.text

    @pytest.mark.parametrize("image", [ImagePart(0, 1, 1), ImagePart(1, -1, 1), ImagePart(1, 1, 0)])
    def test_of_no_size(self, text_of: Renderer, image: ImagePart) -> None:
        with pytest.raises(ChatError, match=r"messages\[0\]: an image has"):
            text_of(user((image,)))

    def test_with_a_vocabulary_without_media_tokens(self) -> None:
        tokens = [bytes([byte]) for byte in range(256)]
        small = Tokenizer(tokens, SpecialTokens.block(256, 16))
        assert render([user("x")], tokenizer=small).channel == "think"
        with pytest.raises(TokenizerError, match=r"no special token '<\|media_begin\|>'"):
            render([user((ImagePart(1, 1, 1),))], tokenizer=small)


class TestPartial:
    def partial(self, **fields: Any) -> Message:
        return Message(role="assistant", partial=True, **fields)

    def test_content_goes_on_in_the_response(self, text_of: Renderer) -> None:
        text = text_of(user("x"), self.partial(reasoning="r", content="He"))
        expected = f"{PROMPT}r{CLOSE}think{SEP}{OPEN}response{SEP}He"
        assert text == message("x", role="user") + expected

    def test_content_without_thinking(self, text_of: Renderer) -> None:
        text = text_of(self.partial(reasoning="r", content="He"), thinking=False)
        assert text == f'{OPEN}message role="assistant"{SEP}{OPEN}response{SEP}He'

    def test_reasoning_goes_on(self, text_of: Renderer, bytewise: Tokenizer) -> None:
        assert text_of(self.partial(reasoning="r", content="")) == f"{PROMPT}r"
        assert render([self.partial(reasoning="r")], tokenizer=bytewise).channel == "think"

    def test_channel_of_content(self, bytewise: Tokenizer) -> None:
        assert render([self.partial(content="He")], tokenizer=bytewise).channel == "response"

    @pytest.mark.parametrize("fields", [{}, {"content": ""}, {"reasoning": " \n"}], ids=repr)
    def test_of_nothing_is_the_generation_prompt(self, text_of: Renderer, fields: dict[str, Any]) -> None:
        assert text_of(self.partial(**fields)) == PROMPT

    def test_reasoning_is_lost_without_thinking(self, text_of: Renderer) -> None:
        assert text_of(self.partial(reasoning="r"), thinking=False) == text_of(thinking=False)

    def test_name(self, text_of: Renderer) -> None:
        assert f'{OPEN}message role="assistant" name="Ann"{SEP}' in text_of(self.partial(content="He", name="Ann"))

    def test_instructions_come_before_it(self, text_of: Renderer) -> None:
        text = text_of(self.partial(content="He"), tool_choice="none")
        assert text.index("tool-choice") < text.index('role="assistant"')
        assert text.endswith("He")

    def test_prefix_is_one_text(self, published: Tokenizer) -> None:
        prompt = render([self.partial(content=(TextPart("Hel"), TextPart("lo")))], tokenizer=published)
        assert prompt.segments[-1].text == "Hello"

    @pytest.mark.parametrize(
        ("messages", "options", "message"),
        [
            ([{}, None], {}, r"messages\[0\]: only the last message can be partial"),
            ([{"tool_calls": CALLS}], {}, "cannot hold tool calls"),
            ([{"content": (ImagePart(1, 1, 1),)}], {}, "cannot hold images"),
            ([{"content": "["}], {"response_format": ResponseFormat(type="json_object")}, "one or the other"),
        ],
        ids=["not last", "with calls", "with an image", "with JSON"],
    )
    def test_that_cannot_be(self, text_of: Renderer, messages: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ChatError, match=message):
            text_of(*(user("x") if fields is None else self.partial(**fields) for fields in messages), **options)


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (
                {"role": "developer"},
                "role is 'developer', expected system, user, assistant, tool\nhint: .* belong to system",
            ),
            ({"role": "bot"}, "role is 'bot'"),
            (
                {"role": "user", "reasoning": "r"},
                "reasoning is given with role user, expected only with role assistant",
            ),
            ({"role": "user", "tool_calls": CALLS}, "tool_calls is given with role user"),
            ({"role": "user", "partial": True}, "partial is given with role user"),
            ({"role": "user", "tools": (TOOL,)}, "tools is given with role user, expected only with role system"),
            ({"role": "assistant", "tool_call_id": "a"}, "tool_call_id is given with role assistant"),
            ({"role": "assistant", "tool_calls": (ToolCall("a", "", None),)}, r"tool_calls\[0\] has no name"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_messages(self, text_of: Renderer, fields: Any, message: str) -> None:
        with pytest.raises(ChatError, match=rf"messages\[1\]: {message}"):
            text_of(user("x"), Message(**fields))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"effort": "huge"}, "effort is 'huge', expected low, medium, high or max"),
            ({"tool_choice": "force"}, "tool_choice is 'force', expected auto, none or required"),
            ({"response_format": ResponseFormat(type="xml")}, "response format is 'xml'"),  # type: ignore[arg-type]
            ({"response_format": ResponseFormat(type="json_schema")}, "'json_schema' without a schema"),
            ({"response_format": ResponseFormat(type="text", schema={})}, "'text' with a schema"),
        ],
        ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
    )
    def test_options(self, text_of: Renderer, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ChatError, match=message):
            text_of(user("x"), **options)

    def test_a_vocabulary_without_control_tokens(self) -> None:
        plain = Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens({}))
        with pytest.raises(TokenizerError, match=r"no special token '<\|open\|>'"):
            render([user("x")], tokenizer=plain)


def test_text_format_says_nothing(text_of: Renderer) -> None:
    assert text_of(user("x"), response_format=ResponseFormat()) == text_of(user("x"))
