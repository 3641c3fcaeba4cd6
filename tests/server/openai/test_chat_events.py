"""The frames of a stream: each rule of the verifier's streaming suite, by its number."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from openk3.errors import DeadlineError
from openk3.protocol.sampling import Usage
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault, fault_of
from openk3.server.openai.chat import ChatCompletions
from tests.server.openai.conftest import CACHED, Dialect, ask, calls, response, thought, tool

TOOLS = [tool("get_weather"), tool("look_up")]
OFF = {"thinking": {"type": "disabled"}}
USAGE = {"stream_options": {"include_usage": True}}
ANSWERS = {
    "thinking": (ask(), thought("I add.", "It is 4.")),
    "no thinking": (ask(**OFF), response("It is 4.")),
    "thoughtless": (ask(), thought("", "It is 4.")),
    "empty": (ask(), thought("", "")),
    "reasoning only": (ask(), thought("I think.", "")),
    "calls": (
        ask(tools=TOOLS),
        calls(("get_weather", "Oslo"), ("look_up", 'a "b" é'), reasoning="Two.", text="I look."),
    ),
    "call only": (ask(tools=TOOLS), calls(("get_weather", "Oslo"), reasoning="One.")),
    "cut in reasoning": (ask(max_tokens=4), thought("I think on.", "")),
    "cut in content": (ask(max_tokens=3, **OFF), response("It is 4.")),
    "cut in a call": (ask(tools=TOOLS, max_tokens=60), calls(("get_weather", "Oslo and Bergen"))),
    "stopped": (ask(stop="is"), thought("It is.", "It is 4.")),
    "beyond ASCII": (ask(), thought("Größe 中文", "é中🙂")),
    "usage": (ask(**USAGE), thought("I add.", "It is 4.")),
    "probabilities": (ask(logprobs=True, top_logprobs=2), thought("I add.", "It is é.")),
}
EVERY_ANSWER = pytest.mark.parametrize(("body", "said"), ANSWERS.values(), ids=ANSWERS.keys())


def folded(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    message: dict[str, Any] = {}
    for delta in (frame["choices"][0]["delta"] for frame in frames if frame["choices"]):
        for name in ("role", "content", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            made = message.setdefault("tool_calls", [])
            if call["index"] == len(made):
                made.append({"id": call["id"], "type": call["type"], "function": {"arguments": "", **call["function"]}})
            else:
                made[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


@EVERY_ANSWER
def test_rule_1_every_frame_is_of_one_completion(chat: Dialect, body: dict[str, Any], said: str) -> None:
    frames = chat.frames({**body, **USAGE}, said)
    heads = [(frame["id"], frame["object"], frame["created"], frame["model"]) for frame in frames]
    assert len(set(heads)) == 1
    name, kind, created, model = heads[0]
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", name)
    assert (kind, model) == ("chat.completion.chunk", "kimi-k3")
    assert type(created) is int


@EVERY_ANSWER
def test_rule_2_a_frame_has_one_choice_with_three_keys(chat: Dialect, body: dict[str, Any], said: str) -> None:
    for frame in chat.frames({**body, "stream_options": {}}, said):
        (choice,) = frame["choices"]
        assert choice.keys() >= {"index", "delta", "finish_reason"}
        assert choice["index"] == 0
    assert None not in [value for frame in chat.frames(body, said) for value in frame.values()]


@EVERY_ANSWER
def test_rule_3_the_first_frame_has_the_role_and_nothing_else_has(
    chat: Dialect, body: dict[str, Any], said: str
) -> None:
    first, *others = chat.frames(body, said)
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert not any("role" in choice["delta"] for frame in others for choice in frame["choices"])


@EVERY_ANSWER
def test_rule_4_texts_are_strings_and_never_both_in_one_frame(chat: Dialect, body: dict[str, Any], said: str) -> None:
    for delta in chat.deltas(body, said)[1:]:
        texts = [delta[name] for name in ("content", "reasoning_content") if name in delta]
        assert len(texts) <= 1
        assert all(isinstance(text, str) for text in texts)
        assert len(delta) <= 1


@EVERY_ANSWER
def test_rule_5_reasoning_ends_once_before_what_follows(chat: Dialect, body: dict[str, Any], said: str) -> None:
    deltas = chat.deltas(body, said)[1:]
    kinds = [next(iter(delta), "") for delta in deltas]
    texts = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    assert kinds[: len(texts)] == ["reasoning_content"] * len(texts)
    follows = any(kind in ("content", "tool_calls") for kind in kinds)
    assert texts.count("") == (1 if texts and follows else 0) if follows else texts.count("") <= 1
    assert "" not in texts[:-1]


def test_rule_5_reasoning_that_comes_again_is_left_out_of_both_forms(chat: Dialect) -> None:
    said = "One.<|close|>think<|sep|><|open|>response<|sep|>A<|open|>think<|sep|>Two.<|close|>think<|sep|>"
    said += f"<|open|>response<|sep|>{response('B')}"
    message = chat.whole(ask(), said)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "AB", "reasoning_content": "One."}
    assert folded(chat.frames(ask(), said)) == message


def test_rule_6_calls_begin_with_their_name_and_go_on_with_arguments(chat: Dialect) -> None:
    deltas = [delta["tool_calls"] for delta in chat.deltas(*ANSWERS["calls"]) if "tool_calls" in delta]
    assert all(len(calls) == 1 for calls in deltas)
    frames = [calls[0] for calls in deltas]
    starts = [frame for frame in frames if "id" in frame]
    assert starts == [
        {
            "index": index,
            "id": f"{name}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        for index, name in enumerate(("get_weather", "look_up"))
    ]
    assert all(frame.keys() == {"index", "function"} for frame in frames if "id" not in frame)
    assert all(frame["function"].keys() == {"arguments"} for frame in frames if "id" not in frame)
    assert all(after["index"] - before["index"] in (0, 1) for before, after in pairwise(frames))
    written = ["".join(f["function"]["arguments"] for f in frames if f["index"] == index) for index in (0, 1)]
    assert [json.loads(text) for text in written] == [{"city": "Oslo"}, {"city": 'a "b" é'}]


@EVERY_ANSWER
def test_rule_7_the_end_frame_is_empty_and_has_the_usage(chat: Dialect, body: dict[str, Any], said: str) -> None:
    ends = [c for frame in chat.frames(body, said) for c in frame["choices"] if c["finish_reason"] is not None]
    (end,) = ends
    assert end["delta"] == {}
    usage = end["usage"]
    counters = [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")]
    counters += [usage["prompt_tokens_details"]["cached_tokens"]]
    counters += [usage["completion_tokens_details"]["reasoning_tokens"]]
    assert all(type(counter) is int for counter in counters)


@EVERY_ANSWER
def test_rule_8_frames_before_the_end_have_no_usage(chat: Dialect, body: dict[str, Any], said: str) -> None:
    frames = [frame for frame in chat.frames(body, said) if frame["choices"]]
    assert not any("usage" in frame for frame in frames)
    assert not any("usage" in frame["choices"][0] for frame in frames[:-1])


@EVERY_ANSWER
def test_rule_9_the_summary_comes_last_and_only_if_asked_for(chat: Dialect, body: dict[str, Any], said: str) -> None:
    asked = chat.frames({**body, **USAGE}, said)
    assert [frame for frame in asked if not frame["choices"]] == [asked[-1]]
    assert asked[-1]["usage"] == asked[-2]["choices"][0]["usage"]
    silent = chat.frames({**body, "stream_options": {"include_usage": False}}, said)
    assert all(frame["choices"] for frame in silent)


def test_rule_10_several_answers_are_refused(chat: Dialect) -> None:
    with pytest.raises(Fault, match="n is 2, expected 1"):
        chat.frames(ask(n=2), "")


def test_rule_11_an_error_before_the_stream_is_a_body_with_type_and_message() -> None:
    fault = Fault("what was wrong", param="messages[0]", hint="what to do")
    error = ChatCompletions().error(fault)["error"]
    assert fault.status == 400
    assert error == {
        "type": "invalid_request_error",
        "message": "what was wrong (what to do)",
        "param": "messages[0]",
    }


def test_an_error_in_the_stream_is_the_last_frame(chat: Dialect, model: ServedModel) -> None:
    events = chat.endpoint.events(chat.endpoint.read(ask(stream=True), model), model)
    list(events.begin(Usage(10, 0)))
    (last,) = events.fail(fault_of(DeadlineError("too late")))
    assert last.data == {"error": {"type": "timeout_error", "message": "too late"}}


@pytest.mark.parametrize("stop", ["stop", "st", "p", ["never", "top here"], "中", "中st"])
def test_rule_12_a_stop_string_ends_the_content_and_is_never_shown(chat: Dialect, stop: str | list[str]) -> None:
    text = "before 中stop here"
    ends = [text.find(one) for one in ([stop] if isinstance(stop, str) else stop) if one in text]
    body, said = ask(stop=stop, **OFF), response(text)
    message = folded(chat.frames(body, said))
    assert message["content"] == text[: ends[0]]
    whole = chat.whole(body, said)["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == (text[: ends[0]], "stop")


def test_rule_12_stop_strings_do_not_see_reasoning(chat: Dialect) -> None:
    message = folded(chat.frames(ask(stop="is"), thought("It is.", "There it is.")))
    assert (message["reasoning_content"], message["content"]) == ("It is.", "There it ")


def test_rule_13_characters_are_whole_though_tokens_cut_them(chat: Dialect) -> None:
    deltas = chat.deltas(*ANSWERS["beyond ASCII"])
    assert not any("�" in text for delta in deltas for text in delta.values())
    assert [delta["content"] for delta in deltas if "content" in delta] == ["", "é", "中", "🙂"]


def test_rule_14_probabilities_are_of_the_content_with_as_many_alternatives_as_asked(chat: Dialect) -> None:
    frames = chat.frames(*ANSWERS["probabilities"])
    shown = [c for frame in frames for c in frame["choices"] if c["delta"].get("content")]
    assert not any("logprobs" in c for frame in frames for c in frame["choices"] if c not in shown)
    entries = [entry for choice in shown for entry in choice["logprobs"]["content"]]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "It is é."
    assert entries[0] == {
        "token": "I",
        "logprob": -0.25,
        "bytes": [73],
        "top_logprobs": [
            {"token": "I", "logprob": -0.25, "bytes": [73]},
            {"token": "J", "logprob": -0.5, "bytes": [74]},
        ],
    }
    assert [entry["token"] for entry in entries if not entry["token"].isascii() or "x" in entry["token"]] == [
        "bytes:\\xc3",
        "bytes:\\xa9",
    ]
    assert chat.whole(*ANSWERS["probabilities"])["choices"][0]["logprobs"] == {"content": entries}


def test_probabilities_end_where_a_stop_string_begins(chat: Dialect) -> None:
    body, said = ask(stop="34", logprobs=True, **OFF), response("1 2 3 34 5")
    for choice in (chat.whole(body, said)["choices"][0],):
        assert choice["message"]["content"] == "1 2 3 "
        assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == "1 2 3 "
        assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[]] * 6


def test_probabilities_of_no_content_are_an_empty_list(chat: Dialect) -> None:
    (choice,) = chat.whole(ask(logprobs=True, max_tokens=3), thought("I think.", "4"))["choices"]
    assert choice["logprobs"] == {"content": []}


def test_rule_15_what_was_cached_is_known_before_the_first_token(chat: Dialect) -> None:
    body = ask(stream_options={"continuous_usage_stats": True})
    first = chat.frames(body, thought("I add.", "It is 4."))[0]["usage"]
    assert (first["cached_tokens"], first["completion_tokens"]) == (CACHED, 0)


def test_rule_16_thinking_can_be_off(chat: Dialect) -> None:
    frames = chat.frames(*ANSWERS["no thinking"])
    assert folded(frames) == {"role": "assistant", "content": "It is 4."}
    assert frames[-1]["choices"][0]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@EVERY_ANSWER
def test_rule_17_streamed_or_not_an_answer_is_the_same(chat: Dialect, body: dict[str, Any], said: str) -> None:
    frames, (choice,) = chat.frames(body, said), chat.whole(body, said)["choices"]
    streamed, message = folded(frames), choice["message"]
    end = next(frame["choices"][0] for frame in reversed(frames) if frame["choices"])
    for name in ("content", "reasoning_content"):  # what is empty has no frames
        assert (message.get(name) or "") == streamed.get(name, "")
    assert message.get("tool_calls") == streamed.get("tool_calls")
    assert end["finish_reason"] == choice["finish_reason"]
    assert end["usage"] == chat.whole(body, said)["usage"]


@EVERY_ANSWER
def test_continuous_usage_only_grows(chat: Dialect, body: dict[str, Any], said: str) -> None:
    frames = chat.frames({**body, "stream_options": {"continuous_usage_stats": True}}, said)
    usages = [frame["usage"] for frame in frames]
    for before, after in pairwise(usages):
        assert before["completion_tokens"] <= after["completion_tokens"]
        details = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in (before, after)]
        assert details == sorted(details)
    assert usages[-1] == frames[-1]["choices"][0]["usage"]


@EVERY_ANSWER
def test_internal_content_is_every_id_behind_the_answer(chat: Dialect, body: dict[str, Any], said: str) -> None:
    frames = chat.frames({**body, "stream_options": {"include_internal_content": True}}, said)
    choices = [choice for frame in frames for choice in frame["choices"]]
    assert all("internal_content" in choice["delta"] for choice in choices[1:-1])
    ids = [token for c in choices[1:-1] for token in c["delta"]["internal_content"]["token_ids"]]
    assert len(ids) == choices[-1]["usage"]["completion_tokens"]
    assert choices[-1]["delta"] == {}
