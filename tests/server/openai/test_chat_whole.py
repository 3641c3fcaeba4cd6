"""Answers of Chat Completions that are not streamed, and what the model is asked for them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from openk3.server.endpoint import ServedModel
from openk3.server.openai.chat import ChatCompletions
from openk3.server.openai.tokens import EstimateTokens
from tests.server.openai.conftest import CACHED, Dialect, ask, calls, response, thought, tool

OFF = {"thinking": {"type": "disabled"}}
LONG = "length"


def test_an_answer_has_the_hosted_form(chat: Dialect) -> None:
    body = chat.whole(ask(), thought("Add.", "4"))
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24}", body.pop("id"))
    assert type(body.pop("created")) is int
    usage = body.pop("usage")
    assert body == {
        "object": "chat.completion",
        "model": "kimi-k3",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "4", "reasoning_content": "Add."},
                "finish_reason": "stop",
            }
        ],
    }
    # 4 of the text; the tags are a token at each end and one for every byte of their name
    assert usage["completion_tokens"] == len("Add.") + len("4") + 2 * 4 + len("think" + "response" * 2 + "message") + 1
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_two_answers_have_two_ids(chat: Dialect) -> None:
    assert chat.whole(ask(), thought("", "x"))["id"] != chat.whole(ask(), thought("", "x"))["id"]


def test_usage_stands_in_every_place_that_clients_read(chat: Dialect) -> None:
    usage = chat.whole(ask(), thought("Add.", "4"))["usage"]
    assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == CACHED
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] >= CACHED


MESSAGES: dict[str, tuple[dict[str, Any], str, dict[str, Any], str]] = {
    "without thinking": (OFF, response("4"), {"content": "4"}, "stop"),
    "thoughtless": ({}, thought("", "4"), {"content": "4", "reasoning_content": ""}, "stop"),
    "empty": ({}, thought("", ""), {"content": "", "reasoning_content": ""}, "stop"),
    "empty without thinking": (OFF, response(""), {"content": ""}, "stop"),
    "cut in reasoning": ({"max_tokens": 5}, thought("Adding."), {"content": None, "reasoning_content": "Addin"}, LONG),
    "cut in a tag": ({"max_tokens": 3}, thought("A"), {"content": None, "reasoning_content": "A"}, LONG),
    "cut in content": ({**OFF, "max_tokens": 2}, response("four"), {"content": "fo"}, LONG),
    "stopped at once": ({**OFF, "stop": "f"}, response("four"), {"content": ""}, "stop"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "said", "message", "reason"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(chat: Dialect, fields: dict[str, Any], said: str, message: dict[str, Any], reason: str) -> None:
    (choice,) = chat.whole(ask(**fields), said)["choices"]
    assert choice["message"] == {"role": "assistant", **message}
    assert choice["finish_reason"] == reason


def test_calls_are_numbered_over_the_conversation(chat: Dialect) -> None:
    said = calls(("get_weather", "Oslo"), ("get_weather", "Rome"), reasoning="Both.")
    (choice,) = chat.whole(ask(tools=[tool()]), said)["choices"]
    first, second = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == ""
    assert [call["id"] for call in (first, second)] == ["get_weather_0", "get_weather_1"]
    assert json.loads(first["function"]["arguments"]) == {"city": "Oslo"}

    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sun"} for call in (first, second)]
    messages = [*ask()["messages"], choice["message"], *results]
    again = chat.whole(ask(messages=messages, tools=[tool()]), calls(("get_weather", "Bergen")))
    assert again["choices"][0]["message"]["tool_calls"][0]["id"] == "get_weather_2"


def test_calls_of_dynamic_tools_are_given(chat: Dialect) -> None:
    body = ask(messages=[{"role": "user", "content": "Hi"}, {"role": "system", "tools": [tool()]}])
    (choice,) = chat.whole(body, calls(("get_weather", "Oslo")))["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert choice["finish_reason"] == "tool_calls"


def test_calls_without_tools_are_not_given(chat: Dialect) -> None:
    (choice,) = chat.whole(ask(), calls(("get_weather", "Oslo"), text="I look."))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "I look.", "reasoning_content": ""}
    assert choice["finish_reason"] == "stop"


def test_a_partial_answer_is_what_comes_after_it(chat: Dialect) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once", "partial": True}]
    (choice,) = chat.whole(ask(messages=messages, logprobs=True), response(" upon"))["choices"]
    assert choice["message"] == {"role": "assistant", "content": " upon", "reasoning_content": ""}
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == " upon"


@pytest.mark.parametrize("said", [thought("Add.", "4"), thought("", ""), calls(("get_weather", "Oslo")), "cut"])
@pytest.mark.parametrize("thinking", ["enabled", "disabled"])
def test_what_was_answered_can_be_sent_back(chat: Dialect, said: str, thinking: str) -> None:
    body = ask(tools=[tool()], thinking={"type": thinking}, max_tokens=len(said))
    message = chat.whole(body, said)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": ""} for c in message.get("tool_calls", ())]
    chat.endpoint.read({**body, "messages": [*body["messages"], message, *results, *body["messages"]]}, chat.model)


# Against the verifier's constants, with Kimi K3's own vocabulary.

CAPITAL = {
    "type": "object",
    "properties": {"capital": {"type": "boolean"}},
    "required": ["capital"],
    "additionalProperties": False,
}
QUESTION = "请判断北京是不是中国的首都，并用一个名为 capital 的布尔字段给出结果。"


def count(body: dict[str, Any], model: ServedModel) -> int:
    counted = EstimateTokens().count(body, model)["data"]["total_tokens"]
    assert type(counted) is int
    return counted


def test_prompt_of_an_assistant_message_that_is_last(published_model: ServedModel) -> None:
    body = ask(messages=[{"role": "assistant", "content": "你好"}], reasoning_effort="high")
    assert count(body, published_model) == 99
    assert ChatCompletions().read(body, published_model).body.channel == "think"


@pytest.mark.parametrize(("wanted", "expected"), [(None, 36), (CAPITAL, 119)])
def test_prompts_with_and_without_a_schema(
    published_model: ServedModel, wanted: dict[str, Any] | None, expected: int
) -> None:
    """The verifier's question is not public; this one is as long as its counts say, 18 tokens."""
    assert len(published_model.tokenizer.encode(QUESTION)) == 18
    body = ask(messages=[{"role": "user", "content": QUESTION}], **OFF)
    if wanted is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": wanted}}
    assert count(body, published_model) == expected
