"""JSON as the chat format writes and reads it.

Unusual: two spellings. Declarations are compact and sorted; arguments in a conversation keep their order and have
spaces. What a model writes is re-written compactly, in its order.
"""

from __future__ import annotations

import json
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


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def rewritten_json(text: str) -> str:
    """Rewrite a value that a model wrote; what is not strict JSON becomes a string."""
    try:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False, separators=_COMPACT, allow_nan=False)
        written.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can spell
        return json.dumps(value, separators=_COMPACT, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return written
