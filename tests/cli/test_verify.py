"""The flags of `openk3 verify`: what makes no sense together is said, and headers alone need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openk3.checkpoint.index import INDEX_FILE
from openk3.cli.main import run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    assert run(["init", str(tmp_path / "m"), "--preset", "one"]) == 0
    return tmp_path / "m"


def test_a_limit_without_a_record_is_a_mistake(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(model), "--limit", "1"]) == 2
    assert "add --golden FILE" in capsys.readouterr().err


def test_a_manifest_of_faulty_files_is_not_written_and_said_so(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "model-00001-of-000002.safetensors").unlink()
    manifest = tmp_path / "SHA256SUMS"
    assert run(["verify", str(model), "--write-manifest", str(manifest)]) == 1
    assert f"{manifest}: not written, because the files have problems" in capsys.readouterr().err
    assert not manifest.exists()


def test_headers_are_verified_without_torch(model: Path) -> None:
    program = (
        "import sys; from openk3.cli.main import run; "
        f"assert run(['verify', {str(model)!r}]) == 0; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (model / INDEX_FILE).is_file() and "by its headers" in done.stdout
