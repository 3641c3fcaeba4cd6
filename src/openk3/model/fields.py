"""Fields of JSON objects: found, of the right kind, of a value that can be honoured, and none that is unknown.

Unusual: JSON and Python disagree about truth, so ``true`` is no number here and ``1`` is no truth value.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from typing import Any

from openk3.errors import ConfigError


def reject_unknown(raw: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Raise `ConfigError` with the first key of ``raw`` that is not ``known``; ``where`` is the path before it."""
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "remove it, or use a version of openk3 that knows it"
            raise ConfigError(f"{where}{key}: unknown key (value {raw[key]!r:.80})", hint=hint)


def require_fixed(raw: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> None:
    """Raise `ConfigError` with the first field of ``raw`` that is there and differs from its value in ``fixed``."""
    for key, expected in fixed.items():
        if key in raw and (raw[key] != expected or isinstance(raw[key], bool) != isinstance(expected, bool)):
            raise ConfigError(f"{where}{key} is {raw[key]!r:.80}, but only {expected!r} can be honoured")


def get_field(raw: Mapping[str, Any], key: str, where: str, kind: type, default: Any = None) -> Any:
    """Return field ``key`` as a ``kind``; raise `ConfigError` if it is missing without default, or of another kind."""
    value = raw.get(key, default)
    if value is None:
        raise ConfigError(f"{where}{key} is missing", hint="it has no default; take it from the published config")
    accepted = (int, float) if kind is float else (kind,)
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, accepted):
        raise ConfigError(f"{where}{key} is {value!r:.80}, expected {kind.__name__}")
    if isinstance(value, int | float) and kind is float and not abs(value) <= sys.float_info.max:
        raise ConfigError(f"{where}{key} is {value!r:.80}, expected a finite number")
    return kind(value)


def require_mapping(raw: Any, where: str) -> Mapping[str, Any]:
    """Return ``raw``; raise `ConfigError` if it is no object."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} is {type(raw).__name__}, expected an object with named fields")
    return raw
