"""How work on a checkpoint is reported while it goes on."""

from __future__ import annotations

from collections.abc import Callable

# hears what was done and how much of it: bytes, files or comparisons, as the one who calls it says
Progress = Callable[[str, int], None]
