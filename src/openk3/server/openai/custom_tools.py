"""Custom tools, which take plain text, as functions of one argument; and the text back from the JSON of arguments.

Unusual: the text streams. What it is held to, a grammar or a regular expression, the model can read too.
"""

from __future__ import annotations

import json
import re
from typing import Any

from openk3.chat.grammar_arguments import MOST_LARK
from openk3.chat.grammar_text import nested, refusal_of, regex
from openk3.errors import ChatError
from openk3.protocol.deep_stack import with_deep_stack
from openk3.server.faults import Fault
from openk3.server.values import Fields, Value

_ARGUMENT = "input"
_OPENING = f'{{"{_ARGUMENT}":"'
# As much of the inside of a JSON string as is whole.
_WHOLE = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*+', re.DOTALL)


def custom_function(name: str, tool: Fields) -> dict[str, Any]:
    """Declare a custom tool as the function ``name``.

    Raises:
        Fault: its format is none, or cannot be enforced (400).
    """
    argument = {"type": "string", **_format(tool.fields("format"))}
    parameters = {
        "type": "object",
        "properties": {_ARGUMENT: argument},
        "required": [_ARGUMENT],
        "additionalProperties": False,
    }
    described = {"description": tool.values["description"]} if "description" in tool else {}
    return {"name": name, **described, "parameters": parameters, "strict": True}


def custom_arguments(text: str) -> dict[str, str]:
    """Give the arguments of a call of a custom tool."""
    return {_ARGUMENT: text}


def _format(wanted: Fields | None) -> dict[str, Any]:
    if wanted is None or wanted.require("type", "text or grammar").choice(("text", "grammar")) == "text":
        return {}
    syntax = wanted.require("syntax", "lark or regex")
    definition = wanted.require("definition", "the text of the grammar")
    if not 1 <= len(definition.text()) <= MOST_LARK:
        raise definition.fault(f"1 to {MOST_LARK:,} characters")
    if not _is_unicode(definition.value):
        raise definition.fault("whole characters, no halves of surrogate pairs")
    return _lark(definition) if syntax.choice(("lark", "regex")) == "lark" else _pattern(definition)


def _is_unicode(text: str) -> bool:
    """Tell whether a text holds no half of a surrogate pair, which no grammar can."""
    return text.encode(errors="replace").decode() == text


def _lark(definition: Value) -> dict[str, Any]:
    try:
        with_deep_stack(lambda: nested(definition.value, definition.path))
    except ChatError as error:
        raise Fault(error.message, param=definition.path, hint=error.hint) from None
    return {"x-lark": definition.value}


def _pattern(definition: Value) -> dict[str, Any]:
    if fault := with_deep_stack(lambda: refusal_of(f"TEXT\nTEXT: {regex(definition.value)}")):
        raise definition.fault(f"a regular expression that can be enforced: {fault}")
    return {"pattern": f"^(?:{definition.value})$"}


class CustomInput:
    """Turn the JSON of a custom tool's arguments into its text, while it comes.

    Arguments that are not what was declared are held back to the end, and are the text themselves.
    """

    def __init__(self) -> None:
        self._json = ""
        self._num_read = 0

    def push(self, arguments: str) -> str:
        """Take more of the JSON and give the text in it."""
        self._json += arguments
        if not self._json.startswith(_OPENING):
            return ""
        start = self._num_read or len(_OPENING)
        whole = _WHOLE.match(self._json, start)
        self._num_read = whole.end() if whole else start
        return _unescaped(whole.group()) if whole else ""

    def finish(self) -> str:
        """Give the text that was held back."""
        if self._num_read or _OPENING.startswith(self._json):
            return ""
        try:
            value = json.loads(self._json)
        except (ValueError, RecursionError):
            return self._json
        text = value.get(_ARGUMENT, None if value else "") if isinstance(value, dict) else None
        return text if isinstance(text, str) else self._json


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:  # an escape that JSON does not have
        return text
