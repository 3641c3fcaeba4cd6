"""Sizes of memory: as people write them, and what this machine has free.

Unusual: units are decimal, as disks and datasheets count, unless they are written GiB; a container's limit counts.
"""

from __future__ import annotations

import math
import os
import re
from decimal import Decimal
from pathlib import Path

from openk3.errors import ConfigError

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a text such as 8GB, 512 MiB or 1.5g; raise `ConfigError` if it is none."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ConfigError(f"size is {text!r}, expected a number with a unit, such as 8GB, 512MiB or 1.5GB")
    size = int(Decimal(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2].lower()])
    if size < 1:
        raise ConfigError(f"size is {text!r}, expected more than nothing")
    return size


def format_size(size: float, *, up: bool = False) -> str:
    """Return ``size`` bytes in decimal units with three digits, the nearest or, with ``up``, no smaller ones."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            if up and size > 0:
                digit = 10.0 ** (math.floor(math.log10(size)) - 2)
                size = math.ceil(size / digit) * digit
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process may still use without swapping: the machine's, or its container's."""
    limits = [_machine(proc), *_container(cgroup)]
    return max(0, min(limits))


def _machine(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _container(cgroup: Path) -> list[int]:
    """Return what the limit of a control group leaves (version 2, then 1); nothing if there is no limit."""
    v1 = "memory/memory"
    for limit, used in (("memory.max", "memory.current"), (f"{v1}.limit_in_bytes", f"{v1}.usage_in_bytes")):
        try:
            return [int((cgroup / limit).read_text()) - int((cgroup / used).read_text())]
        except (OSError, ValueError):
            continue
    return []
