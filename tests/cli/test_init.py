"""`openk3 init`: writes what its preset says, refuses what would hurt."""

from __future__ import annotations

from pathlib import Path

import pytest

from openk3.cli.main import run
from openk3.model.presets import preset
from openk3.model.published import load_config


@pytest.mark.parametrize("name", ["one", "mini4", "tail9", "mtp5"])
def test_writes_a_sound_model(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "m"), "--preset", name, "--seed", "3"]) == 0
    assert f"{name} with random weights (seed 3)" in capsys.readouterr().out
    assert load_config(tmp_path / "m") == preset(name)
    assert run(["verify", str(tmp_path / "m"), "--deep"]) == 0


def test_the_published_size_is_refused_with_its_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "m"), "--preset", "k3"]) == 1
    err = capsys.readouterr().err
    assert "1,560,860,324,864 bytes" in err and "--yes" in err
    assert not (tmp_path / "m").exists()


def test_it_is_refused_without_the_space_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10**12))
    assert run(["init", str(tmp_path / "m"), "--preset", "k3", "--yes"]) == 1
    assert "needs 1,560,860,324,864 bytes, but the disk has 1,000,000,000,000 free" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_folders_that_are_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    command = ["init", str(tmp_path), "--preset", "tail9"]
    assert run(command) == 1
    assert "is not empty" in capsys.readouterr().err
    assert run([*command, "--force"]) == 0
    assert run(["init", str(tmp_path), "--preset", "one", "--force"]) == 0
    assert run(["verify", str(tmp_path), "--deep"]) == 0
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_nothing_that_describes_the_replaced_model_stays(tmp_path: Path) -> None:
    described = ("tiktoken.model", "tokenizer_config.json", "generation_config.json")
    for name in described:
        (tmp_path / name).write_text("{}")
    assert run(["init", str(tmp_path), "--preset", "one", "--force"]) == 0
    assert not any((tmp_path / name).exists() for name in described)


def test_a_file_in_the_way_and_an_unknown_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m").write_text("")
    assert run(["init", str(tmp_path / "m"), "--preset", "one"]) == 1
    assert "is a file" in capsys.readouterr().err
    assert run(["init", str(tmp_path / "n"), "--preset", "mini"]) == 1
    assert "did you mean `mini4`?" in capsys.readouterr().err
    assert run(["init", str(tmp_path / "n")]) == 2
