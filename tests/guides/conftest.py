"""A real server, as the guides start it: a process of its own, with the bundled model, until the tests are over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.guides.pages import KEY

_LONGEST_WAIT_S = 120.0
_SERVE = ["serve", "nano", "--name", "kimi-k3", "--api-key", KEY]
# Any free port, a little memory, and what processors are fastest with.
_HERE = ["--port", "0", "--memory", "1GB", "--dtype", "float32"]
_NODE = Path(__file__).with_name("node")


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running ``openk3 serve``, which has to stop in good order at the end."""
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "openk3.cli.main", *_SERVE, *_HERE], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        line = _first_line(process.stdout, process)
        assert line.startswith("http://127.0.0.1:"), log.read_text()
        yield line.strip()
        process.send_signal(signal.SIGTERM)
        process.wait(_LONGEST_WAIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, log.read_text()
    _check_log(log.read_text())


def _first_line(stream: IO[str], process: subprocess.Popen[str]) -> str:
    timer = threading.Timer(_LONGEST_WAIT_S, process.kill)
    timer.start()
    try:
        return stream.readline()
    finally:
        timer.cancel()


def _check_log(text: str) -> None:
    """Nothing went wrong that a client might not have noticed."""
    requests = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert requests
    assert [request for request in requests if request["status"] >= 500] == []
    assert "Traceback" not in text


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where node finds the packages of the guides; skips where there are none."""
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(_NODE / name, folder / name)
    if (_NODE / "node_modules").is_dir():
        (folder / "node_modules").symlink_to(_NODE / "node_modules")
    elif os.environ.get("OPENK3_TEST_NPM") == "1":
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=folder, timeout=250, check=True
        )
    else:
        pytest.skip("no packages for node: `npm install` in tests/guides/node, or set OPENK3_TEST_NPM=1")
    return folder
