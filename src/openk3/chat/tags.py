"""Tags of the chat format: ``<|open|>name key="value"<|sep|>`` and ``<|close|>name<|sep|>``.

Unusual: only the three control tokens make a tag; its text is ordinary text, and payload is never escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_KEY = re.compile(r'[^\s="]*+')
_NAME = re.compile(r"\S*+")


@dataclass(frozen=True)
class Tag:
    """What stands between the control tokens of a tag."""

    name: str
    attributes: Mapping[str, str]


def escape(value: str) -> str:
    """Escape an attribute's value, so that no quote ends it early."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def unescape(value: str) -> str:
    """Undo `escape`."""
    return value.replace("&quot;", '"').replace("&amp;", "&")


def parse_tag(text: str) -> Tag:
    """Read a tag's text; what is malformed in it is left out. Of equal keys, the first counts."""
    text = text.strip()
    end = _match_end(_NAME, text, 0)
    return Tag(text[:end], _parse_attributes(text, end))


def _parse_attributes(text: str, at: int) -> dict[str, str]:
    attributes: dict[str, str] = {}
    while at < len(text):
        end = _match_end(_KEY, text, at)
        if not text.startswith('="', end):
            at = end + 1
            continue
        closing = text.find('"', end + 2)
        if closing < 0:
            break
        attributes.setdefault(text[at:end], unescape(text[end + 2 : closing]))
        at = closing + 1
    return attributes


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
