"""The JSON text of a call's arguments, built while the model writes them.

Unusual: strings stream character by character; any other value, and arguments that are one JSON text, are held until
they are complete, because only then are they known to be JSON.
"""

from __future__ import annotations

import json

from openk3.chat.json_text import is_object, rewritten_json, string_body


class ArgumentsBuilder:
    """Build the text of one object; every method gives what is to be appended to it, maybe nothing.

    The text is an object whatever is called in whatever order. Arguments that the model wrote as one JSON text are
    passed on as they are if that is an object, and otherwise become the string ``input`` of one.
    """

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._has_payload = False
        self._value: _String | _Buffered | _Payload | None = None

    def open_argument(self, key: str | None, type_: str | None) -> str:
        """Begin an argument; one without key, or with a key that was there before, is left out."""
        ended = self.close_value()
        if key is None or key in self._keys or self._has_payload:
            return ended
        self._value = _String() if type_ == "string" else _Buffered()
        opening = "," if self._keys else "{"
        self._keys.add(key)
        return f"{ended}{opening}{json.dumps(key, ensure_ascii=False)}:{self._value.opening}"

    def open_json(self) -> str:
        """Begin arguments that are one JSON text; left out if others were there before."""
        ended = self.close_value()
        if not self._keys and not self._has_payload:
            self._value = _Payload()
        return ended

    def write(self, text: str) -> str:
        """Take more of the current value; text outside of any is left out."""
        return self._value.write(text) if self._value else ""

    def close_value(self) -> str:
        """End the current value, if there is one."""
        value, self._value = self._value, None
        written = value.close() if value else ""
        if written and isinstance(value, _Payload):
            self._has_payload = True
        return written

    def cut(self) -> str:
        """Give what there is of an unclosed JSON text, as it is: no more of it comes."""
        return self._value.text if isinstance(self._value, _Payload) else ""

    def close(self) -> str:
        """End the object."""
        ended = self.close_value()
        if self._has_payload:
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

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def write(self, text: str) -> str:
        self._pieces.append(text)
        return ""

    def close(self) -> str:
        return rewritten_json(self.text)


class _Payload(_Buffered):
    """A whole JSON text; nothing but whitespace counts as no arguments."""

    def close(self) -> str:
        text = self.text
        if not text.strip():
            return ""
        return text if is_object(text) else f'{{"input":"{string_body(text)}"}}'
