"""What the system tells the model besides the conversation: tools, effort, tool choice, response format.

Unusual: these sentences are constants of the format. A model was trained on exactly these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from openk3.chat.json_text import sorted_json
from openk3.errors import ChatError
from openk3.protocol.messages import Effort, ResponseFormat, ToolChoice, ToolDeclaration

_TOOLS = """# Tools
Here are the available tools, described in JSONSchema."""

_MORE_TOOLS = """## New Tools Available
The system dynamically extends the toolset via lazy-loading.
You have access to all existing and extended tools.
Here are the specs for the extended tools."""

_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)

_TOOL_CHOICE = {
    "required": """The system is invoked with `tool_choice=required`.
You MUST call tools in the next message.""",
    "none": """The system is invoked with `tool_choice=none`.
You MUST NOT call any tools in the next message.""",
}

_RESPONSE_FORMAT = """The system is invoked with `response_format={}`.
Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."""

_SCHEMA = "The JSON data must match the following schema:"


def declare_tools(tools: Sequence[ToolDeclaration], *, dynamic: bool) -> str:
    """Declare tools; ``dynamic`` ones extend those declared before. Raise `ChatError` if they are not JSON."""
    head = _MORE_TOOLS if dynamic else _TOOLS
    return f"{head}\n\n{_fenced(sorted_json(list(tools), 'tools'))}"


def state_effort(effort: Effort) -> str:
    """Say how much to think; raise `ChatError` for an unknown effort."""
    if effort not in get_args(Effort):
        raise ChatError(f"thinking effort is {effort!r}, expected {_listed(get_args(Effort))}")
    return _EFFORT.format(effort)


def state_tool_choice(choice: ToolChoice) -> str | None:
    """Say whether tools must or must not be called; raise `ChatError` for an unknown choice."""
    if choice not in get_args(ToolChoice):
        raise ChatError(f"tool_choice is {choice!r}, expected {_listed(get_args(ToolChoice))}")
    return _TOOL_CHOICE.get(choice)


def state_response_format(wanted: ResponseFormat) -> str | None:
    """Say what the response must be; raise `ChatError` for an unknown format or a schema that is not JSON."""
    if wanted.type not in ("text", "json_object", "json_schema"):
        raise ChatError(f"response format is {wanted.type!r}, expected text, json_object or json_schema")
    if (wanted.schema is not None) != (wanted.type == "json_schema"):
        fault = "without a schema" if wanted.schema is None else "with a schema"
        raise ChatError(
            f"response format is {wanted.type!r} {fault}, expected a schema with json_schema and only there"
        )
    if wanted.type == "text":
        return None
    lines = _RESPONSE_FORMAT.format(wanted.type)
    if wanted.schema is None:
        return lines
    return f"{lines}\n{_SCHEMA}\n{_fenced(sorted_json(wanted.schema, 'the response schema'))}"


def _fenced(json_text: str) -> str:
    return f"```json\n{json_text}\n```"


def _listed(values: Sequence[str]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"
