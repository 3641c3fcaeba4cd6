"""Text from outside: always UTF-8, and said plainly when it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from openk3.cli.errors import UsageError


def read_all() -> str:
    """Read stdin to its end, without the line end that closes it; raise `UsageError` if it is not UTF-8."""
    return _decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n").removesuffix("\r")


def read_lines() -> Iterator[str]:
    """Give the lines of stdin as they come, without line ends; raise `UsageError` for one that is not UTF-8."""
    for number, line in enumerate(iter(sys.stdin.buffer.readline, b""), start=1):
        yield _decode(line, f"line {number} of stdin").rstrip("\r\n")


def check_text(text: str | None, flag: str) -> None:
    """Raise `UsageError` if an argument was given bytes that are not UTF-8 (Python keeps them as lone surrogates)."""
    try:
        (text or "").encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{flag} is not UTF-8 text, at character {error.start}") from None


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}") from None
