"""Tools as the Responses API declares them: functions, custom tools that take plain text, namespaces of both.

Unusual: the model knows functions only. A custom tool is one with a single argument, and a tool of a namespace one
whose name begins with the namespace's; answers and history turn them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from openk3.protocol.messages import ToolDeclaration
from openk3.server.faults import Fault
from openk3.server.openai.chat_tools import Choice, check_name, check_schema, read_choice, tool_items
from openk3.server.openai.custom_tools import custom_function
from openk3.server.values import Fields, Value, json_shown, one_of

MOST_NAME_CHARACTERS = 128
"""Of a tool, with its namespace."""

_TYPES = ("function", "custom", "namespace")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
# What the services of others run themselves.
_HOSTED = (
    "web_search",
    "web_search_preview",
    "file_search",
    "code_interpreter",
    "computer_use_preview",
    "image_generation",
    "local_shell",
    "shell",
    "apply_patch",
    "mcp",
    "tool_search",
)


@dataclass(frozen=True)
class Tool:
    """A declared tool: where, as what, by which names, and as the model knows it."""

    path: str
    kind: Literal["function", "custom"]
    name: str
    namespace: str | None
    declaration: ToolDeclaration

    @property
    def full_name(self) -> str:
        """The name that the model knows."""
        return full_name(self.namespace, self.name)


def full_name(namespace: str | None, name: str) -> str:
    """Join the name of a tool to that of its namespace, as the model knows it."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(tools: Value | None) -> list[Tool]:
    """Read declarations; those in namespaces stand beside the others.

    Raises:
        Fault: one that this server does not have, has no fit name, or takes what cannot be enforced (400).
    """
    values = () if tools is None else tool_items(tools)
    return [tool for value in values for tool in _read(value)]


def require_unique(tools: Sequence[Tool]) -> Mapping[str, Tool]:
    """Return tools by their full names; raise `Fault` (400) if two are the same."""
    known: dict[str, Tool] = {}
    for tool in tools:
        first = known.setdefault(tool.full_name, tool)
        if first is not tool:
            raise Fault(
                f"{tool.path}.name is {json_shown(tool.name)}, which {first.path} declares already, "
                "expected a name of its own",
                param=f"{tool.path}.name",
            )
    return known


def read_tool_choice(choice: Value | None, tools: Mapping[str, Tool]) -> Choice:
    """Read ``tool_choice``; besides auto, which is all that the hosted service has, none, required and one tool.

    Raises:
        Fault: it is none of those, or no such tool is declared (400).
    """
    if choice is None or not isinstance(choice.value, Mapping):
        return read_choice(choice, list(tools))
    fields = choice.fields()
    fields.require("type", '"function" or "custom"').choice(("function", "custom"))
    name = fields.require("name", "the name of a tool")
    wanted = full_name(fields.text("namespace"), name.text())
    if wanted not in tools:
        raise name.fault(f"the name of a declared tool: {', '.join(list(tools)[:20]) or 'there is none'}")
    return Choice("required", wanted)


def _read(tool: Value) -> Iterator[Tool]:
    fields = tool.fields("an object that declares a tool")
    if _kind(fields, _TYPES) != "namespace":
        yield _read_one(tool, None)
        return
    namespace = fields.require("name", "the name of the namespace")
    check_name(namespace, MOST_NAME_CHARACTERS)
    fields.text("description")
    for member in fields.require("tools", "a list of tools").items("a list of tools"):
        yield _read_one(member, namespace.value)


def _read_one(tool: Value, namespace: str | None) -> Tool:
    fields = tool.fields("an object that declares a tool")
    kind = _kind(fields, _TYPES[:2])
    name = fields.require("name", "the name of the tool")
    check_name(name, MOST_NAME_CHARACTERS)
    known = full_name(namespace, name.value)
    if len(known) > MOST_NAME_CHARACTERS:
        raise name.fault(f"at most {MOST_NAME_CHARACTERS} characters with the name of its namespace, {namespace}")
    fields.text("description")
    if kind == "custom":
        return Tool(tool.path, "custom", name.value, namespace, _declared(custom_function(known, fields)))
    strict = fields.flag("strict") is not False
    check_schema(fields.get("parameters"), "tools.parameters", strict=strict)
    function = {key: fields.values[key] for key in _FUNCTION_KEYS if key in fields}
    return Tool(tool.path, "function", name.value, namespace, _declared({**function, "name": known}))


def _kind(fields: Fields, allowed: Sequence[str]) -> str:
    kind = fields.require("type", one_of(allowed))
    if kind.value in _HOSTED:
        hint = "turn it off in the client, or declare a function for it"
        raise kind.fault(f"{one_of(allowed)}: this server has no {kind.value} of its own", hint=hint)
    return kind.choice(allowed)


def _declared(function: dict[str, Any]) -> ToolDeclaration:
    return {"type": "function", "function": function}
