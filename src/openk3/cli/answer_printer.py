"""An answer in a terminal: thinking dim on stderr, the answer on stdout, each as it comes.

Unusual: control characters a model writes are shown, not obeyed, so that no answer can move the cursor or set a title.
"""

from __future__ import annotations

import re
from typing import TextIO

from openk3.cli.terminal import dim, may_style
from openk3.protocol.messages import Channel, ContentDelta, Delta, ReasoningDelta

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class AnswerPrinter:
    """Print deltas of one answer after another; `close` ends an answer, also after an interruption."""

    def __init__(self, content: TextIO, reasoning: TextIO) -> None:
        self._streams: dict[Channel, TextIO] = {"think": reasoning, "response": content}
        self._channel: Channel | None = None
        self._line_is_open = False

    def show(self, delta: Delta) -> None:
        """Print reasoning and content; tool calls have no form here and come only where tools were declared."""
        if isinstance(delta, ReasoningDelta):
            self._write(delta.text, "think")
        elif isinstance(delta, ContentDelta):
            self._write(delta.text, "response")

    def close(self) -> None:
        """End the answer and the line that is open, so that the next answer says anew what it is."""
        self._end_line()
        self._channel = None

    def _end_line(self) -> None:
        if self._channel is not None and self._line_is_open:
            self._emit("\n", self._channel)

    def _write(self, text: str, channel: Channel) -> None:
        if not text:
            return
        if channel != self._channel:
            self._switch(channel)
        stream = self._streams[channel]
        shown = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) if stream.isatty() else text
        self._emit(dim(shown, stream) if channel == "think" else shown, channel)
        self._line_is_open = not text.endswith("\n")

    def _switch(self, channel: Channel) -> None:
        self._end_line()
        thoughts = self._streams["think"]
        if channel == "think" and not may_style(thoughts):
            self._emit("[thinking] ", "think")  # where it cannot be dim, words have to say what it is
        elif self._channel == "think" and thoughts.isatty():
            self._emit("\n", "think")
        self._channel = channel

    def _emit(self, text: str, channel: Channel) -> None:
        self._streams[channel].write(text)
        self._streams[channel].flush()
        self._line_is_open = False
