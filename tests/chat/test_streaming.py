"""Any ids in any pieces: the same answer, no exception, time that grows with the length only."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.chat.parse import StreamParser, TextParser, collect, merge
from openk3.protocol.messages import Delta, ToolArgumentsDelta, ToolCallEnd, ToolCallStart
from openk3.tokenizer.bpe import Tokenizer

Encoder = Callable[[str], list[int]]

NAMES = ["think", "response", "tools", "call", "argument", "json", "message", "foo", ""]
TAGS = [
    *(f"<|close|>{name}<|sep|>" for name in NAMES),
    *(f"<|open|>{name}<|sep|>" for name in NAMES),
    *(f'<|open|>argument key="{key}" type="{type_}"<|sep|>' for key in "ab" for type_ in ("string", "number")),
    '<|open|>call tool="f" index="1"<|sep|>',
    '<|open|>call index="1"<|sep|>',
    '<|open|>call tool="f"<|sep|><|open|>json<|sep|>',
]
FRAGMENTS = [
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|close|>think",
    '<|open|>call tool="f',
    ' key="',
    "[EOS]",
    "<|media_pad|>",
]
TEXTS = ["x", " ", "\n", "🙂", '"', "\\", "{", '{"a": 1}', "17", "[1, 2]", "think", "é&quot;"]

# Markup that a model might write, well-formed only by chance, and the same with any ids in between.
markup_text = st.lists(st.sampled_from([*TAGS, *FRAGMENTS, *TEXTS]), max_size=30).map("".join)
any_ids = st.lists(st.one_of(st.integers(-2, 600), st.sampled_from([0xF0, 0x9F, 0x99, 0x82, 258, 259, 260, 261])))
options = st.fixed_dictionaries({"channel": st.sampled_from(["think", "response"]), "tools_declared": st.booleans()})
reasons = st.sampled_from(["stop", "length"])
cuts = st.lists(st.integers(0, 300), max_size=12)


def parsed(parser: Any, pieces: Any, reason: Any) -> list[Delta]:
    return merge([delta for piece in pieces for delta in parser.push(piece)] + parser.finish(reason))


def cut(whole: Any, at: list[int]) -> list[Any]:
    edges = [0, *sorted(at), max(len(whole), 300)]
    return [whole[start:end] for start, end in pairwise(edges)]


def check_calls(deltas: list[Delta], reason: str) -> None:
    """Calls come one after the other; each that is ended holds a JSON object."""
    open_call: int | None = None
    arguments = ""
    started = 0
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            assert (open_call, delta.index) == (None, started)
            open_call, started, arguments = delta.index, started + 1, ""
        elif isinstance(delta, ToolArgumentsDelta):
            assert delta.index == open_call
            arguments += delta.text
        elif isinstance(delta, ToolCallEnd):
            assert delta.index == open_call
            assert isinstance(json.loads(arguments), dict)
            open_call = None
    assert open_call is None or reason == "length"


@given(before=markup_text, ids=any_ids, after=markup_text, at=cuts, options=options, reason=reasons)
def test_pieces_make_no_difference(
    bytewise: Tokenizer,
    markup: Encoder,
    before: str,
    ids: list[int],
    after: str,
    at: list[int],
    options: dict[str, Any],
    reason: str,
) -> None:
    written = [*markup(before), *ids, *markup(after)]
    at_once = parsed(StreamParser(bytewise, **options), [written], reason)
    one_by_one = parsed(StreamParser(bytewise, **options), [[token] for token in written], reason)
    assert one_by_one == at_once
    assert parsed(StreamParser(bytewise, **options), cut(written, at), reason) == at_once
    check_calls(at_once, reason)


@given(text=markup_text, options=options)
def test_arguments_of_a_stopped_answer_are_an_object(
    bytewise: Tokenizer, markup: Encoder, text: str, options: dict[str, Any]
) -> None:
    turn = collect(parsed(StreamParser(bytewise, **options), [markup(text)], "stop"), "stop")
    for call in turn.tool_calls:
        assert isinstance(json.loads(str(call.arguments)), dict)
    assert turn.finish_reason == ("tool_calls" if turn.tool_calls else "stop")


@given(payload=st.lists(st.sampled_from(TEXTS)).map("".join), after=markup_text, at=cuts, reason=reasons)
def test_arguments_that_are_one_payload(
    bytewise: Tokenizer, markup: Encoder, payload: str, after: str, at: list[int], reason: Any
) -> None:
    written = markup(f'<|open|>call tool="f"<|sep|><|open|>json<|sep|>{payload}<|close|>json<|sep|>{after}')
    parser = StreamParser(bytewise, channel="response", tools_declared=True)
    deltas = parsed(parser, cut(written, at), reason)
    check_calls(deltas, reason)
    if payload.strip():
        made = str(collect(deltas, reason).tool_calls[0].arguments)
        assert made == payload or json.loads(made) == {"input": payload}


@given(text=markup_text, options=options, reason=reasons)
def test_tags_never_reach_the_reader(
    bytewise: Tokenizer, markup: Encoder, text: str, options: dict[str, Any], reason: Any
) -> None:
    turn = collect(parsed(StreamParser(bytewise, **options), [markup(text)], reason), reason)
    shown = f"{turn.reasoning}{turn.content}{turn.tool_calls}"
    assert "<|" not in shown
    assert "[EOS]" not in shown


@given(text=markup_text.filter(lambda text: "[EOS]" not in text and "<|media" not in text), at=cuts, options=options)
def test_text_parser_agrees_with_ids(
    bytewise: Tokenizer, markup: Encoder, text: str, at: list[int], options: dict[str, Any]
) -> None:
    by_ids = parsed(StreamParser(bytewise, **options), [markup(text)], "stop")
    assert parsed(TextParser(**options), cut(text, at), "stop") == by_ids
    assert parsed(TextParser(**options), text, "stop") == by_ids


@given(ids=st.lists(st.integers(163_500, 163_900) | st.integers(0, 163_583) | st.sampled_from(range(163_584, 163_590))))
def test_no_ids_of_the_published_vocabulary_raise(published: Tokenizer, ids: list[int]) -> None:
    parser = StreamParser(published, channel="think", tools_declared=True)
    check_calls(parsed(parser, [[token] for token in ids], "stop"), "stop")


CALL = '<|open|>call tool="f"<|sep|>'
STRING = f'{CALL}<|open|>argument key="a" type="string"<|sep|>'
OBJECT = f'{CALL}<|open|>argument key="a" type="object"<|sep|>'


# Shapes at which a parser that looks again at what it has seen would take 10^10 steps: the time limit is the test.
@pytest.mark.timeout(60)
@pytest.mark.parametrize("one_by_one", [True, False], ids=["one by one", "at once"])
@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        pytest.param("", "a", id="text"),
        pytest.param("<|close|>think<|sep|>", " ", id="whitespace between channels"),
        pytest.param("<|close|>think<|sep|>", "a", id="text between channels"),
        pytest.param("<|open|>", "a", id="tag without end"),
        pytest.param("<|open|>x ", "a", id="attributes without value"),
        pytest.param("<|open|>x ", 'a="', id="attributes without end"),
        pytest.param("<|open|>x ", ' a=""', id="many attributes"),
        pytest.param("", "<|open|>", id="tags without name"),
        pytest.param("", '<|open|>call tool="f"<|sep|>', id="calls"),
        pytest.param(STRING, '"', id="string"),
        pytest.param(OBJECT, "[", id="value without end"),
        pytest.param(f"{CALL}<|open|>json<|sep|>", " ", id="whitespace before JSON"),
        pytest.param(f"{CALL}<|open|>json<|sep|>", "[", id="JSON without end"),
    ],
)
def test_time_grows_with_the_length_only(
    bytewise: Tokenizer, markup: Encoder, start: str, repeated: str, one_by_one: bool
) -> None:
    piece = markup(repeated)
    written = [*markup(start), *(piece * (100_000 // len(piece)))]
    parser = StreamParser(bytewise, channel="think", tools_declared=True)
    deltas = parsed(parser, [[token] for token in written] if one_by_one else [written], "stop")
    check_calls(deltas, "stop")
