"""A real ``openk3 serve nano`` in a process of its own, with its numbers and its memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
_LONGEST_WAIT_S = 60.0


class ServeProcess:
    """Starts a server with more ``flags`` and waits until it answers; ``log`` takes all that it says on stderr."""

    def __init__(self, log: Path, *flags: str) -> None:
        self._log = log
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "openk3.cli.main", "serve", "nano", "--port", "0", *flags]
        with log.open("a") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=ROOT
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            self.stop()
        assert self.url.startswith("http://"), log.read_text()

    def metrics(self) -> dict[str, float]:
        """Ask for the server's numbers; those with several labels are added up."""
        found: dict[str, float] = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=_LONGEST_WAIT_S).text.splitlines():
            if match := re.fullmatch(r"([^#{ ]+)(?:\{.*\})? (\S+)", line):
                found[match[1]] = found.get(match[1], 0.0) + float(match[2])
        return found

    def resident_bytes(self) -> int:
        """Read the memory that the process has in use (Linux)."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log(self) -> str:
        """Return all that was said on stderr so far."""
        return self._log.read_text()

    def kill(self) -> None:
        """End it at once, as a machine that fails would."""
        self._process.kill()
        self._process.wait(_LONGEST_WAIT_S)
        self._close()

    def stop(self) -> int:
        """Ask it to end, as a user would, and return the exit status."""
        self._process.terminate()
        try:
            return self._process.wait(_LONGEST_WAIT_S)
        finally:
            self._process.kill()
            self._close()

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
