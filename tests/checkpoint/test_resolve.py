"""From a name or a path to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from openk3.checkpoint import resolve
from openk3.checkpoint.resolve import resolve_model
from openk3.errors import CheckpointError


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models" / "nano"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr(resolve, "_BUNDLED", tmp_path / "models")
    return folder


def test_names_and_paths(bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model("nano") == bundled
    assert resolve_model(tmp_path) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano").mkdir()
    assert resolve_model("nano") == Path("nano")


def test_unknown_names_get_a_suggestion(bundled: Path) -> None:
    with pytest.raises(CheckpointError, match="nanno: neither a folder nor a bundled model") as raised:
        resolve_model("nanno")
    assert raised.value.hint == "did you mean `nano`?"
    with pytest.raises(CheckpointError) as raised:
        resolve_model("/data/k3")
    assert raised.value.hint == "bundled: nano"


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_model(tmp_path / "x.safetensors")
