"""Faults that were reported of servers of this model, each by the number of its report.

Unusual: the reports are public; none of the code that they are about is ours.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from openk3.chat.render import render
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from tests.server.openai.conftest import CACHED, HI, Dialect, Reader, ask, calls, response, thought, tool

OFF = {"type": "disabled"}


def texts(value: Any) -> list[str]:
    """Every text in a body, at any depth."""
    if isinstance(value, dict):
        return [text for one in value.values() for text in texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in texts(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("said", [thought("Add.", "4"), calls(("get_weather", "Oslo"), reasoning="Look.")])
def test_sglang_39898_no_frame_has_a_null_but_the_finish_reason(chat: Dialect, said: str) -> None:
    for frame in chat.frames(ask(tools=[tool()]), said):
        (choice,) = frame["choices"]
        assert None not in choice["delta"].values()
        assert [name for name, value in choice.items() if value is None] in ([], ["finish_reason"])


def test_sglang_39897_ids_and_places_are_the_hosted_services(chat: Dialect) -> None:
    options = {"include_usage": True, "include_internal_content": True, "continuous_usage_stats": True}
    frames = chat.frames(ask(tools=[tool()], stream_options=options), calls(("get_weather", "Oslo")))
    starts = [call for f in frames for c in f["choices"] for call in c["delta"].get("tool_calls", ()) if "id" in call]
    assert [call["id"] for call in starts] == ["get_weather_0"]
    assert frames[-2]["choices"][0]["usage"] == frames[-2]["usage"] == frames[-1]["usage"]


def test_sglang_39896_the_thinking_object_is_understood(read: Reader) -> None:
    assert read(thinking=OFF).options["thinking"] is False
    assert read(thinking={"type": "enabled", "effort": "low"}).options["effort"] == "low"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"città": {"type": "string"}}, "required": ["città"]},
        {"$id": "https://example.org/x", "type": "object", "properties": {"a": {"type": "integer"}}},
    ],
)
def test_sglang_39895_valid_tools_are_accepted_and_forced_without_thinking(read: Reader, schema: Any) -> None:
    asked = read(tools=[tool(parameters=schema)], tool_choice="required", thinking=OFF)
    assert asked.options["tools"] == (tool(parameters=schema),)
    assert (asked.options["tool_choice"], asked.body.channel) == ("required", "response")


def test_sglang_39895_dynamic_tools_reach_the_prompt(read: Reader, model: ServedModel) -> None:
    asked = read(messages=[HI, {"role": "system", "tools": [tool("find_train")]}])
    assert "find_train" in render(asked.messages, tokenizer=model.tokenizer).text


def test_tensorrt_17845_three_tokens_of_the_prompt_are_not_counted(chat: Dialect, model: ServedModel) -> None:
    asked = chat.endpoint.read(ask(), model)
    ids = render(asked.messages, tokenizer=model.tokenizer, effort="max").ids
    assert chat.whole(ask(), thought("", "4"))["usage"]["prompt_tokens"] == len(ids) - 3


def test_atom_1727_the_finish_reason_is_no_engines(chat: Dialect) -> None:
    assert chat.whole(ask(), thought("", "4"))["choices"][0]["finish_reason"] == "stop"
    assert chat.frames(ask(), thought("", "4"))[-1]["choices"][0]["finish_reason"] == "stop"


def test_atom_1727_whitespace_in_arguments_is_kept(chat: Dialect) -> None:
    city = "  New\n\tYork "
    body, said = ask(tools=[tool()]), calls(("get_weather", city))
    (call,) = chat.whole(body, said)["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": city}
    parts = [c["function"]["arguments"] for delta in chat.deltas(body, said) for c in delta.get("tool_calls", ())]
    assert "".join(parts) == call["function"]["arguments"]


def test_litellm_38611_max_is_an_effort_and_an_object_is_refused_clearly(read: Reader) -> None:
    assert read(reasoning_effort="max").options["effort"] == "max"
    with pytest.raises(Fault, match=r'reasoning_effort is \{"effort": "max"\}, expected a string: low, high or max'):
        read(reasoning_effort={"effort": "max"})


def test_litellm_29687_the_refusal_of_a_temperature_names_what_is_allowed(read: Reader) -> None:
    params = read(temperature=0.7).options["params"]
    assert params is not None
    assert params.temperature == 0.7
    with pytest.raises(Fault, match=r"temperature is 1\.5, expected a number from 0 to 1"):
        read(temperature=1.5)


def test_promptfoo_10132_cached_tokens_stand_in_both_places(chat: Dialect) -> None:
    for usage in (
        chat.whole(ask(), thought("", "4"))["usage"],
        chat.frames(ask(), thought("", "4"))[-1]["choices"][0]["usage"],
    ):
        assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == CACHED


def test_pi_2017_usage_is_in_the_end_frame_and_in_the_summary(chat: Dialect) -> None:
    end, summary = chat.frames(ask(stream_options={"include_usage": True}), thought("", "4"))[-2:]
    assert end["choices"][0]["usage"] == summary["usage"]
    assert summary["choices"] == []


def test_vllm_50604_arguments_come_as_they_are_written(chat: Dialect) -> None:
    deltas = chat.deltas(ask(tools=[tool()]), calls(("get_weather", "x" * 100)))
    assert sum("tool_calls" in delta for delta in deltas) > 100


def test_cc_switch_3219_history_may_have_lost_its_reasoning(read: Reader) -> None:
    lost = {"role": "assistant", "content": "4"}
    assert read(messages=[HI, lost, HI]).messages[1].reasoning is None


def test_kimi_code_1985_a_message_of_calls_may_have_no_text(read: Reader) -> None:
    call = {"id": "f_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "f_0", "content": ""}
    for content in ("", None):
        read(messages=[HI, {"role": "assistant", "content": content, "tool_calls": [call]}, result])
    with pytest.raises(Fault, match=r"messages\[1\]\.content must not be empty"):
        read(messages=[HI, {"role": "assistant"}, HI])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/components/a"}}},
        {"properties": {"a": {"type": "string"}}},
    ],
)
def test_command_code_594_a_schema_is_refused_with_path_and_rule_unless_it_is_not_strict(
    read: Reader, schema: dict[str, Any]
) -> None:
    with pytest.raises(Fault) as caught:
        read(tools=[tool(parameters=schema)])
    assert caught.value.param == "tools[0].function.parameters"
    assert caught.value.text.startswith("tools.function.parameters")
    read(tools=[tool(parameters=schema, strict=False)])


def test_kimi_k3_45_reasoning_is_never_in_the_content(chat: Dialect) -> None:
    said = "One.<|close|>think<|open|>response<|sep|>A<|open|>think<|sep|>Two.<|close|>think<|sep|><|end_of_msg|>"
    assert chat.whole(ask(), said)["choices"][0]["message"]["content"] == "A"
    assert [delta["content"] for delta in chat.deltas(ask(), said) if delta.get("content")] == ["A"]


@pytest.mark.parametrize("cut", range(1, 14))
def test_odysseus_5863_a_limit_in_reasoning_leaves_reasoning_only(chat: Dialect, cut: int) -> None:
    body, said = ask(max_tokens=cut), thought("I think long.", "4")
    (choice,) = chat.whole(body, said)["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I think long."[:cut],
    }
    frames = chat.frames(body, said)
    assert not any(frame["choices"][0]["delta"].get("content") for frame in frames)
    reasoning = [frame["choices"][0]["delta"].get("reasoning_content", "") for frame in frames]
    assert "".join(reasoning) == "I think long."[:cut]
    assert frames[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "length"


def test_zoo_code_1316_thinking_shows_in_the_usage(chat: Dialect) -> None:
    usage = chat.whole(ask(), thought("I think.", "4"))["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("I think.")
    assert chat.whole(ask(), thought("", "4"))["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_hermes_agent_108071_what_others_add_to_a_message_is_accepted_back(chat: Dialect, read: Reader) -> None:
    message = chat.whole(ask(), thought("Add.", "4"))["choices"][0]["message"]
    echoed = {
        **message,
        "reasoning_details": [{"type": "reasoning.text", "text": "Add."}],
        "internal_content": {"token_ids": [1]},
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
    }
    assert read(messages=[HI, echoed, HI]).messages[1].reasoning == "Add."


@pytest.mark.parametrize("level", ["medium", "xhigh", "minimal", "MAX"])
def test_llmgateway_3061_an_unknown_effort_is_refused_and_never_replaced(read: Reader, level: str) -> None:
    for switch in (
        {"reasoning_effort": level},
        {"thinking": {"type": "enabled", "effort": level}},
        {"chat_template_kwargs": {"thinking_effort": level}},
    ):
        with pytest.raises(Fault, match="expected low, high or max"):
            read(**switch)


def test_kimi_k3_27_usage_agrees_in_all_places(chat: Dialect) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body, said = ask(stream_options=options, tools=[tool()]), calls(("get_weather", "Oslo"), reasoning="Look.")
    frames, whole = chat.frames(body, said), chat.whole(body, said)
    end, summary = frames[-2:]
    assert end["choices"][0]["usage"] == end["usage"] == summary["usage"] == whole["usage"]


# Of the model's own format: what must never reach a client.


@pytest.mark.parametrize(
    "said",
    [
        thought("Add.", "4"),
        "Add.<|close|>think<|open|>response<|sep|>4<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        'Add.<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|close|>call<|sep|><|end_of_msg|>',
        calls(("get_weather", "Oslo"), reasoning="Look.", text="I look."),
        "Add.<|close|>think<|sep|><|open|>response<|sep|>4<|end_of_msg|>",
    ],
)
@pytest.mark.parametrize("tools", [[], [tool()]])
def test_vllm_51399_no_tag_is_shown(chat: Dialect, said: str, tools: list[Any]) -> None:
    body = ask(tools=tools)
    shown = texts(chat.whole(body, said)["choices"]) + texts(chat.deltas(body, said))
    assert not any(mark in text for text in shown for mark in ("<|", "close", "message", "end_of"))


def test_vllm_53246_tools_may_end_reasoning(chat: Dialect) -> None:
    said = 'Look.<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|close|>call<|sep|><|end_of_msg|>'
    (choice,) = chat.whole(ask(tools=[tool()]), said)["choices"]
    assert choice["message"]["reasoning_content"] == "Look."
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"


def test_vllm_50258_an_answer_cut_without_thinking_is_content(chat: Dialect) -> None:
    (choice,) = chat.whole(ask(thinking=OFF, max_tokens=2), response("four"))["choices"]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": "fo"}, "length")
