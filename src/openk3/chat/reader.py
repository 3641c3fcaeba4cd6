"""Finds the tags in what a model writes, from ids or from text, and hands text and tags on one by one.

Unusual: a tag that is cut short by the next control token still counts, because models leave separators out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from openk3.chat.tags import Tag, parse_tag

if TYPE_CHECKING:
    from openk3.tokenizer.bpe import Tokenizer


class Marker(Enum):
    """The control tokens of the chat format, as they are spelled."""

    OPEN = "<|open|>"
    CLOSE = "<|close|>"
    SEP = "<|sep|>"
    END = "<|end_of_msg|>"


class Handler(Protocol):
    """Who is told what was found."""

    def text(self, text: str) -> None:
        """Take text outside of tags, never empty."""

    def open(self, tag: Tag) -> None:
        """Take an opening tag."""

    def close(self, name: str) -> None:
        """Take a closing tag."""

    def end(self) -> None:
        """Take the end of the message."""


class TagReader:
    """Assemble tags from markers and text."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._kind: Marker | None = None
        self._tag_text: list[str] = []

    def text(self, text: str) -> None:
        """Take text: a tag's, if one is open."""
        if self._kind is not None:
            self._tag_text.append(text)
        elif text:
            self._handler.text(text)

    def marker(self, marker: Marker) -> None:
        """Take a control token, which ends a tag that is open."""
        self.end_tag()
        if marker is Marker.END:
            self._handler.end()
        elif marker is not Marker.SEP:
            self._kind = marker

    def end_tag(self) -> None:
        """Hand on the tag that is open, if there is one, as far as it came."""
        kind, self._kind = self._kind, None
        if kind is None:
            return
        tag = parse_tag("".join(self._tag_text))
        self._tag_text.clear()
        if kind is Marker.OPEN:
            self._handler.open(tag)
        else:
            self._handler.close(tag.name)


class IdReader:
    """Read ids: only a control token's id is a control token, whatever text spells."""

    def __init__(self, tokenizer: Tokenizer, handler: Handler) -> None:
        special = tokenizer.special
        self._markers = {
            special.open: Marker.OPEN,
            special.close: Marker.CLOSE,
            special.sep: Marker.SEP,
            special.end_of_msg: Marker.END,
        }
        self._num_base_tokens = tokenizer.num_base_tokens
        self._detokenizer = tokenizer.detokenizer()
        self._tags = TagReader(handler)

    def push(self, ids: Sequence[int]) -> None:
        """Take more ids; those that are neither text nor a tag's control token say nothing and are passed over."""
        for token in ids:
            if 0 <= token < self._num_base_tokens:
                self._tags.text(self._detokenizer.push(token))
            elif marker := self._markers.get(token):
                self._tags.text(self._detokenizer.finish())
                self._tags.marker(marker)

    def finish(self, *, cut: bool) -> None:
        """Hand on what is held back; a tag or a character that the limit ``cut`` is dropped."""
        rest = self._detokenizer.finish()
        if not cut:
            self._tags.text(rest)
            self._tags.end_tag()


_MARKER = re.compile("|".join(re.escape(marker.value) for marker in Marker))


class TextReader:
    """Read text, where no ids are to be had: text that spells a control token cannot be told from one."""

    def __init__(self, handler: Handler) -> None:
        self._tags = TagReader(handler)
        self._held = ""

    def push(self, text: str) -> None:
        """Take more text; an end that may begin a control token is held back."""
        text = self._held + text
        at = 0
        for match in _MARKER.finditer(text):
            self._tags.text(text[at : match.start()])
            self._tags.marker(Marker(match.group()))
            at = match.end()
        keep = _marker_prefix_start(text, at)
        self._tags.text(text[at:keep])
        self._held = text[keep:]

    def finish(self, *, cut: bool) -> None:
        """Hand on what is held back; a tag that the limit ``cut`` is dropped."""
        held, self._held = self._held, ""
        self._tags.text(held)
        if not cut:
            self._tags.end_tag()


def _marker_prefix_start(text: str, at: int) -> int:
    """Find where, at the end of ``text``, a marker may have begun."""
    start = text.rfind("<", at)
    if start < 0 or not any(marker.value.startswith(text[start:]) for marker in Marker):
        return len(text)
    return start
