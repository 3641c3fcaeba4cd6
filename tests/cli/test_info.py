"""`openk3 info`: the published figures, a folder's own, and the system, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.writer import write_checkpoint
from openk3.cli.main import run
from openk3.cli.table import bytes_text, table
from openk3.model.presets import preset


def test_published_model_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "k3"]) == 0
    out = capsys.readouterr().out
    for figure in (
        "2,779,931,837,184",
        "1,560,860,324,864",
        "104,189,614,848",
        "434,110,464 + 15,261,696 B",
        "27,648 B",
    ):
        assert figure in out


def test_published_model_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "k3", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["total"] == {"tensors": 497_220, "parameters": 2_779_931_837_184, "bytes": 1_560_860_324_864}
    assert data["active_parameters"] == 104_189_614_848
    assert data["state_bytes_per_sequence"] == 449_372_160 and data["cache_bytes_per_token"] == 27_648
    assert [(layer["attention"], layer["ffn"], layer["count"]) for layer in data["layers"]] == [
        ("kda", "dense", 1),
        ("kda", "moe", 68),
        ("mla", "moe", 24),
    ]
    assert data["flops"]["linear_per_token"] == 208_368_533_504


def test_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "m", preset("mtp5"), RandomSource(preset("mtp5"), 0))
    assert run(["info", str(tmp_path / "m"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    stored = sum(path.stat().st_size for path in (tmp_path / "m").glob("*.safetensors"))
    assert data["total"]["bytes"] == 468_384 < stored
    assert any(layer["mtp"] for layer in data["layers"]) and not data["vision"]
    assert run(["info", str(tmp_path / "m")]) == 0
    assert "mla + moe (MTP)" in capsys.readouterr().out


def test_a_text_only_folder_does_not_count_the_vision_part(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(shared / "golden" / "mini4" / "checkpoint"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["total"]["bytes"] == 381_520 and "vision_tower" not in data["groups"]


def test_a_folder_with_a_configuration_but_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from openk3.model.published import config_to_dict

    (tmp_path / "config.json").write_text(json.dumps(config_to_dict(preset("mini4"))))
    assert run(["info", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "242,912" in out and "no weights" in out


def test_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "--system", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["torch"] and data["threads"] >= 1 and "chunk" in data["operations"]["kda"]
    assert run(["info", "--system"]) == 0
    assert "operation" in capsys.readouterr().out


def test_neither_or_both_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info"]) == 2
    assert run(["info", "k3", "--system"]) == 2
    assert run(["info", "k4"]) == 1
    assert "k4: neither a folder nor a bundled model" in capsys.readouterr().err


def test_does_not_import_torch() -> None:
    code = "import sys; from openk3.cli.main import run; run(['info', 'k3']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_tables_and_sizes() -> None:
    assert table([("a", "bb"), ("ccc", "1")]) == "a    bb\nccc   1"
    assert [bytes_text(n) for n in (5, 27_648, 999_499, 999_500, 1_560_860_324_864)] == [
        "5 B",
        "27.6 kB",
        "999 kB",
        "1 MB",
        "1.561 TB",
    ]
