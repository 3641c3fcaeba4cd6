"""Prompts as segments: control tokens and texts, each encoded alone.

Unusual: the ids of a prompt are never made from its text as a whole. A text that spells a control token stays text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openk3.chat.tags import escape
from openk3.protocol.messages import ImagePart

if TYPE_CHECKING:
    from openk3.tokenizer.bpe import Tokenizer


@dataclass(frozen=True)
class Segment:
    """A run of one control token, or a text with its ids.

    ``trained`` marks what a model writes itself, where a training dialogue is rendered.
    """

    text: str
    ids: tuple[int, ...]
    control: bool = False
    trained: bool = False


class SegmentWriter:
    """Write tags and texts one after the other; segments of no text are left out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raise `TokenizerError` if the vocabulary lacks the control tokens of the chat format."""
        self.segments: list[Segment] = []
        self.trained = False
        self._encode = tokenizer.encode
        self._special = special = tokenizer.special
        self._open, self._close, self._sep = special.open, special.close, special.sep
        self._end = special.end_of_msg

    def text(self, text: str) -> None:
        """Write payload or any other plain text."""
        if text:
            self.segments.append(Segment(text, tuple(self._encode(text)), trained=self.trained))

    def open(self, name: str, attributes: Iterable[tuple[str, str]] = ()) -> None:
        """Write an opening tag."""
        self._control(self._open)
        self.text(name)
        for key, value in attributes:
            for piece in (f" {key}", '="', escape(value), '"'):
                self.text(piece)
        self._control(self._sep)

    def close(self, name: str) -> None:
        """Write a closing tag."""
        self._control(self._close)
        self.text(name)
        self._control(self._sep)

    def close_message(self) -> None:
        """Write the end of a message."""
        self.close("message")
        self._control(self._end)

    def image(self, image: ImagePart) -> None:
        """Write the place of an image; the vision tower's embeddings replace its placeholders."""
        special = self._special
        self._control(special.media_begin)
        self.text(f"image {image.width}x{image.height}")
        self._control(special.media_content)
        self._control(special.media_pad, image.num_tokens)
        self._control(special.media_end)

    def _control(self, token: int, count: int = 1) -> None:
        text = self._special.names[token] * count
        self.segments.append(Segment(text, (token,) * count, control=True, trained=self.trained))
