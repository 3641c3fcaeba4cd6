"""Styles and remarks: dim text where the terminal and its user want it, everything said on stderr."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
EMPTY_ANSWER = "(no answer: the model ended without text, or called a tool and none is declared)"


def may_style(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal whose user wants styles (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def dim(text: str, stream: TextIO) -> str:
    """Style ``text`` as secondary where ``stream`` may be styled."""
    return f"{_DIM}{text}{_PLAIN}" if may_style(stream) else text


def note(text: str) -> None:
    """Say something about the run, on stderr."""
    print(dim(text, sys.stderr), file=sys.stderr, flush=True)
