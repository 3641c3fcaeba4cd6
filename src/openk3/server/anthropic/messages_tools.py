"""Anthropic's tools and the choice among them, as the chat format declares them.

Unusual: only tools that the client runs can be declared; those that Anthropic runs itself are refused, never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from openk3.chat.grammar import MOST_TOOLS
from openk3.chat.mfjs import check_parameters
from openk3.errors import ChatError
from openk3.llm.question import ChatOptions
from openk3.protocol.messages import ToolDeclaration
from openk3.server.faults import Fault, fault_of
from openk3.server.values import Fields, Value

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,255}")
_NAME_RULE = "a letter or underscore, then letters, digits, _ and -, at most 256 characters in all"
_CHOICES = ("auto", "any", "none", "tool")


def read_tools(body: Fields) -> ChatOptions:
    """Return the tools of a body, whether one must be called, and which.

    Raises:
        Fault: a tool is none, has a name twice, or is to be called and not declared.
    """
    tools: dict[str, ToolDeclaration] = {}
    items = body.items("tools", "a list of tools") or ()
    if len(items) > MOST_TOOLS:
        raise Fault(f"tools has {len(items):,} tools, expected at most {MOST_TOOLS:,}", hint="declare fewer tools")
    for item in items:
        tool = item.fields("a tool with name and input_schema")
        name = _name(tool)
        if name in tools:
            raise tool.require("name", "a name").fault("a name that no other tool has")
        tools[name] = _declaration(name, tool)
    options = ChatOptions(tools=tuple(tools.values()), strict_tools=False)
    return options | _choice(body, tuple(tools))


def _name(tool: Fields) -> str:
    kind = tool.get("type")
    if kind is not None and kind.value != "custom":
        raise kind.fault("custom", hint="this server runs no tools; declare one that the client runs, with a schema")
    name = tool.require("name", "the name of a tool")
    if not _NAME.fullmatch(name.text()):
        raise name.fault(_NAME_RULE)
    return name.text()


def _declaration(name: str, tool: Fields) -> ToolDeclaration:
    """Declare a tool; one that leaves ``strict`` out is not (`ChatOptions.strict_tools`)."""
    given = tool.require("input_schema", "a JSON schema")
    schema, strict = given.fields("a JSON schema, an object").values, tool.flag("strict") is True
    try:
        check_parameters(schema, strict=strict, where=given.path)
    except ChatError as error:
        raise fault_of(error) from None
    function: dict[str, Any] = {"name": name, "parameters": schema}
    if (said := tool.flag("strict")) is not None:
        function["strict"] = said
    if description := tool.text("description"):
        function["description"] = description
    return {"type": "function", "function": function}


def _choice(body: Fields, names: Sequence[str]) -> ChatOptions:
    given = body.fields("tool_choice", 'an object such as {"type": "auto"}')
    if given is None:
        return ChatOptions()
    given.flag("disable_parallel_tool_use")
    kind = given.require("type", "auto, any, none or tool")
    choice = kind.choice(_CHOICES)
    if choice in ("any", "tool") and not names:
        raise kind.fault("auto or none, as there are no tools")
    if choice == "tool":
        return ChatOptions(tool_choice="required", only_tool=_declared(given.require("name", "that of a tool"), names))
    return ChatOptions(tool_choice="required" if choice == "any" else "none" if choice == "none" else "auto")


def _declared(name: Value, names: Sequence[str]) -> str:
    if name.text() not in names:
        raise name.fault("the name of a declared tool", hint=f"the declared tools are {', '.join(names):.200}")
    return name.text()
