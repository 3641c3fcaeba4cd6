"""Tools as Chat Completions declares them, globally or on a system message, and which may or must be called.

Unusual: a declaration is passed on as the client wrote it, because the model is to read exactly that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from openk3.chat.grammar import MOST_TOOLS
from openk3.chat.mfjs import check_parameters
from openk3.errors import ChatError
from openk3.protocol.messages import ToolChoice, ToolDeclaration
from openk3.server.faults import Fault
from openk3.server.values import Fields, Items, Value, json_shown

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CHOICES = ("auto", "none", "required")


class Choice(NamedTuple):
    """Whether tools must be called, and which one if only one may be."""

    tool_choice: ToolChoice
    only_tool: str | None = None


def read_tools(tools: Value | None, *, most_characters: int = 256) -> tuple[ToolDeclaration, ...]:
    """Read declarations, whose names have at most ``most_characters``.

    Raises:
        Fault: one that declares no function, or whose parameters are outside the schema dialect (400).
    """
    if tools is None:
        return ()
    return tuple(_read_tool(tool, most_characters) for tool in tool_items(tools))


def tool_items(tools: Value) -> Items:
    """Return the items of a list of tools; raise `Fault` (400) if there are more than a grammar can hold."""
    items = tools.items("a list of tools")
    if len(items) > MOST_TOOLS:
        raise Fault(
            f"{tools.path} has {len(items):,} tools, expected at most {MOST_TOOLS:,}",
            param=tools.path,
            hint="declare fewer tools",
        )
    return items


def require_unique(places: Iterable[tuple[str, ToolDeclaration]]) -> list[str]:
    """Return the names of tools, given with their paths; raise `Fault` (400) if two are the same."""
    first: dict[str, str] = {}
    for path, tool in places:
        name = tool["function"]["name"]
        if name in first:
            raise Fault(
                f"{path}.function.name is {json_shown(name)}, which {first[name]} declares already, "
                "expected a name of its own",
                param=f"{path}.function.name",
            )
        first[name] = path
    return list(first)


def read_choice(choice: Value | None, names: list[str]) -> Choice:
    """Read ``tool_choice``, given the names of all tools of the conversation.

    Raises:
        Fault: it is none, wants a call where no tool is declared, or names a tool that is not (400).
    """
    if choice is None:
        return Choice("auto")
    if isinstance(choice.value, Mapping):
        return _named(choice.fields(), names)
    wanted = choice.choice(_CHOICES)
    if wanted == "required" and not names:
        raise choice.fault("auto or none where no tool is declared", hint="declare tools")
    return Choice("required" if wanted == "required" else "none" if wanted == "none" else "auto")


def check_name(name: Value, most_characters: int) -> str:
    """Return the name of a tool; raise `Fault` (400) if it is none."""
    if not _NAME.fullmatch(name.text()) or len(name.value) > most_characters:
        raise name.fault(
            f"letters, digits, _ and -, at most {most_characters} of them, the first one a letter or _",
        )
    return name.text()


def check_schema(parameters: Value | None, where: str, *, strict: bool) -> None:
    """Check what a tool takes, called ``where`` in errors; raise `Fault` (400) with its path."""
    if parameters is None:
        return
    try:
        check_parameters(parameters.value, strict=strict, where=where)
    except ChatError as error:
        hint = "; ".join(filter(None, [f"at {parameters.path}", error.hint]))
        raise Fault(error.message, param=parameters.path, hint=hint) from None


def _read_tool(tool: Value, most_characters: int) -> ToolDeclaration:
    fields = tool.fields("an object that declares a function")
    kind = fields.require("type", '"function"')
    if kind.value == "builtin_function":
        raise kind.fault('"function": this server has no tools of its own')
    kind.choice(("function",))
    function = fields.require("function", "an object with name and parameters").fields()
    check_name(function.require("name", "the name of the function"), most_characters)
    function.text("description")
    strict = function.flag("strict") is not False
    check_schema(function.get("parameters"), "tools.function.parameters", strict=strict)
    declaration: ToolDeclaration = tool.value
    return declaration


def _named(choice: Fields, names: list[str]) -> Choice:
    choice.require("type", '"function"').choice(("function",))
    function = choice.require("function", "an object with the name of a tool").fields()
    name = function.require("name", "the name of a tool")
    if name.text() not in names:
        raise name.fault(f"the name of a declared tool: {', '.join(names[:20]) or 'there is none'}")
    return Choice("required", name.text())
