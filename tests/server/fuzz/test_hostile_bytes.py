"""Bodies and whole requests made by hand to do harm: cut, endless, deep, twice the same, not JSON, not even HTTP.

Unusual: what is not HTTP at all is refused by the server below the application, in plain text.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.fuzz.api import BODIES, GETS
from tests.server.fuzz.asking import Asker, check, check_refusal
from tests.server.fuzz.conftest import NORMAL
from tests.server.openai.test_hostile_bodies import places

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.usefixtures("healthy")


def _placed(body: Any, place: tuple[Any, ...], raw: bytes) -> bytes:
    """The body with bytes, which need not be JSON, at one place."""
    *outer, last = place
    changed = json.loads(json.dumps(body))
    holder = changed
    for key in outer:
        holder = holder[key]
    holder[last] = "@@"
    return json.dumps(changed).encode().replace(b'"@@"', raw)


RAW = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-1e999",
    b"1e308",
    b"9" * 400,
    b"9" * 5000,
    b"-0.0",
    b"0x10",
    b"01",
    b'"\\ud800"',
    b'"\\udfff\\ud800"',
    b'"\xed\xa0\x80"',
    b'"\xff"',
    b'"\xc0\x80"',
    b'"\\u0000"',
    b'"\x00"',
    b'"\n"',
    b"[" * 60 + b"]" * 60,
    b"[" * 100_000,
    b'{"a":' * 62 + b"1" + b"}" * 62,
    b"{}",
    b"[]",
    b"null",
    b"true",
    b'"' + b"\\ud83d\\ude00" * 2000 + b'"',
    b"'a'",
    b"",
]


@pytest.mark.parametrize("path", NORMAL)
def test_bytes_at_every_place_of_a_body(asker: Asker, path: str) -> None:
    outcomes = [
        check(path, asker.ask(path, _placed(NORMAL[path], place, raw))) for place in places(NORMAL[path]) for raw in RAW
    ]
    assert outcomes.count(False) > len(RAW)


@pytest.mark.parametrize("path", NORMAL)
def test_bodies_cut_anywhere(asker: Asker, path: str) -> None:
    body = json.dumps(NORMAL[path]).encode()
    for end in range(0, len(body) - 1, 7):
        check_refusal(path, asker.ask(path, body[:end]))


WHOLE = [
    b"",
    b"null",
    b"[]",
    b'"model"',
    b"1",
    b"{",
    b"}",
    b"{}{}",
    b"\xef\xbb\xbf{}",
    b"\x00",
    b"\x1f\x8b\x08\x00",
    "{}".encode("utf-16"),
    b"{" * 1000,
    b'{"":{},"__class__":1,"\\u0000":2}',
    b'{"model":"nano","model":null}',
    b"a" * (1 << 20),
    b"[" * (1 << 20),
    b'{"a":"' + b"\\" * (1 << 20),
    b"model=nano&messages=Hi",
]


@pytest.mark.parametrize("path", BODIES)
def test_bodies_that_are_something_else(asker: Asker, path: str) -> None:
    for body in WHOLE:
        check_refusal(path, asker.ask(path, body))


@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_is_too_large(asker: Asker, path: str) -> None:
    reply = asker.send(_head(path, b"content-length: 99999999999"), b"{")  # refused before it has come
    assert reply is not None and reply.status == 413
    check_refusal(path, reply)


def _long() -> Iterator[tuple[str, dict[str, Any]]]:
    user = {"role": "user", "content": "Hi"}
    base = {"model": "nano", "messages": [user], "max_tokens": 1}
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    for name, text in (("a", "a"), ("space", " "), ("line", "\n"), ("emoji", "👩‍👩‍👧"), ("mixed", "aA1 _<|x|>")):
        yield f"content of {name}", {**base, "messages": [{**user, "content": text * (900_000 // len(text.encode()))}]}
    yield "model", {**base, "model": "m" * 900_000}
    yield "role", {**base, "messages": [{**user, "role": "r" * 900_000}]}
    yield "messages", {**base, "messages": [user] * 5000}
    yield "parts", {**base, "messages": [{**user, "content": [{"type": "text", "text": ""}] * 20_000}]}
    yield "same tools", {**base, "tools": [function] * 2000}
    yield "tools", {**base, "tools": [{**function, "function": {"name": f"f{i}"}} for i in range(2000)]}
    yield "stop", {**base, "stop": ["x"] * 100_000}
    yield "fields", {**base, **{f"x{i}": i for i in range(50_000)}}
    yield "pattern", _formatted({"type": "string", "pattern": "(a+)+" * 5000 + "$"})
    yield "repetition", _formatted({"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"})
    yield "length", _formatted({"type": "string", "minLength": 10**9})
    yield "items", _formatted({"type": "array", "items": {"type": "string"}, "minItems": 10**6})
    yield "enum", _formatted({"type": "string", "enum": [f"{i:08}" for i in range(50_000)]})
    yield "properties", _formatted({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(5000)}})
    yield "any of", _formatted({"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(5000)]})


def _formatted(value: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"value": value}, "required": ["value"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    user = {"role": "user", "content": "Hi"}
    return {"model": "nano", "messages": [user], "max_tokens": 1, "response_format": wanted}


LONG = dict(_long())


@pytest.mark.parametrize("name", LONG)
def test_long_values_do_not_hold_up_others(asker: Asker, name: str) -> None:
    begin = time.monotonic()
    check(CHAT, asker.ask_json(CHAT, LONG[name]))
    print(f"{name}: {time.monotonic() - begin:.2f} s")


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/form-data; boundary=x", "application/xml", "\xff", "a" * 999]
)
def test_content_types_do_not_matter_to_programs(asker: Asker, kind: str) -> None:
    body = json.dumps(NORMAL[CHAT]).encode()
    assert check(CHAT, asker.ask(CHAT, body, content_type=kind))
    check_refusal(CHAT, asker.ask(CHAT, b"--x\r\n", content_type=kind))
    check_refusal(CHAT, asker.ask(CHAT, body, content_type=kind, content_encoding="br"))


@pytest.mark.parametrize("path", [*BODIES, *GETS])
def test_wrong_methods(asker: Asker, path: str) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "POST"):
        reply = asker.ask(path, b"", method)
        if reply.status == 200:
            assert path in GETS and method in ("GET", "HEAD")
        elif method == "HEAD":
            assert reply.status == 405
        else:
            assert reply.status == 405 or (method == "POST" and path in BODIES)
            check_refusal(path, reply)


PATHS = ["//", "/v1", "/v1/", "/v1/../etc/passwd", "/v1/models/%00", "/v1/models/%ff%fe", "/v1/models/" + "x" * 9000]


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_there_are_not(asker: Asker, path: str) -> None:
    for method in ("GET", "POST"):
        check_refusal(path, asker.ask(path, b"{}", method))


def _head(path: str, *lines: bytes) -> bytes:
    return b"\r\n".join([b"POST %b HTTP/1.1" % path.encode(), b"host: x", *lines, b"", b""])


def _chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def test_a_body_in_chunks(asker: Asker) -> None:
    body = json.dumps(NORMAL[CHAT]).encode()
    head = _head(CHAT, b"transfer-encoding: chunked", b"connection: close")
    reply = asker.send(head + _chunked(*(body[i : i + 1] for i in range(len(body)))))
    assert reply and check(CHAT, reply)
    reply = asker.send(head, *(_chunked(b"[" * 65536)[:-5] for _ in range(20)))
    assert reply is not None and reply.status == 413
    check_refusal(CHAT, reply)


GARBAGE = {
    "nothing of HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    "no version": b"GET /\r\n\r\n",
    "another version": b"GET / HTTP/99\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a path with blanks": b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two lengths": _head(CHAT, b"content-length: 1", b"content-length: 2") + b"{}",
    "a length below zero": _head(CHAT, b"content-length: -1") + b"{}",
    "an endless length": _head(CHAT, b"content-length: " + b"9" * 4000) + b"{}",
    "a chunk of no size": _head(CHAT, b"transfer-encoding: chunked") + b"zz\r\n{}\r\n",
    "a chunk of an endless size": _head(CHAT, b"transfer-encoding: chunked") + b"f" * 100_000 + b"\r\n",
    "another encoding": _head(CHAT, b"transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
    "huge headers": _head(CHAT, *(b"x-%d: %b" % (i, b"a" * 1000) for i in range(200))),
    "a header without end": _head(CHAT, b"x: " + b"a" * 200_000),
    "a header with a NUL": _head(CHAT, b"x: a\x00b"),
    "a header in two lines": _head(CHAT, b"x: a", b" b"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_not_http_is_refused(asker: Asker, name: str) -> None:
    reply = asker.send(GARBAGE[name])
    assert reply is None or 400 <= reply.status < 500 or name == "another encoding", reply


def test_garbage_behind_a_request(asker: Asker) -> None:
    body = json.dumps(NORMAL[CHAT]).encode()
    request = _head(CHAT, b"content-length: %d" % len(body)) + body
    reply = asker.send(request + b"\x00\x01 garbage\r\n\r\n" * 3)
    assert reply and check(CHAT, reply)
    reply = asker.send(request * 30)  # all at once
    assert reply and check(CHAT, reply)


def test_headers_that_mean_something(asker: Asker) -> None:
    body = json.dumps(NORMAL[CHAT]).encode()
    for lines in (
        [b"authorization: Bearer \xff\xfe"],
        [b"authorization: " + b"a" * 5000],
        [b"x-api-key: \x80"],
        [b"x-request-id: " + b"i" * 5000],
        [b"upgrade: websocket", b"connection: upgrade"],
        [b"upgrade: h2c", b"connection: upgrade"],
        [b"expect: 100-continue"],
        [b"expect: nonsense"],
        [b"range: bytes=0-1", b"if-none-match: *", b"accept: text/html", b"accept-encoding: br;q=\xff"],
    ):
        reply = asker.send(_head(CHAT, b"content-length: %d" % len(body), *lines) + body)
        assert reply is not None and (reply.status == 100 or check(CHAT, reply)), lines


def test_bodies_that_never_come_hold_up_nobody(asker: Asker) -> None:
    body = json.dumps(NORMAL[CHAT]).encode()
    waiting = [socket.create_connection(asker.address, timeout=60) for _ in range(200)]
    try:
        for number, connection in enumerate(waiting):
            head = _head(CHAT, b"content-length: %d" % len(body))
            connection.sendall((head + body)[: number * (len(head) + len(body) - 1) // len(waiting)])
        assert check(CHAT, asker.ask(CHAT, body))
    finally:
        for connection in waiting:
            connection.close()
