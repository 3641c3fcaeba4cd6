"""Requests, spans of images and grammars are checked once, when they are made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from openk3.errors import ConfigError
from openk3.protocol.request import Grammar, MediaSpan, Request


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_ids", 3),
        ("prompt_ids", None),
        ("prompt_ids", "abc"),
        ("prompt_ids", b"abc"),
        ("prompt_ids", {1, 2}),
        ("prompt_ids", {1: 2}),
        ("prompt_ids", (1.5,)),
        ("prompt_ids", (True,)),
        ("prompt_ids", (None,)),
        ("prompt_ids", (1, "2")),
        ("prompt_ids", (3, -1)),
        ("prompt_ids", (10**400,)),
        ("prompt_ids", np.array([[1]])),
        ("prompt_ids", np.array(1)),
        ("prompt_ids", np.array([1.0])),
        ("params", None),
        ("params", {"temperature": 0}),
        ("priority", "high"),
        ("priority", None),
        ("priority", []),
        ("timeout_s", "1"),
        ("timeout_s", True),
        ("timeout_s", 0),
        ("timeout_s", -1.0),
        ("timeout_s", math.nan),
        ("timeout_s", 10**400),
        ("grammar", "start: /a/"),
        ("media", None),
        ("media", 3),
        ("media", ((0, 1, b""),)),
        ("cache_salt", 3),
        ("cache_salt", None),
        ("cache_salt", b"x"),
        ("cache_salt", "\ud800"),
        ("replayed", 3),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_values_without_meaning_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is .*, expected ") as caught:
        Request(**{"prompt_ids": (1, 2), field: value})
    assert len(str(caught.value)) < 200


def test_an_empty_prompt_is_refused() -> None:
    empties: list[Any] = [(), [], np.array([], dtype=np.int64)]
    for empty in empties:
        with pytest.raises(ConfigError, match="the prompt is empty, expected at least one token"):
            Request(prompt_ids=empty)


@pytest.mark.parametrize(
    "given",
    [[1, 2], range(1, 3), np.array([1, 2], dtype=np.uint16), iter((1, 2)), (np.int8(1), 2)],
    ids=["list", "range", "array", "iterator", "mixed"],
)
def test_ids_of_any_kind_become_a_tuple(given: Any) -> None:
    others: dict[str, Any] = {"timeout_s": np.float32(2), "media": [MediaSpan(np.array([1])[0], 1, b"x")]}
    request = Request(prompt_ids=given, **others)
    assert request == Request(prompt_ids=(1, 2), timeout_s=2.0, media=(MediaSpan(1, 1, b"x"),))
    assert set(map(type, request.prompt_ids)) == {int}
    assert type(request.timeout_s) is float
    assert hash(request) == hash(Request(prompt_ids=(1, 2), timeout_s=2.0, media=(MediaSpan(1, 1, b"x"),)))


def test_the_limits_themselves_are_allowed() -> None:
    Request(prompt_ids=(0,), timeout_s=math.inf, cache_salt="é", media=(MediaSpan(0, 1, b""),))
    Request(prompt_ids=(2**64 - 1,), timeout_s=1e-300, priority="batch", replayed=len, grammar=Grammar(""))


@pytest.mark.parametrize(
    ("span", "fault"),
    [
        ((-1, 1, b""), "an image spans 1 tokens from -1"),
        ((0, 0, b""), "an image spans 0 tokens from 0"),
        (("0", 1, b""), "an image spans 1 tokens from '0'"),
        ((0, 1.5, b""), "an image spans 1.5 tokens"),
        ((True, 1, b""), "from True"),
        ((0, 10**400, b""), "an image spans 1000"),
        ((0, 1, "x"), "the digest of an image is 'x', expected bytes"),
    ],
)
def test_spans_without_meaning_are_refused(span: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        MediaSpan(*span)


def test_an_image_lies_within_the_prompt() -> None:
    with pytest.raises(ConfigError, match="an image spans tokens 1 to 3, but the prompt has 3"):
        Request(prompt_ids=(1, 2, 3), media=(MediaSpan(0, 1, b""), MediaSpan(1, 3, b"")))
    Request(prompt_ids=(1, 2, 3), media=(MediaSpan(0, 3, b""),))


@pytest.mark.parametrize("lark", [3, None, b"start: /a/"])
def test_a_grammar_is_text(lark: Any) -> None:
    with pytest.raises(ConfigError, match="a grammar is .*, expected its text"):
        Grammar(lark)
