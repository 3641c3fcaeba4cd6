"""Stop strings in a text that arrives in pieces.

Unusual: the end of the text is held back while it may still begin a stop string, so that none is ever shown in part.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Pass a text through until one of ``stops`` is complete; ``found`` is then that string.

    The first to be complete counts (of several at the same character, the longest), however the text is cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece of text and give what is certain to stand before any stop string."""
        if self.found is not None:
            return ""
        self._held += text
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if ends:
            _, start, self.found = min(ends)
            certain, self._held = self._held[:start], ""
            return certain
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def finish(self) -> str:
        """Give what was held back, now that no more text comes."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of ``text`` that begin ``stop`` without completing it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
