"""What a run must survive or refuse in one line: damaged shards, lines, reports and checkpoints, and other settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openk3.errors import ChatError, ConfigError, TrainingError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.train.config import SourceConfig, TrainConfig, load_train_config
from openk3.train.data.mixture import Mixture, WeightedShard
from openk3.train.data.shards import Document, TokenShard, is_shard, write_shard
from openk3.train.data.sources import open_shard
from openk3.train.init import init_for_training
from openk3.train.metrics import MetricsLog, read_metrics
from openk3.train.trainer import Trainer

Shards = Sequence[WeightedShard]
Settings = Callable[..., TrainConfig]
BYTEWISE = Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))
RUN = '[run]\noutput = "out"\nsteps = 2\n[model]\npreset = "mini4"\n[[data.sources]]\nname = "a"\npath = "a"\n'


def make_shard(folder: Path) -> Path:
    documents = [Document(np.arange(5) + number, np.ones(5, dtype=np.bool_)) for number in range(4)]
    write_shard(folder, documents, vocab_size=64, source="a test")
    return folder


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/tmp/a", "a\\u0000"])
def test_a_source_cannot_name_a_folder_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "run.toml").write_text(RUN.replace('name = "a"', f'name = "{name}"'))
    with pytest.raises(ConfigError, match="expected one that can name a folder"):
        load_train_config(tmp_path / "run.toml")


@pytest.mark.parametrize(
    "override",
    [
        "optim.learning_rate=nan",
        "optim.clip=inf",
        "optim.betas=[2.0, 0.9]",
        "optim.weight_decay=-1.0",
        "run.steps=10000000",
        "run.seed=-1",
        "run.threads=100000000000",
        'run.output=""',
        'run.output="\\u0000"',
    ],
)
def test_values_without_meaning_are_refused(tmp_path: Path, override: str) -> None:
    (tmp_path / "run.toml").write_text(RUN)
    load_train_config(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_train_config(tmp_path / "run.toml", [override])


@pytest.mark.parametrize("file", ["ends.npy", "ids.bin", "trained.bin", "shard.json"])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 99, b"{}"])
def test_a_damaged_shard_is_one_line_and_made_anew(tmp_path: Path, file: str, content: bytes | None) -> None:
    folder = make_shard(tmp_path / "shard")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(TrainingError, match="shard"):
        TokenShard(folder)
    assert not is_shard(folder, "a test")


def test_ends_that_fall_and_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = make_shard(tmp_path / "shard")
    np.save(folder / "ends.npy", np.array([10, 5, 15, 20]))
    with pytest.raises(TrainingError, match="rising ends"):
        TokenShard(folder)
    shutil.rmtree(folder)
    (make_shard(folder) / "ids.bin").write_bytes(np.full(20, 64, dtype=np.uint16).tobytes())
    with pytest.raises(TrainingError, match="holds id 64, of 64"):
        TokenShard(folder)[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[1]", "expected an object with text or messages"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"messages": [1]}', "a message is 1"),
        (b'{"messages": [{}]}', "role is None"),
        (b'{"messages": [{"role": "assistant", "content": 5}]}', "content is 5, expected text"),
        (b'{"messages": [{"role": "assistant", "content": ["a"]}]}', "content is .*, expected text"),
        (b'{"messages": [{"role": "assistant", "tool_calls": [1]}]}', "tool_calls is"),
        (b'{"messages": [{"role": "assistant", "content": "a"}], "tools": 5}', "tools is 5"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "hello"}\n\n' + line + b"\n")
    source = SourceConfig(name="a", path=file, format="jsonl")
    with pytest.raises((TrainingError, ChatError), match=f"a.jsonl:3: .*{message}"):
        open_shard(source, tmp_path / "cache", BYTEWISE, lambda line: None)


def test_a_report_cut_short_with_the_run_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    MetricsLog(tmp_path, 1).write({"step": 2})
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(TrainingError, match=r"metrics.jsonl:1: not a report"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("state", [{}, [1], {"progress": 1}])
def test_something_else_is_no_checkpoint(tiny: K3Config, shards: Shards, settings: Settings, state: object) -> None:
    saved = Trainer(settings(), K3ForCausalLM(tiny), shards).save()
    torch.save(state, saved / "state.pt")
    with pytest.raises(TrainingError, match="not a checkpoint of a run"):
        Trainer(settings(), K3ForCausalLM(tiny), shards, resume=True)
    (saved / "state.pt").write_bytes(b"garbage" * 9)
    with pytest.raises(TrainingError, match="not a usable checkpoint"):
        Trainer(settings(), K3ForCausalLM(tiny), shards, resume=True)


def test_another_model_cannot_resume(tiny: K3Config, shards: Shards, settings: Settings) -> None:
    Trainer(settings(), K3ForCausalLM(tiny), shards).save()
    wider = K3ForCausalLM(replace(tiny, intermediate_size=96))
    with pytest.raises(TrainingError, match="another model or optimiser"):
        Trainer(settings(), wider, shards, resume=True)


def test_a_position_beyond_the_data_is_refused(shards: Shards) -> None:
    mixture = Mixture(shards, window=32, held_out=0.1, seed=5)
    cursor = mixture.cursor()
    cursor["long"]["index"] = 10**6
    with pytest.raises(TrainingError, match="was at document 1000000"):
        mixture.restore(cursor)


def test_companions_stand_beside_the_weights(
    tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text(json.dumps({}))
    model = K3ForCausalLM(tiny)
    init_for_training(model, 1)
    run = Trainer(settings(steps=1), model, shards, companions={"tiktoken.model": tmp_path / "words"})
    run.run()
    assert (run.config.run.output / "model" / "tiktoken.model").is_file()
