"""Answers as events and whole: order, blocks, stop reasons, usage, and that the official client reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from openk3.chat.parse import collect
from openk3.llm.answer import Answer, Piece
from openk3.protocol.messages import ReasoningDelta, ToolArgumentsDelta, ToolCallStart
from openk3.protocol.sampling import Usage
from openk3.server.anthropic.messages_events import BlockEvents, MessageEvents, message_body
from openk3.server.endpoint import Event
from openk3.server.faults import Fault
from tests.cli.scripted import answer, spell
from tests.server.anthropic.conftest import Dialect

MakeDialect = Callable[..., Dialect]
TOOLS = [
    {
        "name": "get_weather",
        "description": "City weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]
ASK = {"model": "kimi-k3", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}


def call(index: int, **arguments: Any) -> str:
    """A call in the chat format."""
    elements = [
        f'<|open|>argument key="{key}" type="{"string" if isinstance(value, str) else "number"}"<|sep|>'
        f"{value if isinstance(value, str) else json.dumps(value)}<|close|>argument<|sep|>"
        for key, value in arguments.items()
    ]
    return f'<|open|>call tool="get_weather" index="{index}"<|sep|>{"".join(elements)}<|close|>call<|sep|>'


CALLS = (
    "Two calls.<|close|>think<|sep|><|open|>response<|sep|>Looking.<|close|>response<|sep|><|open|>tools<|sep|>"
    f"{call(1, city='Oslo', days=2)}{call(2, city='Bergen')}<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)


def check_order(events: Sequence[Event]) -> None:
    """Check what holds for the events of every complete answer."""
    names = [event.name for event in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    assert all(isinstance(event.data, dict) and event.data["type"] == event.name for event in events)
    index, is_open = -1, False
    for event in events[1:-2]:
        data = event.data
        assert isinstance(data, dict)
        if event.name == "content_block_start":
            assert not is_open
            index, is_open = index + 1, True
        else:
            assert is_open
        assert data["index"] == index
        if event.name == "content_block_stop":
            is_open = False
    assert not is_open


def described(events: Sequence[Event]) -> list[str]:
    """Name events with the type of their block or delta."""
    found: list[str] = []
    for event in events:
        assert isinstance(event.data, dict)
        inner = event.data.get("content_block") or event.data.get("delta") or {}
        name = f"{event.name} {inner.get('type', '')}".strip()
        if not (found and found[-1] == name):
            found.append(name)
    return found


def test_events_come_in_order_with_one_signature_at_the_end_of_thinking(dialect: MakeDialect) -> None:
    events = dialect(CALLS).events(ASK)
    check_order(events)
    assert described(events) == [
        "message_start",
        "content_block_start thinking",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop",
        "content_block_start text",
        "content_block_delta text_delta",
        "content_block_stop",
        "content_block_start tool_use",
        "content_block_delta input_json_delta",
        "content_block_stop",
        "content_block_start tool_use",
        "content_block_delta input_json_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert sum("signature" in str(event.data.get("delta")) for event in events if isinstance(event.data, dict)) == 1


def test_whole_message(dialect: MakeDialect) -> None:
    made = dialect(CALLS)
    body = made.whole(ASK)
    assert body["content"][0]["thinking"] == "Two calls." and len(body["content"][0]["signature"]) == 64
    assert body["content"][1:] == [
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "get_weather_0", "name": "get_weather", "input": {"city": "Oslo", "days": 2}},
        {"type": "tool_use", "id": "get_weather_1", "name": "get_weather", "input": {"city": "Bergen"}},
    ]
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "kimi-k3")
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["id"].startswith("msg_") and len(body["id"]) == 28


def test_input_tokens_are_those_that_were_not_cached() -> None:
    begun = next(MessageEvents("msg_1", "kimi-k3").begin(Usage(30, 0, cached_tokens=20)))
    assert isinstance(begun.data, dict)
    assert begun.data["message"]["usage"] == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 20,
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }


def test_usage_of_the_last_event_is_that_of_the_whole(dialect: MakeDialect) -> None:
    made = dialect(CALLS, CALLS)
    *_, last, _ = made.events(ASK)
    assert isinstance(last.data, dict)
    usage = made.whole(ASK)["usage"]
    assert last.data["usage"] == usage
    assert usage["output_tokens"] == len(spell(made.model.tokenizer, CALLS))
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == made.script.num_prompt_tokens


def test_a_stop_sequence_is_named_and_not_shown(dialect: MakeDialect) -> None:
    body = dialect(answer("Hm.", "one two three")).whole(ASK | {"stop_sequences": ["xyz", " two"]})
    assert body["content"][-1] == {"type": "text", "text": "one"}
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", " two")


def test_an_answer_that_ends_by_itself(dialect: MakeDialect) -> None:
    body = dialect(answer("", "4")).whole(ASK)
    assert body["content"] == [{"type": "text", "text": "4"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)


def test_an_empty_answer_has_no_blocks(dialect: MakeDialect) -> None:
    made = dialect(answer("", ""), answer("", ""))
    assert made.whole(ASK)["content"] == []
    assert [event.name for event in made.events(ASK)] == ["message_start", "message_delta", "message_stop"]


def test_without_thinking_there_is_no_thinking_block(dialect: MakeDialect) -> None:
    said = "4<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
    body = dialect(said).whole(ASK | {"thinking": {"type": "disabled"}})
    assert body["content"] == [{"type": "text", "text": "4"}]


def test_cut_anywhere_a_stream_is_read_as_the_whole_is(dialect: MakeDialect) -> None:
    """The official client puts the stream together."""
    made = dialect()
    ids = spell(made.model.tokenizer, CALLS)
    for limit in range(1, len(ids) + 1):
        made.script.engine._scripts += [ids, ids]
        body = ASK | {"max_tokens": limit}
        whole = made.whole(body)
        with made.client.messages.stream(**body) as stream:
            streamed = stream.get_final_message().to_dict()
        for block in streamed["content"]:
            block.pop("parsed_output", None)  # the client's own
        shown = [
            {key: message[key] for key in message.keys() - {"id", "stop_details"}} for message in (streamed, whole)
        ]
        assert shown[0] == shown[1], limit
        assert whole["stop_reason"] == ("max_tokens" if limit < len(ids) else "tool_use")


def test_calls_without_arguments_have_an_empty_input(dialect: MakeDialect) -> None:
    said = (
        f"<|close|>think<|sep|><|open|>tools<|sep|>{call(1)}<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )
    made = dialect(said, said)
    check_order(made.events(ASK))
    assert made.whole(ASK)["content"] == [
        {"type": "tool_use", "id": "get_weather_0", "name": "get_weather", "input": {}}
    ]


@pytest.mark.parametrize(
    "text", ['{"a": 1e999}', '{"a": "\\ud800"}', '{"a": NaN}', "[1, 2", '{"a": ' + "9" * 5000 + "}"]
)
def test_arguments_that_no_client_could_be_sent_stay_text(text: str) -> None:
    finished = _Finished((ToolCallStart(0, "f_0", "f"), ToolArgumentsDelta(0, text)))
    blocks = message_body("msg_1", "kimi-k3", cast(Answer, finished))
    assert blocks["content"][0]["input"] == {"input": text}
    json.dumps(blocks, allow_nan=False, ensure_ascii=False).encode()


def test_a_call_that_begins_ends_the_one_before() -> None:
    finished = _Finished((ToolCallStart(0, "f_0", "f"), ToolCallStart(1, "g_1", "g"), ToolArgumentsDelta(1, '{"a":1}')))
    blocks = message_body("msg_1", "kimi-k3", cast(Answer, finished))
    assert [(block["name"], block["input"]) for block in blocks["content"]] == [("f", {}), ("g", {"a": 1})]


def test_an_error_on_the_way_is_the_last_event() -> None:
    stream = MessageEvents("msg_1", "kimi-k3")
    list(stream.push(Piece((), (ReasoningDelta("Hm."),)), Usage(1, 1)))
    assert list(stream.fail(Fault("too slow", status=504, kind="timeout_error"))) == [
        Event({"type": "error", "error": {"type": "timeout_error", "message": "too slow"}}, "error")
    ]


def test_signatures_are_of_both_alphabets_of_base64() -> None:
    blocks = BlockEvents(thinking=True)
    *_, signed, _ = [*blocks.push(ReasoningDelta("Hm.")), *blocks.close()]
    signature = signed["delta"]["signature"]
    assert signature.isalnum() and len(signature) % 4 == 0


class _Finished:
    """An answer of these deltas."""

    def __init__(self, deltas: Sequence[Any]) -> None:
        self.deltas, self.turn, self.usage, self.stopped_by = deltas, collect(deltas, "stop"), Usage(1, 1), None

    def __iter__(self) -> Any:
        return iter(self.deltas)
