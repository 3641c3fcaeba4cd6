"""The flags of ``generate`` that say what an answer must be: a format of the response, tools to call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import Parameter

from openk3.cli.errors import UsageError
from openk3.cli.flags import Switch
from openk3.cli.text_input import check_text
from openk3.protocol.messages import ResponseFormat, ToolChoice, ToolDeclaration

_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, kw_only=True)
class ConstraintFlags:
    """What an answer must be; nothing of it belongs to plain text."""

    json_schema: str | None = None
    """A JSON schema that the answer is to follow: a file with one, or its text."""
    json_object: Switch = False
    """Answer with a JSON object."""
    regex: str | None = None
    """Answer with what this regular expression matches as a whole."""
    tools: Path | None = None
    """A file with a JSON list of tools that may be called; calls are printed as JSON lines."""
    tool_choice: str | None = None
    """Whether tools are called: auto (if not given), none, required, or the name of the one to call."""

    @property
    def are_given(self) -> bool:
        """Whether there is any."""
        return self != ConstraintFlags()

    def options(self) -> dict[str, Any]:
        """Give the options of a chat; raise `UsageError` for flags that make no sense together or a wrong file."""
        tools = () if self.tools is None else _read_tools(self.tools)
        choice, only = self._choice()
        if choice != "auto" and not tools:
            raise UsageError(
                f"--tool-choice is {self.tool_choice!r}, but there are no tools", hint="give them with --tools FILE"
            )
        return {"response_format": self._format(), "tools": tools, "tool_choice": choice, "only_tool": only}

    def _choice(self) -> tuple[ToolChoice, str | None]:
        if self.tool_choice is None or self.tool_choice in _CHOICES:
            return cast(ToolChoice, self.tool_choice or "auto"), None
        return "required", self.tool_choice

    def _format(self) -> ResponseFormat | None:
        given = {"--json-schema": self.json_schema, "--json-object": self.json_object or None, "--regex": self.regex}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise UsageError(f"{' and '.join(names)} are given, expected one format of the answer")
        if self.json_schema is not None:
            return ResponseFormat(type="json_schema", schema=_read_schema(self.json_schema))
        if self.regex is not None:
            check_text(self.regex, "--regex")
            return ResponseFormat(type="regex", regex=self.regex)
        return ResponseFormat(type="json_object") if self.json_object else None


Constraints = Annotated[ConstraintFlags, Parameter(name="*")]


def _read_schema(given: str) -> dict[str, Any]:
    if given.lstrip().startswith("{"):
        check_text(given, "--json-schema")
        return cast(dict[str, Any], _parse_json(given, "--json-schema: the text"))
    schema = _read_json(Path(given), "--json-schema")
    if not isinstance(schema, dict):
        raise UsageError(f"--json-schema: {given} holds {schema!r:.60}, expected an object")
    return schema


def _read_tools(file: Path) -> list[ToolDeclaration]:
    tools = _read_json(file, "--tools")
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(
            f"--tools: {file} holds {tools!r:.60}, expected a list of tools",
            hint='write [{"type": "function", "function": {"name": …, "parameters": …}}]',
        )
    return tools


def _read_json(file: Path, flag: str) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag}: {file} cannot be read as JSON: {error}") from None
    return _parse_json(text, f"{flag}: {file}")


def _parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} cannot be read as JSON: {error}") from None
