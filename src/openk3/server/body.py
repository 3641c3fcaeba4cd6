"""A request's body: read while it comes in, up to a limit, then from bytes to one JSON object.

Unusual: the depth is counted before anything is parsed, so that no nesting can use up a stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
from starlette.types import Receive

from openk3.protocol.checks import shown
from openk3.server.faults import Fault


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


async def read_body(
    headers: Mapping[str, str], receive: Receive, max_bytes: int, grow: Callable[[int], None] = lambda size: None
) -> bytes:
    """Read a body of at most ``max_bytes``; ``grow`` hears of each part that comes, and may raise.

    Raises:
        Fault: it is longer (413), or compressed (415).
        ClientGone: the client left before its end.
    """
    _check_headers(headers, max_bytes)
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        grow(len(part))
        body += part
        if len(body) > max_bytes:
            raise _too_large(f"more than {max_bytes:,}", max_bytes)
        more = message.get("more_body", False)
    return bytes(body)


def parse_object(body: bytes, max_depth: int) -> dict[str, Any]:
    """Parse one JSON object of finite numbers with at most ``max_depth`` levels; raise `Fault` (400) if it is none."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Fault(f"byte {error.start} of the body is not UTF-8, expected JSON in UTF-8") from None
    if body.count(b",") > _MOST_COMMAS and _STRING.sub(b"", body).count(b",") > _MOST_COMMAS:
        raise Fault(f"the body has more than {_MOST_COMMAS:,} values, expected fewer", status=413)
    if is_deeper(body, max_depth):
        raise Fault(f"the body has more than {max_depth} levels of objects and lists, expected at most {max_depth}")
    try:
        value: object = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Fault(f"the body is not JSON at {where}: {error.msg}", hint="send one JSON object") from None
    except ValueError:  # Python reads no number of more than 4300 digits
        raise Fault("the body holds a number of thousands of digits, expected numbers that float64 can hold") from None
    if not isinstance(value, dict):
        raise Fault(f"the body is {shown(value)}, expected a JSON object")
    return value


# A string of a text that may not be JSON at all, in linear time: its end may be missing.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_PART = 1 << 20
# Twice as many as the longest prompt has token ids. Python does nothing else while it makes objects of JSON: a quarter
# of a second for a million.
_MOST_COMMAS = 1 << 21


def is_deeper(body: bytes, max_depth: int) -> bool:
    """Tell whether brackets outside of strings are nested more than ``max_depth`` deep."""
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    steps = np.frombuffer(_STRING.sub(b"", body), np.uint8)
    depth = 0
    for start in range(0, len(steps), _PART):
        depths = depth + np.cumsum(_STEPS[steps[start : start + _PART]], dtype=np.int64)
        if depths.max() > max_depth:
            return True
        depth = int(depths[-1])
    return False


def _check_headers(headers: Mapping[str, str], max_bytes: int) -> None:
    length = headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > max_bytes:
        raise _too_large(f"{int(length):,}", max_bytes)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Fault(f"content-encoding is {shown(encoding)}, expected a body that is not compressed", status=415)
    if "origin" in headers and headers.get("content-type", "").partition(";")[0].strip().lower() in _FROM_ANY_PAGE:
        # Any page may make a browser send these, without asking whether it may; they cannot see the answer.
        raise Fault("a page in a browser sends a form, expected content-type application/json", status=415)


_FROM_ANY_PAGE = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def _too_large(size: str, max_bytes: int) -> Fault:
    message = f"the body has {size} bytes, expected at most {max_bytes:,}"
    return Fault(message, status=413, hint="the server's --max-body allows more")


def _refuse(constant: str) -> None:
    raise Fault(f"the body holds {constant}, which is not JSON, expected finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Fault(f"the body holds {shown(text)}, expected numbers that float64 can hold")
    return number


def json_bytes(value: MutableMapping[str, Any] | Mapping[str, Any]) -> bytes:
    """Write compact JSON in UTF-8; half a surrogate pair, which UTF-8 cannot hold, as its escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
