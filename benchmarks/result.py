"""What every result file says beside its numbers: machine, versions, commit, command, date."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openk3 import __version__

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """Describe where this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count(), "system": platform.platform()}


def commit() -> str:
    """Return the commit that is checked out, marked if the tree has changes, or that there is none."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else "no commit yet"


def write_result(name: str, what: str, figures: dict[str, Any]) -> None:
    """Write and print ``benchmarks/results/<name>.json``."""
    result = {
        "what": what,
        **figures,
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python -m benchmarks.{name}",
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "torch": version("torch"), "openk3": __version__},
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=2) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    print(text, end="")
