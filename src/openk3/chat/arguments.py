"""The JSON text of a call's arguments, built while the model writes them.

Unusual: strings stream character by character; any other value is held until it is complete, because only then is it
known to be JSON.
"""

from __future__ import annotations

import json

from openk3.chat.json_text import rewritten_json, string_body


class ArgumentsBuilder:
    """Build the text of one object; every method gives what is to be appended to it, maybe nothing.

    The text is an object whatever is called in whatever order, unless the model itself wrote all arguments as one
    JSON text, which is passed on as it is.
    """

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._raw = False
        self._value: _String | _Buffered | _Raw | None = None

    def open_argument(self, key: str | None, type_: str | None) -> str:
        """Begin an argument; one without key, or with a key that was there before, is left out."""
        ended = self.close_value()
        if key is None or key in self._keys or self._raw:
            return ended
        self._value = _String() if type_ == "string" else _Buffered()
        opening = "," if self._keys else "{"
        self._keys.add(key)
        return f"{ended}{opening}{json.dumps(key, ensure_ascii=False)}:{self._value.opening}"

    def open_json(self) -> str:
        """Begin arguments that are one JSON text; left out if others were there before."""
        ended = self.close_value()
        if not self._keys and not self._raw:
            self._value = _Raw()
        return ended

    def write(self, text: str) -> str:
        """Take more of the current value; text outside of any is left out."""
        if self._value is None:
            return ""
        written = self._value.write(text)
        if written and isinstance(self._value, _Raw):
            self._raw = True
        return written

    def close_value(self) -> str:
        """End the current value, if there is one."""
        value, self._value = self._value, None
        return value.close() if value else ""

    def close(self) -> str:
        """End the object."""
        ended = self.close_value()
        if self._raw:
            return ended
        return f"{ended}}}" if self._keys else f"{ended}{{}}"


class _String:
    opening = '"'

    def write(self, text: str) -> str:
        return string_body(text)

    def close(self) -> str:
        return '"'


class _Buffered:
    opening = ""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def write(self, text: str) -> str:
        self._pieces.append(text)
        return ""

    def close(self) -> str:
        return rewritten_json("".join(self._pieces))


class _Raw:
    """A whole JSON text; whitespace before it is held, so that nothing but whitespace counts as no arguments."""

    def __init__(self) -> None:
        self._held: list[str] | None = []

    def write(self, text: str) -> str:
        if self._held is None:
            return text
        self._held.append(text)
        if text.isspace():
            return ""
        held, self._held = self._held, None
        return "".join(held)

    def close(self) -> str:
        return ""
