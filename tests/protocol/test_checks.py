"""Numbers and ids of other makes become Python's own; any value can be shown."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from openk3.protocol.checks import as_ids, as_number, as_whole, shown


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        (0, 0),
        (-(2**64) + 1, -(2**64) + 1),
        (2**64, None),
        (-(2**64), None),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.int8(-3), -3),
        (True, None),
        (np.bool_(True), None),
        (1.0, None),
        (np.float64(1), None),
        (Decimal(1), None),
        ("1", None),
        (None, None),
    ],
)
def test_whole_numbers(value: Any, whole: int | None) -> None:
    assert as_whole(value) == whole
    assert whole is None or type(as_whole(value)) is int


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (10**300, 10**300),
        (10**400, None),
        (Fraction(10**400), None),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (Fraction(1, 2), 0.5),
        (math.inf, math.inf),
        (True, None),
        (np.bool_(False), None),
        (1j, None),
        ("1", None),
        (None, None),
        ([], None),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_numbers(value: Any, number: float | None) -> None:
    assert as_number(value) == number
    assert type(as_number(value)) in (int, float, type(None))


def test_a_nan_is_a_number() -> None:
    assert math.isnan(as_number(np.float32("nan")) or 0)


def test_ids() -> None:
    assert as_ids(()) == ()
    assert as_ids(np.array([1, 2])) == (1, 2)
    assert as_ids(number for number in (5, np.int16(6))) == (5, 6)
    for wrong in ("ab", b"ab", bytearray(b"a"), {1: 2}, 3, None, np.array(3), [1, -1], [True], [2**64], [1, "2"]):
        assert as_ids(wrong) is None


class Faulty:
    def __repr__(self) -> str:
        raise AttributeError("not made yet")


def test_every_value_can_be_shown() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    assert shown("a\n\ud800") == "'a\\n\\ud800'"
    assert shown(10**5000) == "something of type int"
    assert shown(deep) == "something of type list"
    assert shown(Faulty()) == "something of type Faulty"
    assert shown("x" * 1000) == "'" + "x" * 79 + "…"
