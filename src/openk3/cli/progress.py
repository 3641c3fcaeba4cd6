"""Progress on stderr: a bar on a terminal, else a line every few seconds; nothing for what is quickly done."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from openk3.cli.terminal import may_style

_FIRST, _BETWEEN = 2.0, 10.0


class Progress:
    """Counts steps towards ``total`` (bytes or anything); a context manager, called with (what, amount) per step."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, max(total, 1), 0
        self._started = time.monotonic()
        self._next = self._started + _FIRST
        self._bar = may_style(sys.stderr)
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._bar:
            print(file=sys.stderr)

    def __call__(self, what: str, amount: int) -> None:
        """Count ``amount`` done with ``what``, and show it if it is time to."""
        self._done += amount
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.2 if self._bar else _BETWEEN)
        self._shown = True
        share = min(self._done / self._total, 1.0)
        left = (now - self._started) * (1 - share) / share if share else 0.0
        text = f"{self._label} {share:4.0%}, about {_duration(left)} left ({what})"
        if self._bar:
            filled = round(20 * share)
            print(f"\r\x1b[K[{'#' * filled}{'.' * (20 - filled)}] {text:.80}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
