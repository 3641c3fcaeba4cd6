"""What tests of the Responses API share: bodies, tools, and what a model says in the chat format.

Unusual: `checked` has the official client's own types look at whatever the endpoint answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from openk3.server.endpoint import Event
from tests.server.openai.conftest import Dialect

_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

LARK = 'start: "*** Begin Patch\\n" line+ "*** End Patch"\nline: /[+-][^\\n]*/ "\\n"\n'


def body(given: Any = "Hi", **fields: Any) -> dict[str, Any]:
    """A body with a model and an input, and these fields."""
    return {"model": "kimi-k3", "input": given, **fields}


def function(name: str = "get_weather", **fields: Any) -> dict[str, Any]:
    """A function that takes a city."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "name": name, "parameters": schema, **fields}


def custom(name: str = "apply_patch", **fields: Any) -> dict[str, Any]:
    """A tool that takes plain text."""
    return {"type": "custom", "name": name, "description": "Edits files.", **fields}


def grammar(syntax: str, definition: str) -> dict[str, str]:
    """The format of a custom tool that takes only some texts."""
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def call(name: str, key: str, value: str, index: int = 1) -> str:
    """What a model writes to call a tool with one string."""
    return (
        f'<|open|>call tool="{name}" index="{index}"<|sep|><|open|>argument key="{key}" type="string"<|sep|>{value}'
        "<|close|>argument<|sep|><|close|>call<|sep|>"
    )


def calling(*written: str, reasoning: str = "", text: str = "") -> str:
    """What a model writes to think, say something and make these calls."""
    return (
        f"{reasoning}<|close|>think<|sep|><|open|>response<|sep|>{text}<|close|>response<|sep|>"
        f"<|open|>tools<|sep|>{''.join(written)}<|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
    )


def checked(response: Mapping[str, Any]) -> dict[str, Any]:
    """Give a response back if the official client can read every field of it."""
    Response.model_validate(response)
    return dict(response)


def data_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Give the data of a stream that the official client can read, and whose numbers and names are right."""
    data = [dict(event.data) for event in events if not isinstance(event.data, str)]
    assert len(data) == len(events)
    assert [event.name for event in events] == [one["type"] for one in data]
    assert [one["sequence_number"] for one in data] == list(range(len(data)))
    for one in data:
        read = _EVENTS.validate_python(one)
        assert read.type == one["type"]
    return data


def kinds(data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give the types of events without their common beginning, runs of deltas as one."""
    names = [str(one["type"]).removeprefix("response.") for one in data]
    return [name for n, name in enumerate(names) if not (name.endswith("delta") and names[n - 1 : n] == [name])]


def without_ids(value: Any) -> Any:
    """Give a response without what differs from one to the next."""
    if isinstance(value, dict):
        changing = ("id", "created_at", "completed_at")
        return {key: without_ids(one) for key, one in value.items() if key not in changing}
    return [without_ids(one) for one in value] if isinstance(value, list) else value


def whole(responses: Dialect, asked: dict[str, Any], said: str) -> dict[str, Any]:
    """Answer at once, checked."""
    return checked(responses.whole(asked, said))


def streamed(responses: Dialect, asked: dict[str, Any], said: str) -> list[dict[str, Any]]:
    """Answer with events, checked; give their data."""
    return data_of(responses.events(asked, said))
