"""JSON as the chat format writes and reads it.

Unusual: two spellings. Declarations are compact and sorted; arguments in a conversation keep their order and have
spaces. What a model writes is re-written compactly, in its order; numbers beyond float64 stay as written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from openk3.errors import ChatError

_COMPACT = (",", ":")


def sorted_json(value: Any, what: str) -> str:
    """Write a declaration; raise `ChatError`, calling it ``what``, if it is not JSON."""
    try:
        return json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=_COMPACT, allow_nan=False, default=_plain
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatError(f"{what} cannot be written as JSON: {error}") from None


def spaced_json(value: Any, what: str) -> str:
    """Write an argument of a call in history; raise `ChatError`, calling it ``what``, if it is not JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatError(f"{what} cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def string_body(text: str) -> str:
    """Escape ``text`` as part of a JSON string, without quotes; pieces may be escaped one by one."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_object(text: str) -> bool:
    """Say whether a text that a model wrote is an object in strict JSON."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def rewritten_json(text: str) -> str:
    """Rewrite a value that a model wrote; what is not strict JSON, or no number of Python, becomes a string."""
    large: list[_LargeNumber] = []

    def read(digits: str) -> float | _LargeNumber:
        number = float(digits)
        if math.isfinite(number):
            return number
        large.append(_LargeNumber(digits))
        return large[-1]

    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=read)
        return _written(value) if large else _compact(value)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


class _LargeNumber(str):
    """The spelling of a number that JSON has and float64 has not."""

    __slots__ = ()


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{_compact(key)}:{_written(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return str(value) if isinstance(value, _LargeNumber) else _compact(value)


def _compact(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False, separators=_COMPACT)
    try:
        written.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can spell
        return json.dumps(value, separators=_COMPACT)
    return written


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
