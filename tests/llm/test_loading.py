"""From a folder to a running engine: what ends an answer, what is missing, what names the weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import openk3
from openk3.engine.config import EngineConfig
from openk3.errors import CapacityError, ConfigError, OpenK3Error
from openk3.llm.llm import LLM
from openk3.llm.loading import fingerprint, load

SMALL = EngineConfig(memory_bytes=1 << 30)


def test_importing_the_package_imports_no_torch() -> None:
    script = "import sys, openk3; print('torch' in sys.modules); openk3.LLM; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_the_package_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="module 'openk3' has no attribute 'LLm'"):
        _ = openk3.LLm  # type: ignore[attr-defined]


def test_the_end_of_a_message_ends_an_answer(tiny_model: Path) -> None:
    loaded = load(str(tiny_model), "float32", SMALL)
    loaded.engine.close()
    assert loaded.engine.stop_token_ids == {loaded.tokenizer.special.end_of_msg}


def test_the_end_that_the_configuration_names_ends_an_answer(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "tokenizer_config.json").unlink()
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del raw["eos_token_id"]
    raw["text_config"]["eos_token_id"] = 400
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    loaded = load(str(folder), "float32", SMALL)
    loaded.engine.close()
    assert loaded.engine.stop_token_ids == {400}


def test_a_model_without_a_vocabulary_is_an_error_that_says_so(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    with pytest.raises(OpenK3Error, match=r"tiktoken\.model: no such file") as raised:
        load(str(tmp_path), "float32")
    assert "copy the tiktoken.model" in str(raised.value.hint)


def test_a_model_that_is_no_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="the model is 3, expected the path of a folder or a name"):
        LLM(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the model is b'nano', expected the path"):
        LLM("nano", draft_model=b"nano", engine=EngineConfig(memory_bytes=1 << 30, speculate="draft"))  # type: ignore[arg-type]


def test_a_wrong_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int8', expected bfloat16 or float32"):
        LLM("nano", dtype="int8")  # type: ignore[arg-type]


def test_settings_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="engine is {}, expected EngineConfig"):
        LLM("nano", engine={})  # type: ignore[arg-type]


def test_too_little_memory_is_said_before_anything_is_computed() -> None:
    with pytest.raises(CapacityError):
        LLM("nano", engine=EngineConfig(memory_bytes=1000))


def test_a_draft_model_needs_to_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="speculate is 'off' with a draft model"):
        LLM("nano", draft_model="nano")


def test_progress_hears_of_every_byte(tiny_model: Path) -> None:
    heard: list[int] = []
    LLM(str(tiny_model), engine=SMALL, progress=lambda what, amount: heard.append(amount)).close()
    assert 0 < sum(heard) <= sum(file.stat().st_size for file in tiny_model.glob("*.safetensors"))


def test_a_fingerprint_changes_with_weights_and_configuration(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    names = [fingerprint(folder)]
    assert fingerprint(folder) == names[0]
    shard = next(folder.glob("*.safetensors"))
    os.utime(shard, ns=(1, 1))
    names.append(fingerprint(folder))
    shard.rename(folder / "other.safetensors")
    names.append(fingerprint(folder))
    (folder / "config.json").write_text("{}", encoding="utf-8")
    names.append(fingerprint(folder))
    assert len(set(names)) == 4


def test_a_cache_on_disk_outlives_the_model(tmp_path: Path) -> None:
    config = EngineConfig(memory_bytes=1 << 30, cache_folder=tmp_path / "cache")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answers = []
    for _ in range(2):
        with LLM("nano", engine=config) as llm:
            first = llm.chat(question, params=llm.sampling, effort="low")
            follow_up = [*question, first.message, {"role": "user", "content": "Thanks"}]
            answers.append(llm.chat(follow_up, effort="low"))
    assert all(answer.turn.finish_reason is not None for answer in answers)
    assert answers[1].usage.cached_tokens > 0
