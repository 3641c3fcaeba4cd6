"""A terminal to run a program in: what is typed reaches it as keys, what it shows is waited for, never for long."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

# Makes the terminal the controlling one, so that Ctrl-C becomes a signal, then becomes the program itself.
_TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs are born deaf to Ctrl-C, and pass it on
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
WAIT_S = 60.0


class Terminal:
    """A program in a pseudo-terminal; every wait has an end."""

    def __init__(self, arguments: Sequence[str], **environment: str) -> None:
        self._master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | environment
        program = [sys.executable, "-c", _TAKE_TERMINAL, *arguments]
        self._process = subprocess.Popen(
            program, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.shown = ""

    def press(self, keys: str) -> None:
        """Type; ``\\x03`` is Ctrl-C and ``\\x04`` Ctrl-D."""
        os.write(self._master, keys.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C once the program waits for keys.

        Python's readline loses a signal that comes between its prompt and that wait, until the next key.
        """
        self._read_while(lambda: self._state() != "S", "the program to wait for keys")
        self.press("\x03")

    def wait_for(self, text: str) -> str:
        """Wait until ``text`` is shown; give what came up to it and take that away from ``shown``."""
        self._read_while(lambda: text not in self.shown, f"{text!r} to be shown")
        before, found, self.shown = self.shown.partition(text)
        return before + found

    def exit_code(self) -> int:
        """Wait for the program to end."""
        self._read_while(self._runs, "the program to end")
        return self._process.wait()

    def close(self) -> None:
        """End the program if it has not ended."""
        if self._runs():
            self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _state(self) -> str:
        """Linux's letter for what the program's main thread is doing: R runs or could, S sleeps."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def _runs(self) -> bool:
        return self._process.poll() is None

    def _read_while(self, waiting: Callable[[], bool], what: str) -> None:
        self._read_for(WAIT_S, waiting)
        if waiting():
            ended = f"waited {WAIT_S:.0f} s" if self._runs() else "the program ended"
            pytest.fail(f"{ended}, expected {what}; shown since: {self.shown[-2000:]!r}")

    def _read_for(self, seconds: float, waiting: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while waiting() and time.monotonic() < deadline:
            if not select.select([self._master], [], [], 0.05)[0]:
                continue
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # how Linux says that nobody holds the other end any more
                self._process.wait(WAIT_S)
                return
