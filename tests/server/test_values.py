"""Typed reading of JSON: what is returned, and what is said of values that are something else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from openk3.server.faults import Fault
from openk3.server.values import Fields, Items, Value, json_shown, one_of

ANY: list[Any] = [None, True, 0, 1.5, math.nan, 10**400, "x", "\ud800", [], [1], {}, {"a": 1}]


def test_fields_are_read_as_what_they_are() -> None:
    body = Fields({"t": "x", "f": False, "n": 1.5, "w": 3, "c": "b", "i": [1, 2], "o": {"p": {"q": 7}}})
    assert (body.text("t"), body.flag("f"), body.number("n"), body.whole("w")) == ("x", False, 1.5, 3)
    assert body.choice("c", ("a", "b")) == "b"
    assert [(item.value, item.path) for item in body.items("i") or ()] == [(1, "i[0]"), (2, "i[1]")]
    inner = body.fields("o")
    assert inner is not None
    assert inner.require("p", "something").fields().require("q", "a number").path == "o.p.q"


@pytest.mark.parametrize("values", [{}, {"x": None}])
def test_null_is_as_good_as_absent(values: dict[str, Any]) -> None:
    body = Fields(values)
    assert "x" not in body
    read = [body.get("x"), body.text("x"), body.flag("x"), body.number("x"), body.whole("x"), body.choice("x", ("a",))]
    assert [*read, body.items("x"), body.fields("x")] == [None] * 8
    with pytest.raises(Fault, match="x is missing, expected a name") as caught:
        body.require("x", "a name")
    assert (caught.value.status, caught.value.param) == (400, "x")


@pytest.mark.parametrize("value", ANY)
@pytest.mark.parametrize("method", ["text", "flag", "number", "whole", "items", "fields"])
def test_every_value_is_returned_or_refused_by_its_path(value: Any, method: str) -> None:
    try:
        read = getattr(Value(value, "a.b[0]"), method)()
    except Fault as fault:
        assert fault.param == "a.b[0]"
        assert fault.text.startswith("a.b[0] is ")
        assert ", expected " in fault.text
        fault.text.encode()
    else:
        wanted: type = {"text": str, "flag": bool, "number": float, "whole": int, "items": Items, "fields": Fields}[
            method
        ]
        assert type(read) is wanted


@pytest.mark.parametrize(("value", "whole"), [(3, 3), (3.0, 3), (-2, -2), (2**70, 2**70)])
def test_whole_numbers(value: float, whole: int) -> None:
    read = Value(value, "x").whole()
    assert (read, type(read)) == (whole, int)


@pytest.mark.parametrize("value", [1.5, True, "3", math.inf, math.nan, None])
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(Fault, match="expected a whole number$"):
        Value(value, "x").whole()


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (0, 20, "from 0 to 20"),
        (1, math.inf, "of at least 1"),
        (-math.inf, 5, "of at most 5"),
        (0.5, 1, "from 0.5 to 1"),
    ],
)
def test_ranges_are_said(least: float, most: float, expected: str) -> None:
    outside = most + 1 if most < math.inf else least - 1
    with pytest.raises(Fault, match=f"expected a number {expected}$"):
        Value(outside, "x").number(least, most)
    assert Value(least if least > -math.inf else most, "x").number(least, most) in (least, most)


def test_limits_are_within() -> None:
    assert [Value(value, "x").number(0, 1) for value in (0, 1, 0.5)] == [0, 1, 0.5]
    for value in (-0.001, 1.001, math.nan, math.inf, 10**400):
        with pytest.raises(Fault):
            Value(value, "x").number(0, 1)


def test_choices_are_listed() -> None:
    assert one_of(["a"]) == "a"
    assert one_of(["a", "b", "c"]) == "a, b or c"
    with pytest.raises(Fault, match='x is "d", expected a, b or c'):
        Value("d", "x").choice(("a", "b", "c"))
    with pytest.raises(Fault, match=r'x is \["a"\], expected a string: a or b'):
        Value(["a"], "x").choice(("a", "b"))


@pytest.mark.parametrize("value", [*ANY, "x" * 1000, "\u202e", "\n\0", {"a": ["\udfff"]}])
def test_values_are_shown_in_one_short_line(value: Any) -> None:
    text = json_shown(value)
    assert len(text) <= 70
    assert text.isprintable()
    text.encode()


def test_values_are_shown_as_json() -> None:
    shown = [json_shown(value) for value in (None, True, "é", [1], {"a": None})]
    assert shown == ["null", "true", '"é"', "[1]", '{"a": null}']


def test_a_value_nested_too_deep_for_json_is_shown_too() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    assert json_shown(value)
