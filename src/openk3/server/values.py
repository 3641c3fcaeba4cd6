"""Typed reading of a request's JSON: every value knows where it stands, and says so when it is not what was expected.

Unusual: null is as good as absent, because clients' own objects are full of it; fields that nobody reads are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openk3.protocol.checks import shown
from openk3.server.faults import Fault

_MOST_SHOWN = 60


def json_shown(value: object) -> str:
    """Write a JSON value for an error message: as JSON, in one line, cut to 60 characters, all printable."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = shown(value)
    text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value and its path in the body; each method returns it as one type or raises `Fault` (400)."""

    value: Any
    path: str

    def fault(self, expected: str, *, hint: str | None = None) -> Fault:
        """Say that the value is not what was expected."""
        return Fault(f"{self.path} is {json_shown(self.value)}, expected {expected}", param=self.path, hint=hint)

    def text(self, expected: str = "a string") -> str:
        """Return a string; it may be empty, and may hold half a surrogate pair."""
        if not isinstance(self.value, str):
            raise self.fault(expected)
        return self.value

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self.fault("true or false")
        return self.value

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number from ``least`` to ``most``."""
        expected = f"a number{_range(least, most)}"
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.fault(expected)
        try:
            number = float(self.value)
        except OverflowError:
            raise self.fault(expected) from None
        if not (math.isfinite(number) and least <= number <= most):
            raise self.fault(expected)
        return number

    def whole(self, least: float = -math.inf, most: float = math.inf) -> int:
        """Return a whole number from ``least`` to ``most``; 3.0 is one, as JSON does not tell it from 3."""
        number = self.value
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise self.fault(f"a whole number{_range(least, most)}")
        return number

    def choice(self, options: Sequence[str]) -> str:
        """Return a string that is one of ``options``."""
        if not isinstance(self.value, str):
            raise self.fault(f"a string: {one_of(options)}")
        if self.value not in options:
            raise self.fault(one_of(options))
        return self.value

    def items(self, expected: str = "a list") -> Items:
        """Return the items of a list, maybe an empty one."""
        if not isinstance(self.value, list | tuple):
            raise self.fault(expected)
        return Items(self.value, self.path)

    def fields(self, expected: str = "an object") -> Fields:
        """Return the fields of an object."""
        if not isinstance(self.value, Mapping):
            raise self.fault(expected)
        return Fields(self.value, self.path)


class Items:
    """The items of a JSON list; each is made a `Value` when it is looked at, as there can be millions."""

    def __init__(self, values: Sequence[Any], path: str) -> None:
        self._values, self._path = values, path

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, number: int) -> Value:
        number = range(len(self))[number]
        return Value(self._values[number], f"{self._path}[{number}]")

    def __iter__(self) -> Iterator[Value]:
        return map(self.__getitem__, range(len(self)))


class Fields:
    """The fields of a JSON object; ``path`` is empty for the body itself.

    Methods named as a `Value`'s do the same with the value of a field, and return None if it is absent or null.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values, self.path = values, path

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def path_of(self, name: str) -> str:
        """Say where a field stands, or would."""
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> Value | None:
        """Return a field's value."""
        value = self.values.get(name)
        return None if value is None else Value(value, self.path_of(name))

    def require(self, name: str, expected: str) -> Value:
        """Return a field's value; raise `Fault` if there is none."""
        value = self.get(name)
        if value is None:
            path = self.path_of(name)
            raise Fault(f"{path} is missing, expected {expected}", param=path)
        return value

    def text(self, name: str) -> str | None:
        """Return a string."""
        return value.text() if (value := self.get(name)) else None

    def flag(self, name: str) -> bool | None:
        """Return true or false."""
        return value.flag() if (value := self.get(name)) else None

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float | None:
        """Return a finite number from ``least`` to ``most``."""
        return value.number(least, most) if (value := self.get(name)) else None

    def whole(self, name: str, least: float = -math.inf, most: float = math.inf) -> int | None:
        """Return a whole number from ``least`` to ``most``."""
        return value.whole(least, most) if (value := self.get(name)) else None

    def choice(self, name: str, options: Sequence[str]) -> str | None:
        """Return a string that is one of ``options``."""
        return value.choice(options) if (value := self.get(name)) else None

    def items(self, name: str, expected: str = "a list") -> Items | None:
        """Return the items of a list."""
        return value.items(expected) if (value := self.get(name)) else None

    def fields(self, name: str, expected: str = "an object") -> Fields | None:
        """Return the fields of an object."""
        return value.fields(expected) if (value := self.get(name)) else None


def one_of(options: Sequence[str]) -> str:
    """List ``options`` as a sentence does: ``a, b or c``."""
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"


def _range(least: float, most: float) -> str:
    if least == -math.inf:
        return "" if most == math.inf else f" of at most {_number(most)}"
    return f" of at least {_number(least)}" if most == math.inf else f" from {_number(least)} to {_number(most)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)
