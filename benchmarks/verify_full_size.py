"""How long `openk3 verify` takes for all 96 shards of the published model, and how much memory.

The shards are a header-only replica: true headers and index, holes instead of values. Run from the repository root:
``python -m benchmarks.verify_full_size``. Writes ``benchmarks/results/verify_full_size.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.result import write_result
from openk3.model.presets import preset
from tests.checkpoint.replica import write_replica

# the peak is read by the process itself: what a parent can ask for includes the parent's own
CHILD = """
import sys
from openk3.cli.main import run
code = run(["verify", sys.argv[1], "--json"])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak.split()[1], file=sys.stderr)
sys.exit(code)
"""


def measure(folder: Path) -> dict[str, object]:
    """Verify ``folder`` in a process of its own; return its time, its peak memory, and what it found."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    found = json.loads(done.stdout)
    peak_kib = int(done.stderr.split()[-1])
    return {
        "seconds": round(seconds, 2),
        "peak_memory_bytes": peak_kib * 1024,
        "exit_code": done.returncode,
        "files": found["files"],
        "tensors": found["tensors"],
        "tensor_bytes": found["bytes"],
        "problems": len(found["problems"]),
    }


def main() -> None:
    """Build the replica, measure, write the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_replica(folder, preset("k3"))
        runs = [measure(folder) for _ in range(3)]
    best = min(runs, key=lambda run: float(str(run["seconds"])))
    figures = {**best, "seconds_of_all_runs": [run["seconds"] for run in runs]}
    write_result("verify_full_size", "openk3 verify (headers) on a header-only replica of all 96 shards", figures)


if __name__ == "__main__":
    main()
