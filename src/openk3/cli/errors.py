"""What goes wrong on a command line, and how it is said."""

from __future__ import annotations

import sys

from openk3.errors import OpenK3Error


class UsageError(OpenK3Error):
    """Arguments that make no sense together or have no meaning: exit code 2 instead of 1."""


def report(message: str, hint: str | None) -> None:
    """Print an error and, after a blank line, what can be done about it."""
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"\nhint: {hint}", file=sys.stderr)
    sys.stderr.flush()
