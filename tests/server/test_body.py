"""Bodies of requests: limits, depth, and everything that is almost JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from openk3.server.body import ClientGone, is_deeper, json_bytes, parse_object, read_body
from openk3.server.faults import Fault


def _read(messages: list[Message], headers: dict[str, str] | None = None, limit: int = 10) -> bytes:
    async def receive() -> Message:
        return messages.pop(0)

    return asyncio.run(read_body(headers or {}, receive, limit))


def _part(body: bytes, more: bool) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_comes_in_parts() -> None:
    assert _read([_part(b"{", True), _part(b"", True), _part(b"}", False)]) == b"{}"
    assert _read([{"type": "http.request"}]) == b""


def test_a_body_that_grows_too_large_is_not_read_to_its_end() -> None:
    messages = [_part(b"x" * 6, True), _part(b"x" * 6, True), _part(b"x", False)]
    with pytest.raises(Fault, match="more than 10 bytes") as caught:
        _read(messages)
    assert (caught.value.status, len(messages)) == (413, 1)


def test_a_length_that_is_too_large_is_refused_unread() -> None:
    messages = [_part(b"", False)]
    with pytest.raises(Fault, match="has 11 bytes, expected at most 10"):
        _read(messages, {"content-length": "11"})
    assert len(messages) == 1
    assert _read(messages, {"content-length": "10"}) == b""


def test_a_client_that_leaves() -> None:
    with pytest.raises(ClientGone):
        _read([_part(b"{", True), {"type": "http.disconnect"}])


def test_a_compressed_body_is_refused() -> None:
    with pytest.raises(Fault, match="'gzip', expected a body that is not compressed") as caught:
        _read([_part(b"", False)], {"content-encoding": "gzip"})
    assert caught.value.status == 415
    assert _read([_part(b"{}", False)], {"content-encoding": "identity"}) == b"{}"


@pytest.mark.parametrize("kind", ["text/plain;charset=UTF-8", "application/x-www-form-urlencoded", ""])
def test_a_page_cannot_ask_without_asking_the_browser_first(kind: str) -> None:
    with pytest.raises(Fault, match="expected content-type application/json"):
        _read([_part(b"{}", False)], {"origin": "https://elsewhere.example", "content-type": kind})
    assert _read([_part(b"{}", False)], {"content-type": kind}) == b"{}"  # a program may
    json_kind = {"origin": "https://elsewhere.example", "content-type": "application/json"}
    assert _read([_part(b"{}", False)], json_kind) == b"{}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON at line 1, column 1"),
        (b"{\n nope}", "not JSON at line 2, column 2"),
        (b"{} {}", "not JSON at line 1, column 4"),
        (b"\xff{}", "byte 0 of the body is not UTF-8"),
        ('{"a": "\ud83d"}'.encode("utf-8", "surrogatepass"), "byte 7 of the body is not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON at line 1, column 1"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8"),
        (b"[]", "the body is [], expected a JSON object"),
        (b"null", "the body is None, expected a JSON object"),
        (b'"text"', "expected a JSON object"),
        (b'{"a": NaN}', "holds NaN, which is not JSON"),
        (b'{"a": -Infinity}', "holds -Infinity, which is not JSON"),
        (b'{"a": 1e999}', "holds '1e999', expected numbers that float64 can hold"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of thousands of digits"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "more than 64 levels"),
        (b"[" * 100_000, "more than 64 levels"),
        (b'{"a\\":' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_almost_an_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(Fault) as caught:
        parse_object(body, 64)
    assert message in caught.value.text and caught.value.status == 400


def test_what_is_an_object() -> None:
    assert parse_object(b'{"a": [1, 2.5, "\\ud83d", "\\u0000", 123456789012345678901234567890]}', 2) == {
        "a": [1, 2.5, "\ud83d", "\0", 123456789012345678901234567890]
    }
    assert parse_object(b'{"a":' * 64 + b"1" + b"}" * 64, 64)


_JSON = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\ab'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\'), inner, max_size=3),
    max_leaves=30,
)


def _depth(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


@given(_JSON)
def test_depth_is_that_of_the_value(value: Any) -> None:
    body = json.dumps(value).encode()
    assert not is_deeper(body, _depth(value))
    if _depth(value):
        assert is_deeper(body, _depth(value) - 1)


@pytest.mark.parametrize(
    ("body", "ends_in_string"),
    [
        (b'"' + b'\\"' * 2_000_000, True),
        (b'"' * 2_000_001, True),
        (b'"' + b"\\" * 4_000_001, True),
        (b"[]" * 2_000_000, False),
    ],
)
def test_depth_is_found_in_linear_time(body: bytes, ends_in_string: bool) -> None:
    # In quadratic time this would take hours.
    assert is_deeper(body + b"[{" * 40, 64) != ends_in_string


def test_json_is_compact_and_can_always_be_encoded() -> None:
    assert json_bytes({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
    assert json_bytes({"a": "\udc00é"}) == b'{"a":"\\udc00\\u00e9"}'
