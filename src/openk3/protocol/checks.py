"""Values of a caller's own making: as Python's own numbers and ids, if they are any, and as error messages show them.

Unusual: true and false are no numbers here, though Python counts with them; numpy's numbers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real

WHOLE_LIMIT = 2**64
"""Whole numbers are smaller than this, and larger than its negative."""

_MOST_SHOWN = 80


def as_whole(value: object) -> int | None:
    """Return a whole number of at most 64 bits as an int; None if ``value`` is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    number = int(value)
    return number if abs(number) < WHOLE_LIMIT else None


def as_number(value: object) -> int | float | None:
    """Return a number that float64 can hold as an int or float, NaN and infinity too; None if ``value`` is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return int(value) if isinstance(value, Integral) else number


def as_ids(values: object) -> tuple[int, ...] | None:
    """Return token ids, whole numbers from 0 on, as a tuple of int; None if ``values`` are none. May be empty."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | bytearray | Mapping):
        return None
    try:
        given = tuple(values)
    except TypeError:  # an array without dimensions
        return None
    if set(map(type, given)) <= {int}:  # as good as always, and there can be a million
        ids = given
    else:
        ids = tuple(number for number in map(as_whole, given) if number is not None)
    if len(ids) < len(given) or (ids and not (min(ids) >= 0 and max(ids) < WHOLE_LIMIT)):
        return None
    return ids


def shown(value: object) -> str:
    """Write ``value`` for an error message, shortened; any value can be."""
    try:
        text = repr(value)
    except Exception:  # nested too deep, a number of too many digits, or a fault of somebody else's class
        return f"something of type {type(value).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
