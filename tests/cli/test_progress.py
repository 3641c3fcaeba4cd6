"""Progress: silent while quick, lines off a terminal, a bar on one, all on stderr."""

from __future__ import annotations

import pytest

from openk3.cli import progress
from openk3.cli.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_quick_things_are_silent(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("writing", 10) as step:
        for second in range(10):
            clock[0] = second * 0.1
            step("shard", 1)
    assert capsys.readouterr() == ("", "")


def test_lines_off_a_terminal(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("writing", 100) as step:
        for second in range(25):
            clock[0] = float(second)
            step(f"shard {second}", 4)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "writing  12%, about 15 s left (shard 2)",
        "writing  52%, about 11 s left (shard 12)",
        "writing  92%, about 2 s left (shard 22)",
    ]


def test_a_bar_on_a_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "may_style", lambda stream: True)
    with Progress("writing", 2) as step:
        clock[0] = 60.0
        step("a", 1)
    assert capsys.readouterr().err == "\r\x1b[K[##########..........] writing  50%, about 60 s left (a)\n"
