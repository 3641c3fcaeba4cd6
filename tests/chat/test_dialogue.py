"""Dialogues to train on: the same ids as prompts, and a mask on what the model writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.chat.parse import StreamParser, collect
from openk3.chat.render import render, render_dialogue
from openk3.errors import ChatError
from openk3.protocol.messages import Message, ResponseFormat, ToolCall
from openk3.tokenizer.bpe import Tokenizer

TOOLS = [{"type": "function", "function": {"name": "add"}}]
DIALOGUE = (
    Message(role="system", content="Be kind."),
    Message(role="user", content="1 + 2?"),
    Message(
        role="assistant", reasoning="Add.", content="Wait.", tool_calls=(ToolCall("add_0", "add", {"a": 1, "b": "2"}),)
    ),
    Message(role="tool", tool_call_id="add_0", content="3"),
    Message(role="assistant", reasoning="Three.", content="3"),
    Message(role="user", content="Thanks"),
    Message(role="assistant", content="🙂"),
)
ASSISTANT = [position for position, message in enumerate(DIALOGUE) if message.role == "assistant"]


def runs(ids: list[int], trained: list[bool]) -> list[tuple[list[int], list[int]]]:
    """Give, for each run of trained ids, everything before it and the run itself."""
    starts = [i for i in range(1, len(ids)) if trained[i] and not trained[i - 1]]
    ends = [next((j for j in range(i, len(ids)) if not trained[j]), len(ids)) for i in starts]
    return [(ids[:start], ids[start:end]) for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("effort", ["high", None])
def test_each_answer_follows_the_prompt_of_what_came_before(bytewise: Tokenizer, thinking: bool, effort: Any) -> None:
    options: dict[str, Any] = {"tokenizer": bytewise, "tools": TOOLS, "thinking": thinking, "effort": effort}
    found = runs(*render_dialogue(DIALOGUE, **options))
    assert len(found) == len(ASSISTANT)
    for (before, _), position in zip(found, ASSISTANT, strict=True):
        assert before == list(render(DIALOGUE[:position], **options).ids)


def test_trained_is_what_the_model_writes(bytewise: Tokenizer) -> None:
    ids, trained = render_dialogue(DIALOGUE, tokenizer=bytewise, tools=TOOLS)
    assert len(ids) == len(trained)
    texts = [bytewise.decode(run) for _, run in runs(ids, trained)]
    opened, closed = "<|open|>response<|sep|>", "<|close|>response<|sep|>"
    end = "<|close|>message<|sep|><|end_of_msg|>"
    assert texts[1:] == [
        f"Three.<|close|>think<|sep|>{opened}3{closed}{end}",
        f"<|close|>think<|sep|>{opened}🙂{closed}{end}",
    ]
    assert texts[0].startswith(f"Add.<|close|>think<|sep|>{opened}Wait.{closed}<|open|>tools<|sep|>")
    assert texts[0].endswith(f"<|close|>tools<|sep|>{end}")


def test_instructions_stand_before_the_last_answer(bytewise: Tokenizer) -> None:
    options: dict[str, Any] = {"tool_choice": "none", "response_format": ResponseFormat(type="json_object")}
    found = runs(*render_dialogue(DIALOGUE, tokenizer=bytewise, **options))
    assert found[-1][0] == list(render(DIALOGUE[:-1], tokenizer=bytewise, **options).ids)
    assert found[0][0] == list(render(DIALOGUE[:2], tokenizer=bytewise).ids)


@pytest.mark.parametrize(
    "messages",
    [(), DIALOGUE[:-1], (*DIALOGUE[:2], Message(role="assistant", content="x", partial=True))],
    ids=["empty", "user last", "partial"],
)
def test_must_end_with_an_answer(bytewise: Tokenizer, messages: tuple[Message, ...]) -> None:
    with pytest.raises(ChatError, match="the last message of a dialogue to train on"):
        render_dialogue(messages, tokenizer=bytewise)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=8)
calls = st.builds(ToolCall, st.just(""), names, st.dictionaries(st.text(max_size=6), json_values, max_size=4))


@given(
    reasoning=st.text().filter(lambda text: not text or not text.isspace()),
    content=st.text(),
    tool_calls=st.lists(calls, max_size=3),
)
def test_what_is_rendered_is_parsed_again(
    bytewise: Tokenizer, reasoning: str, content: str, tool_calls: list[ToolCall]
) -> None:
    answer = Message(role="assistant", reasoning=reasoning, content=content, tool_calls=tuple(tool_calls))
    ids, trained = render_dialogue([answer], tokenizer=bytewise)
    parser = StreamParser(bytewise, channel="think", tools_declared=True)
    written = [token for token, is_trained in zip(ids, trained, strict=True) if is_trained]
    turn = collect([*parser.push(written), *parser.finish("stop")], "stop")
    assert (turn.reasoning or "", turn.content or "") == (reasoning, content)
    # The text of the arguments survives as an object, so it renders to the same ids again.
    again = Message(role="assistant", reasoning=turn.reasoning, content=turn.content, tool_calls=turn.tool_calls)
    assert render_dialogue([again], tokenizer=bytewise).ids == ids
