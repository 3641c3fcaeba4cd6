"""Bodies in which one place, each in turn, holds something else: all are read or refused with a text that can be sent.

Unusual: no example is random; every place of a body that uses every field meets every value.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from openk3.errors import OpenK3Error
from openk3.server.endpoint import ServedModel
from openk3.server.faults import fault_of
from openk3.server.openai.chat import ChatCompletions
from openk3.server.openai.completions import Completions
from openk3.server.prompt import num_prompt_tokens
from tests.server.openai.conftest import tool

CALL = {"id": "a_0", "type": "function", "function": {"name": "a", "arguments": '{"city": 1}'}}
CHAT: dict[str, Any] = {
    "model": "kimi-k3",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "tools": [tool("b", strict=False)]},
        {"role": "user", "content": [{"type": "text", "text": "é"}], "name": "me"},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "content": "sun", "tool_call_id": "a_0"},
        {"role": "assistant", "content": "It is sunny.", "partial": True},
    ],
    "tools": [tool("a", description="d", strict=True)],
    "tool_choice": {"type": "function", "function": {"name": "a"}},
    "response_format": {"type": "text"},
    "thinking": {"type": "enabled", "keep": "all", "effort": "low"},
    "chat_template_kwargs": {"thinking": True, "preserve_thinking": True},
    "enable_thinking": True,
    "reasoning_effort": "high",
    "temperature": 0.5,
    "top_p": 0.95,
    "presence_penalty": 0,
    "seed": 1,
    "stop": ["a"],
    "max_tokens": 5,
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "n": 1,
}
FORMAT: dict[str, Any] = {
    "model": "kimi-k3",
    "messages": [{"role": "user", "content": "Hi"}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "strict": True,
            "schema": {"type": "object", "properties": {"a": {"type": "null"}}},
        },
    },
}
FREE: dict[str, Any] = {
    "model": "kimi-k3",
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": [[79, 110]],
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "stop_token_ids": [3],
    "logit_bias": {"5": 1},
    "max_tokens": 5,
}
NUMBERS: list[Any] = [0, 1, -1, 1.5, math.nan, math.inf, 10**400]
VALUES: list[Any] = [
    *NUMBERS,
    None,
    True,
    "",
    "x",
    "a" * 300,
    "\ud800",
    "\0",
    "user",
    "none",
    [],
    [None],
    [[]],
    ["x"],
    {},
    {"a": {"b": [{}]}},
    {"type": "text"},
    {"\ud800": "\ud800"},
]


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Every place within a value, by its keys."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (key,)
        yield from ((key, *rest) for rest in places(one))


def variants(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body with each place changed, removed or doubled."""
    for *outer, last in places(body):
        for value in [*VALUES, places]:
            changed = copy.deepcopy(body)
            holder = changed
            for key in outer:
                holder = holder[key]
            if value is not places:
                holder[last] = value
            elif isinstance(holder, list):
                holder.append(holder[last])
            else:
                del holder[last]
            yield changed


@pytest.mark.parametrize("body", [CHAT, FORMAT, FREE], ids=["chat", "format", "free"])
def test_every_body_is_read_or_refused(model: ServedModel, body: dict[str, Any]) -> None:
    model = replace(model, free_sampling=body is FREE)
    outcomes = {True: 0, False: 0}
    assert num_prompt_tokens(ChatCompletions().read(body, model), model) > 0
    for changed in variants(body):
        try:
            num_prompt_tokens(ChatCompletions().read(changed, model), model)
            if body is FREE:
                Completions().read(changed, model)
            outcomes[True] += 1
        except OpenK3Error as error:
            fault = fault_of(error)
            assert fault.status in (400, 404), changed
            text = json.dumps(ChatCompletions().error(fault), ensure_ascii=False)
            text.encode()
            assert len(text) < 1000, changed
            outcomes[False] += 1
    assert min(outcomes.values()) > 10
