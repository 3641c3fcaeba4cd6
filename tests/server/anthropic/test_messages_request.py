"""Bodies to questions: what is understood, and what is refused with its path, value and expectation."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from openk3.protocol.messages import Message, ResponseFormat, TextPart, ToolCall
from openk3.protocol.sampling import SamplingParams
from openk3.server.anthropic.messages import Messages
from openk3.server.endpoint import Asked, ServedModel
from openk3.server.faults import Fault

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "f", "description": "Does it", "input_schema": {"type": "object"}}
CALLING = {"role": "assistant", "content": [{"type": "tool_use", "id": "f_0", "name": "f", "input": {"a": 1}}]}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "kimi-k3", "max_tokens": 100, "messages": [USER], **more}


def read(model: ServedModel, /, **more: Any) -> Asked:
    return Messages().read(body(**more), model)


def result(call_id: str = "f_0", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **more}


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def params_of(asked: Asked) -> SamplingParams:
    params = asked.options["params"]
    assert params is not None
    return params


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_the_least_body(model: ServedModel) -> None:
    asked = read(model)
    assert asked.messages == (Message(role="user", content="Hi"),)
    assert (asked.model, asked.stream) == ("kimi-k3", False)
    assert asked.options["thinking"] and asked.options["params"] == replace(model.sampling, max_tokens=100)
    assert "effort" not in asked.options and asked.options["tools"] == ()


def test_system_is_a_string_or_blocks(model: ServedModel) -> None:
    assert read(model, system="Be brief.").messages[0] == Message(role="system", content="Be brief.")
    blocks = [text("Be brief."), {**text("Be kind."), "cache_control": {"type": "ephemeral"}}]
    parts = (TextPart("Be brief."), TextPart("Be kind."))
    assert read(model, system=blocks).messages[0] == Message(role="system", content=parts)
    for empty in ("", [], [text("")]):
        assert read(model, system=empty).messages == (Message(role="user", content="Hi"),)


def test_a_system_message_may_stand_among_the_others(model: ServedModel) -> None:
    messages = read(model, messages=[USER, {"role": "system", "content": "Be brief."}, USER]).messages
    assert [message.role for message in messages] == ["user", "system", "user"]


def test_blocks_of_the_assistant_become_one_message(model: ServedModel) -> None:
    past = said(
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        text("Looking."),
        {"type": "tool_use", "id": "f_0", "name": "f", "input": {"b": [1, None], "a": "x"}},
        role="assistant",
    )
    message = read(model, messages=[USER, past, said(result())]).messages[1]
    call = ToolCall("f_0", "f", {"b": [1, None], "a": "x"})
    assert message == Message(role="assistant", content="Looking.", reasoning="Hm.", tool_calls=(call,))


def test_several_thoughts_are_one_in_paragraphs(model: ServedModel) -> None:
    thoughts = [{"type": "thinking", "thinking": thought, "signature": "x"} for thought in ("Hm.", "Ah.")]
    messages = read(model, messages=[USER, said(*thoughts, text("4"), role="assistant"), USER]).messages
    assert messages[1].reasoning == "Hm.\n\nAh."


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_message_of_the_user_stays_one(model: ServedModel, content: Any) -> None:
    assert read(model, messages=[{"role": "user", "content": content}]).messages == (Message(role="user", content=""),)


def test_neighbouring_messages_of_the_assistant_become_one(model: ServedModel) -> None:
    second = said({"type": "tool_use", "id": "f_1", "name": "f", "input": {}}, role="assistant")
    messages = read(model, messages=[USER, CALLING, second, said(result(), result("f_1"))]).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call.id for call in messages[1].tool_calls] == ["f_0", "f_1"]


def test_results_come_before_the_text_next_to_them(model: ServedModel) -> None:
    messages = read(model, messages=[USER, CALLING, said(text("And?"), result(content="sun"))]).messages
    assert messages[2:] == (
        Message(role="tool", content="sun", tool_call_id="f_0", tool="f"),
        Message(role="user", content="And?"),
    )


@pytest.mark.parametrize(
    ("given", "content"),
    [({}, ""), ({"content": ""}, ""), ({"content": [text("no"), text("!")]}, (TextPart("no"), TextPart("!")))],
)
def test_contents_of_results(model: ServedModel, given: dict[str, Any], content: Any) -> None:
    messages = read(model, messages=[USER, CALLING, said(result(**given))]).messages
    assert messages[2].content == content


def test_the_text_of_an_error_is_kept(model: ServedModel) -> None:
    messages = read(model, messages=[USER, CALLING, said(result(content="no such city", is_error=True))]).messages
    assert messages[2].content == "no such city"


def test_a_last_message_of_the_assistant_is_continued(model: ServedModel) -> None:
    messages = read(model, messages=[USER, {"role": "assistant", "content": "{"}]).messages
    assert messages[1] == Message(role="assistant", content="{", partial=True)


def test_tools(model: ServedModel) -> None:
    tools = [TOOL, {"type": "custom", "name": "g", "input_schema": {"type": "object"}, "strict": True}]
    first = {"name": "f", "description": "Does it", "parameters": {"type": "object"}}
    second = {"name": "g", "parameters": {"type": "object"}, "strict": True}
    declared = ({"type": "function", "function": first}, {"type": "function", "function": second})
    assert read(model, tools=tools).options["tools"] == declared


@pytest.mark.parametrize(
    ("given", "choice", "only"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "f"}, "required", "f"),
    ],
)
def test_tool_choice(model: ServedModel, given: dict[str, Any], choice: str, only: str | None) -> None:
    options = read(model, tools=[TOOL], tool_choice=given).options
    assert (options["tool_choice"], options.get("only_tool")) == (choice, only)


@pytest.mark.parametrize("kind", ["enabled", "adaptive", "disabled"])
def test_thinking(model: ServedModel, kind: str) -> None:
    asked = read(model, thinking={"type": kind, "budget_tokens": -1})
    assert asked.options["thinking"] is (kind != "disabled")
    assert params_of(asked).temperature == (0.6 if kind == "disabled" else 1.0)


@pytest.mark.parametrize("effort", ["low", "high", "max"])
def test_effort(model: ServedModel, effort: str) -> None:
    assert read(model, output_config={"effort": effort}).options["effort"] == effort


def test_without_thinking_effort_is_ignored(model: ServedModel) -> None:
    options = read(model, output_config={"effort": "huge"}, thinking={"type": "disabled"}).options
    assert "effort" not in options


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_output_format(model: ServedModel, field: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    given = {"format": wanted} if field == "output_config" else wanted
    asked = read(model, **{field: given})
    assert asked.options["response_format"] == ResponseFormat(type="json_schema", schema={"type": "object"})


def test_stop_sequences(model: ServedModel) -> None:
    assert params_of(read(model, stop_sequences=["a", "\n\nHuman:"])).stop == ("a", "\n\nHuman:")


def test_more_tokens_than_there_is_room_for_are_cut(model: ServedModel) -> None:
    assert params_of(read(model, max_tokens=10**30)).max_tokens == model.max_tokens


def test_a_suffix_of_the_name_is_the_clients_own(model: ServedModel) -> None:
    assert read(model, model="kimi-k3[1m]").model == "kimi-k3"
    named = replace(model, names=("kimi-k3[1m]",))
    assert read(named, model="kimi-k3[1m]").model == "kimi-k3[1m]"


def test_what_has_no_meaning_here_is_ignored(model: ServedModel) -> None:
    more = {
        "metadata": {"user_id": "x"},
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "betas": 3,
        "system": None,
        "tools": None,
        "tool_choice": None,
        "thinking": None,
        "output_config": None,
        "stop_sequences": None,
        "stream": None,
        "temperature": None,
    }
    assert read(model, **more) == read(model)


@pytest.mark.parametrize("given", [{"temperature": 0}, {"temperature": 0.7}, {"top_p": 0.95}, {"top_k": 0}])
def test_sampling_that_is_accepted(model: ServedModel, given: dict[str, Any]) -> None:
    name, value = next(iter(given.items()))
    assert getattr(params_of(read(model, **given)), name) == value


@pytest.mark.parametrize(
    "given", [{"temperature": 1.1}, {"temperature": -0.1}, {"temperature": "1"}, {"top_p": 0.8}, {"top_k": 40}]
)
def test_sampling_that_the_rules_refuse(model: ServedModel, given: dict[str, Any]) -> None:
    with pytest.raises(Fault) as raised:
        read(model, **given)
    assert raised.value.status == 400 and raised.value.param == next(iter(given))


def test_free_sampling(model: ServedModel) -> None:
    free = replace(model, free_sampling=True)
    params = params_of(read(free, temperature=1.5, top_p=0.5, top_k=40))
    assert (params.temperature, params.top_p, params.top_k) == (1.5, 0.5, 40)
    with pytest.raises(Fault, match="top_p is 0.0, expected more than 0"):
        read(free, top_p=0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens is missing, expected a whole number of at least 1"),
    ({"max_tokens": 0}, "max_tokens is 0, expected"),
    ({"max_tokens": "10"}, 'max_tokens is "10", expected'),
    ({"messages": None}, "messages is missing, expected a list of messages"),
    ({"messages": []}, r"messages is \[\], expected at least one message"),
    ({"messages": "Hi"}, 'messages is "Hi", expected a list'),
    ({"messages": ["Hi"]}, r'messages\[0\] is "Hi", expected a message'),
    ({"messages": [{"content": "Hi"}]}, r"messages\[0\]\.role is missing, expected user"),
    ({"messages": [{"role": "tool", "content": "Hi"}]}, r'messages\[0\]\.role is "tool", expected user'),
    ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content is missing"),
    ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]\.content is 3, expected a string or a list"),
    ({"messages": [said("Hi")]}, r'messages\[0\]\.content\[0\] is "Hi", expected a block'),
    ({"messages": [said({"text": "Hi"})]}, r"content\[0\]\.type is missing, expected text or tool_result"),
    ({"messages": [said({"type": "text"})]}, r"content\[0\]\.text is missing"),
    ({"messages": [said({"type": "video"})]}, r'type is "video", expected text or tool_result'),
    ({"messages": [said({"type": "tool_use"})]}, r'type is "tool_use", expected text or tool_result'),
    ({"messages": [said({"type": {"a": 1}})]}, r"type is \{\"a\": 1\}, expected"),
    ({"messages": [USER, CALLING]}, r"messages\[1\] is .* expected a message of the user after it, with a tool_result"),
    ({"messages": [said(result("x"))]}, r'tool_use_id is "x", expected the id of a tool_use in an earlier'),
    ({"messages": [said({"type": "tool_result"})]}, r"tool_use_id is missing"),
    ({"messages": [USER, CALLING, said(result(content=3))]}, r"messages\[2\]\.content\[0\]\.content is 3"),
    ({"messages": [said({"type": "tool_use", "id": "x", "name": ""}, role="assistant")]}, r'name is "", expected'),
    ({"messages": [said({"type": "tool_use", "id": "x", "name": "f", "input": "{}"}, role="assistant")]}, "input is"),
    ({"messages": [said({"type": "tool_use", "name": "f"}, role="assistant")]}, r"content\[0\]\.id is missing"),
    ({"messages": [said({"type": "thinking", "thinking": 3}, role="assistant")]}, "thinking is 3, expected a string"),
    ({"system": 3}, "system is 3, expected a string or a list of blocks"),
    ({"system": [{"type": "image"}]}, r"system\[0\]\.type is \"image\", expected text"),
    ({"stop_sequences": "a"}, 'stop_sequences is "a", expected a list of strings'),
    ({"stop_sequences": [""]}, r'stop_sequences\[0\] is "", expected a string of 1 to 256'),
    ({"stop_sequences": [3]}, r"stop_sequences\[0\] is 3, expected a string"),
    ({"stop_sequences": ["a"] * 65}, "expected at most 64 strings"),
    ({"stream": "yes"}, 'stream is "yes", expected true or false'),
    ({"thinking": "on"}, 'thinking is "on", expected an object'),
    ({"thinking": {"type": "always"}}, 'thinking.type is "always", expected enabled, adaptive or disabled'),
    ({"thinking": {}}, "thinking.type is missing"),
    ({"output_config": {"effort": {"level": "max"}}}, "output_config.effort is .* expected a string"),
    ({"output_config": {"format": {"type": "json"}}}, 'output_config.format.type is "json", expected json_schema'),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema is missing"),
    ({"tools": {}}, "tools is {}, expected a list of tools"),
    ({"tools": ["f"]}, r'tools\[0\] is "f", expected a tool'),
    ({"tools": [{"name": "f"}]}, r"tools\[0\]\.input_schema is missing, expected a JSON schema"),
    ({"tools": [{"name": "f", "input_schema": []}]}, r"tools\[0\]\.input_schema is \[\], expected a JSON schema"),
    ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, r"tools\[0\]\.input_schema"),
    ({"tools": [{"input_schema": {}}]}, r"tools\[0\]\.name is missing"),
    ({"tools": [{**TOOL, "name": "1f"}]}, r'tools\[0\]\.name is "1f", expected a letter or underscore'),
    ({"tools": [{**TOOL, "name": "f" * 257}]}, r"at most 256 characters"),
    ({"tools": [TOOL, TOOL]}, r'tools\[1\]\.name is "f", expected a name that no other tool has'),
    (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        r"expected custom \(this server runs no",
    ),
    ({"tool_choice": "auto"}, 'tool_choice is "auto", expected an object'),
    ({"tool_choice": {}}, "tool_choice.type is missing"),
    ({"tool_choice": {"type": "required"}}, 'tool_choice.type is "required", expected auto, any, none or tool'),
    ({"tool_choice": {"type": "any"}}, 'tool_choice.type is "any", expected auto or none, as there are no tools'),
    ({"tool_choice": {"type": "tool"}, "tools": [TOOL]}, "tool_choice.name is missing"),
    ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, r'"g", expected the name of a declared tool'),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_refused_with_path_value_and_expectation(model: ServedModel, given: dict[str, Any], message: str) -> None:
    with pytest.raises(Fault) as raised:
        read(model, **given)
    assert raised.value.status == 400
    assert re.search(message, raised.value.text), raised.value.text


@pytest.mark.parametrize("kind", ["image", "document", "search_result"])
def test_only_text_can_be_read(model: ServedModel, kind: str) -> None:
    media = {"type": kind, "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    for message in (said(media), said(result(content=[media]))):
        with pytest.raises(Fault, match=f'type is "{kind}", expected text') as raised:
            read(model, messages=[USER, CALLING, message])
        assert raised.value.hint == "only text can be read so far"


def test_an_unknown_model_is_not_found(model: ServedModel) -> None:
    with pytest.raises(Fault) as raised:
        read(model, model="claude-opus[1m]")
    assert raised.value.status == 404
    assert Messages().error(raised.value)["error"]["type"] == "not_found_error"
