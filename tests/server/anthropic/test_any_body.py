"""Whatever JSON comes, it is understood or refused; nothing else happens."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from openk3.errors import OpenK3Error
from openk3.server.anthropic.messages import Messages
from openk3.server.anthropic.tokens import CountTokens
from openk3.server.endpoint import ServedModel
from openk3.server.faults import fault_of

FULL: dict[str, Any] = {
    "model": "kimi-k3",
    "max_tokens": 100,
    "stream": False,
    "temperature": 1.0,
    "top_p": 0.95,
    "top_k": 0,
    "stop_sequences": ["END"],
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "f_0", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "f_0", "content": [{"type": "text", "text": "sun"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ],
    "tools": [{"name": "f", "description": "Does it", "input_schema": {"type": "object", "properties": {"a": {}}}}],
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
}
ODD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        10**400,
        1e300,
        float("nan"),
        float("inf"),
        "",
        "\ud800",
        "\0",
        "x" * 1000,
        [],
        {},
        [None],
        {"type": None},
        {"type": "text"},
        [{"type": []}],
        [["text"]],
        {"type": "object", "properties": 3},
        json.loads("[" * 60 + "]" * 60),
    ]
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List where every value within one stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))][0 if path else 1 :]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(paths(FULL)), ODD), min_size=1, max_size=2))
def test_a_body_with_odd_values_is_understood_or_refused(
    model: ServedModel, changes: list[tuple[tuple[Any, ...], Any]]
) -> None:
    body = copy.deepcopy(FULL)
    for path, value in changes:
        at: Any = body
        try:
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    try:
        Messages().read(body, model)
        count = CountTokens().count(body, model)
        assert count["input_tokens"] > 0
    except OpenK3Error as error:
        fault = fault_of(error)
        assert fault.status in (400, 404)
        json.dumps(Messages().error(fault), ensure_ascii=False).encode()
