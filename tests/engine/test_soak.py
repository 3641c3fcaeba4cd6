"""Twenty minutes of random workloads, each answer compared with the plain loop's; prints how much was covered."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.engine.workload import Workload

_SECONDS = float(os.environ.get("OPENK3_SOAK_SECONDS", "1200"))


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS + 600)
def test_random_workloads_for_twenty_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin, seed, covered = time.monotonic(), 10_000, Counter[str]()
    while time.monotonic() - begin < _SECONDS:
        folder = tmp_path / str(seed) if seed % 4 == 0 else None
        for _ in range(2 if folder else 1):  # the second finds the first one's files
            covered += Workload(seed, scale=3, folder=folder).run(25)
        seed += 1
    with capsys.disabled():
        print(f"\n{_SECONDS:.0f} s: " + ", ".join(f"{count} {what}" for what, count in sorted(covered.items())))
    for what in ("preemptions", "accepted drafts", "rejected drafts", "resumed tokens", "evictions", "hits from disk"):
        assert covered[what] > 0, what
