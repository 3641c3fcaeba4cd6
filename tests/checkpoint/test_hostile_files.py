"""Files that are made to mislead: numbers without end, pipes in place of files, writers that meet, parts that lack."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from openk3.checkpoint.convert import convert_experts
from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.verify import verify_headers
from openk3.checkpoint.writer import only_writer, remove_weights, write_checkpoint
from openk3.errors import CheckpointError, ConfigError, TensorError
from openk3.model.presets import preset
from openk3.model.published import load_config
from tests.checkpoint.conftest import edit_header, edit_index, shard


def edit_config(folder: Path, change: dict[str, Any], part: str = "text_config") -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw.setdefault(part, {}).update(change)
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*expected a finite number"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1000.*expected 1 to 10000"),
        ({"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers is 1000.*at most"),
        ({"num_experts": 10**9}, "num_experts is 1000.*at most"),
        ({"hidden_size": 10**20}, "hidden_size is 1000.*at most"),
    ],
)
def test_sizes_without_end_are_refused_before_they_are_counted(
    checkpoint: Path, change: dict[str, Any], message: str
) -> None:
    edit_config(checkpoint, change)
    with pytest.raises(ConfigError, match=message):
        load_config(checkpoint)


@pytest.mark.parametrize(
    "change", [{"vt_num_hidden_layers": 10**9}, {"patch_size": -1}, {"merge_kernel_size": [True, 1]}]
)
def test_the_vision_part_is_checked_too(checkpoint: Path, change: dict[str, Any]) -> None:
    edit_config(checkpoint, change, "vision_config")
    with pytest.raises(ConfigError, match="num_hidden_layers|patch_size|merge_kernel_size"):
        load_config(checkpoint)


def test_a_key_that_stands_twice_is_an_error(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    path.write_text(path.read_text().replace('"vocab_size"', '"vocab_size": 7, "vocab_size"', 1))
    with pytest.raises(ConfigError, match="'vocab_size' stands twice"):
        load_config(checkpoint)


def test_a_number_of_five_thousand_digits_is_no_json(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    path.write_text(path.read_text().replace('"vocab_size": ', '"vocab_size": ' + "9" * 5000, 1))
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        load_config(checkpoint)


def test_a_shape_beyond_all_numbers_is_one_line(checkpoint: Path) -> None:
    edit_header(shard(checkpoint, 1), lambda header: list(header.values())[-1].update(shape=[10**4000] * 16))
    edit_header(shard(checkpoint, 2), lambda header: header.update(__metadata__=[1]))
    problems = verify_headers(checkpoint).problems
    assert any("its shape is [1000" in problem for problem in problems)
    assert any("__metadata__ is [1]" in problem for problem in problems)


@pytest.mark.parametrize("name", ["config.json", INDEX_FILE, "model-00001-of-000005.safetensors"])
def test_a_pipe_is_not_waited_for(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    assert any("not a regular file" in problem for problem in verify_headers(checkpoint).problems)


def test_a_file_name_too_long_for_a_disk_is_one_line(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda index: index["weight_map"].update({"a": "x" * 300 + ".safetensors"}))
    assert "expected the name of a .safetensors file" in verify_headers(checkpoint).problems[0]


def test_no_model_is_made_for_a_config_that_the_files_contradict(checkpoint: Path) -> None:
    edit_config(checkpoint, {"vocab_size": 2**36})
    with pytest.raises(TensorError, match=r"expected \[68719476736"):
        load_model(checkpoint)


def test_two_writers_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    config = preset("mini4")
    with only_writer(tmp_path), pytest.raises(CheckpointError, match="another process is writing to it"):
        write_checkpoint(tmp_path, config, RandomSource(config, 1))
    with only_writer(tmp_path), pytest.raises(CheckpointError, match="another process is writing to it"):
        remove_weights(tmp_path)
    write_checkpoint(tmp_path, config, RandomSource(config, 1))
    assert verify_headers(tmp_path).ok


def test_without_its_companions_a_checkpoint_is_not_whole(pristine: Path, tmp_path: Path) -> None:
    target = tmp_path / "bf16"
    with pytest.raises(CheckpointError, match="the write stopped"):
        convert_experts(pristine, target, "bf16", companions={"tiktoken.model": tmp_path / "missing"})
    assert not (target / INDEX_FILE).exists()
