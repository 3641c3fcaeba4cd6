"""Closed streams, a full disk, names no disk can hold, and encodings that cannot show what a model writes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from openk3.cli import main as command
from openk3.cli.json_lines import json_text

RUN = f"{sys.executable} -m openk3.cli.main"


@pytest.mark.parametrize(
    ("line", "code", "stderr"),
    [
        (f"{RUN} info mini4 >&-", 0, ""),
        (f"{RUN} info mini4 2>&- >/dev/null", 0, ""),
        (f"{RUN} info nope 2>&-", 1, ""),
        (f"{RUN} generate nope <&-", 2, "error: the prompt is empty"),
        (f"{RUN} info mini4 >/dev/full", 1, "error: No space left on device\n"),
    ],
)
def test_streams_that_are_closed_or_full(line: str, code: int, stderr: str) -> None:
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert done.stderr.startswith(stderr)


@pytest.mark.parametrize("model", ["x" * 300, "~nobody-of-this-name/x"])
def test_a_name_that_no_disk_can_hold(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["verify", model]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_no_memory_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def exhausted(*_: object, **__: object) -> object:
        raise MemoryError

    monkeypatch.setattr(command, "make_app", lambda: exhausted)
    assert command.run(["info", "k3"]) == 1
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
@pytest.mark.parametrize("text", ["é 你 😀", "half \ud800 a pair"])
def test_json_is_json_in_every_encoding(tmp_path: Path, encoding: str, text: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    stream.write(json_text({"text": text}, stream))
    stream.flush()
    assert json.loads(raw.getvalue().decode(encoding)) == {"text": text}
