"""Bugs that users of K3 reported elsewhere, as far as they can be made in this dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from openk3.server.anthropic.messages import Messages
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from tests.cli.scripted import answer
from tests.server.anthropic.conftest import Dialect

MakeDialect = Callable[..., Dialect]
USER = {"role": "user", "content": "Hi"}
TOOLS = [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}]
ASK: dict[str, Any] = {"model": "kimi-k3", "max_tokens": 1000, "messages": [USER], "tools": TOOLS}
CALL = (
    "Hm.<|close|>think<|sep|><|open|>response<|sep|>Wait.<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>x\n y<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
)


def replayed(thinking: dict[str, Any]) -> dict[str, Any]:
    past = {"role": "assistant", "content": [thinking, {"type": "text", "text": "4"}]}
    return {**ASK, "messages": [USER, past, USER]}


def test_bug_5_whitespace_in_arguments_is_kept(dialect: MakeDialect) -> None:
    assert dialect(CALL).whole(ASK)["content"][-1]["input"] == {"a": "x\n y"}


@pytest.mark.parametrize("effort", ["medium", "xhigh", "none", ""])
def test_bug_21_an_unknown_level_of_effort_is_refused(model: ServedModel, effort: str) -> None:
    with pytest.raises(Fault, match=f'effort is "{effort}", expected low, high or max'):
        Messages().read({**ASK, "output_config": {"effort": effort}}, model)


def test_bug_6_an_object_for_effort_is_refused_and_max_is_valid(model: ServedModel) -> None:
    assert Messages().read({**ASK, "output_config": {"effort": "max"}}, model).options["effort"] == "max"
    with pytest.raises(Fault, match="expected a string"):
        Messages().read({**ASK, "output_config": {"effort": {"effort": "max"}}}, model)


@pytest.mark.parametrize("signature", ["+//+", "-__-", "", 3, None])
def test_bug_12_thinking_with_any_signature_is_accepted_back(model: ServedModel, signature: Any) -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": signature}
    assert Messages().read(replayed(thinking), model).messages[1].reasoning == "Hm."


def test_bug_13_a_history_without_thinking_is_accepted(dialect: MakeDialect) -> None:
    made = dialect(answer("", "4"))
    made.whole({**ASK, "messages": [USER, {"role": "assistant", "content": "4"}, USER]})
    assert "<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|>4" in made.script.prompts[0]


@pytest.mark.parametrize("content", ["", [], None])
def test_bug_14_an_empty_message_of_the_assistant_is_accepted(model: ServedModel, content: Any) -> None:
    messages = [USER, {"role": "assistant", "content": content}, USER]
    assert Messages().read({**ASK, "messages": messages}, model).messages[1].content == ""


def test_bug_17_cut_in_reasoning_it_is_reasoning_whole_and_streamed(dialect: MakeDialect) -> None:
    made = dialect("Thinking for long", "Thinking for long")
    body = {**ASK, "max_tokens": 2}
    whole = made.whole(body)
    assert [block["type"] for block in whole["content"]] == ["thinking"] and whole["stop_reason"] == "max_tokens"
    with made.client.messages.stream(**body) as stream:
        assert [block.to_dict() for block in stream.get_final_message().content] == whole["content"]


def test_bug_18_thinking_is_counted(dialect: MakeDialect) -> None:
    usage = dialect(answer("Thinking for long", "4")).whole(ASK)["usage"]
    assert usage["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize("said", [CALL, answer("Hm.", "4"), answer("", ""), answer("Hm.", "")])
def test_bug_19_what_is_sent_is_accepted_back(dialect: MakeDialect, said: str) -> None:
    """The next prompt repeats the answer, thinking and all, so that its prefix is found again."""
    made = dialect(said, answer("", "ok"))
    message = made.client.messages.create(**ASK)
    results = [
        {"type": "tool_result", "tool_use_id": block.id} for block in message.content if block.type == "tool_use"
    ]
    history = [USER, message.to_param(), {"role": "user", "content": [*results, {"type": "text", "text": "Go on"}]}]
    made.client.messages.create(**{**ASK, "messages": history})
    first, second = made.script.prompts
    assert second.startswith(first + said)


def test_bug_16_reasoning_is_never_in_the_text(dialect: MakeDialect) -> None:
    content = dialect(answer("secret", "4")).whole(ASK)["content"]
    assert content[1] == {"type": "text", "text": "4"}


def test_a_line_that_differs_in_each_request_does_not_change_the_prompt(dialect: MakeDialect) -> None:
    """Claude Code begins its system prompt with one, which would make every cached prefix useless (sglang#21064)."""
    made = dialect(*[answer("", "4")] * 3)
    line = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch="
    made.whole({**ASK, "system": [{"type": "text", "text": f"{line}eb6c6;"}, {"type": "text", "text": "Be brief."}]})
    made.whole({**ASK, "system": f"{line}0aaa9;\nBe brief."})
    made.whole({**ASK, "system": "Be brief."})
    assert len(set(made.script.prompts)) == 1


def test_bug_15_a_schema_that_cannot_be_enforced_is_refused_only_if_it_is_to_be(dialect: MakeDialect) -> None:
    """Schemas of clients' own tools are full of other dialects' keywords, and nobody asked for them to be enforced."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"n": {"type": "integer", "exclusiveMinimum": 0}, "u": {"$ref": "other.json"}},
    }
    tool = {"name": "mcp__a__b", "input_schema": schema, "cache_control": {"type": "ephemeral"}}
    made = dialect(answer("", "4"), answer("", "4"))
    made.whole({**ASK, "tools": [tool]})
    assert '"exclusiveMinimum":0' in made.script.prompts[0]
    with pytest.raises(Fault, match=r"tools\[0\]\.input_schema is not a valid .*At path 'properties\.u"):
        made.whole({**ASK, "tools": [{**tool, "strict": True}]})
    with pytest.raises(Fault, match=r"output_config\.format\.schema is not a valid .*At path 'properties\.u"):
        made.whole({**ASK, "output_config": {"format": {"type": "json_schema", "schema": schema}}})


def test_an_error_reaches_the_client_with_its_text(dialect: MakeDialect) -> None:
    with pytest.raises(anthropic.BadRequestError, match="tool_choice.type is") as raised:
        dialect().client.messages.create(**{**ASK, "tools": [], "tool_choice": {"type": "any"}})
    assert raised.value.type == "invalid_request_error"
