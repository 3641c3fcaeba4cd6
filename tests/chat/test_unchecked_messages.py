"""Messages filled in from unchecked JSON: each wrong type is one error that names its place."""

from __future__ import annotations

from typing import Any

import pytest

from openk3.chat.conversation import check_conversation
from openk3.errors import ChatError
from openk3.protocol.messages import ImagePart, Message, TextPart, ToolCall


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"content": 5}, "content is 5, expected text"),
        ({"content": ["a"]}, r"content is \['a'\], expected text"),
        ({"content": ("a",)}, r"content\[0\] is 'a', expected a part"),
        ({"content": (TextPart(5),)}, r"content\[0\].text is 5"),  # type: ignore[arg-type]
        ({"content": (ImagePart(1, 1, 10**12),)}, "an image has 1x1 pixels and 1000000000000 tokens"),
        ({"content": (ImagePart(1, 1.5, 1),)}, "an image has 1x1.5 pixels"),  # type: ignore[arg-type]
        ({"name": 5}, "name is 5"),
        ({"reasoning": 5}, "reasoning is 5"),
        ({"tool_calls": (ToolCall("a", 5, {}),)}, r"tool_calls\[0\].name is 5"),  # type: ignore[arg-type]
        ({"tool_calls": ({"name": "f"},)}, r"tool_calls\[0\] is \{'name': 'f'\}, expected a call"),
        ({"tool_call_id": ["a"]}, r"tool_call_id is \['a'\]"),
    ],
)
def test_wrong_types_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ChatError, match=rf"messages\[0\]: {message}"):
        check_conversation([Message(role="assistant", **fields)])
