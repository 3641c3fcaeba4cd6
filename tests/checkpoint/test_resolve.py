"""From a name or a path to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openk3.checkpoint import resolve
from openk3.checkpoint.resolve import resolve_model
from openk3.errors import CheckpointError, ConfigError


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


@pytest.mark.parametrize("wrong", [3, None, b"nano", [], True, "", 10**5000], ids=lambda value: type(value).__name__)
def test_what_is_neither_name_nor_path_is_refused(bundled: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="the model is .*, expected the path of a folder or a name") as raised:
        resolve_model(wrong)
    assert raised.value.hint == "bundled: nano"


@pytest.mark.parametrize("name", ["a" * 5000, "x\0y", "\ud800", "~nobody-there/x"], ids=range(4))
def test_what_no_file_can_be_called_is_not_found(name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be opened|neither a folder nor a bundled model"):
        resolve_model(name)
