"""Ctrl-C while something is computed: the first press asks, the second insists."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt(ask: Callable[[], None]) -> Iterator[None]:
    """Call ``ask`` on the first Ctrl-C within, raise `KeyboardInterrupt` on the next.

    Asking instead of raising lets the loop end between two tokens, so what was shown and what is remembered agree.
    """
    asked = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        ask()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
