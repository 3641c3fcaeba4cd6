"""The loop: it starts at a uniform guess, learns, resumes to the bit, and stops cleanly."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from openk3.checkpoint.loader import load_model
from openk3.errors import ConfigError, NumericsError, TrainingError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.train import pretrain
from openk3.train.checkpoints import checkpoints
from openk3.train.config import ModelSource, TrainConfig
from openk3.train.data.mixture import WeightedShard
from openk3.train.init import init_for_training
from openk3.train.quantization import quantize_experts
from openk3.train.trainer import Trainer

Settings = Callable[..., TrainConfig]
Shards = Sequence[WeightedShard]


def fresh(config: K3Config) -> K3ForCausalLM:
    model = K3ForCausalLM(config, dtype=torch.float32)
    init_for_training(model, seed=1)
    return model


def losses(folder: Path) -> list[float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def test_first_loss_is_that_of_a_uniform_guess(tiny: K3Config, shards: Shards, settings: Settings) -> None:
    assert Trainer(settings(), fresh(tiny), shards).step().loss == pytest.approx(math.log(tiny.vocab_size), abs=0.05)


@pytest.mark.parametrize("kind", ["muon", "adamw"])
def test_learns_and_writes_a_model_folder(
    kind: str, tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path
) -> None:
    trainer = Trainer(settings(kind=kind, steps=25, start=0.5), fresh(tiny), shards)
    assert trainer.run() == "finished"
    found = losses(tmp_path / "run")
    assert found[-1] < 0.75 * found[0]
    curve = json.loads((tmp_path / "run" / "loss_curve.json").read_text())
    assert [row["loss"] for row in curve["training"]] == found
    assert set(curve["held_out"][-1]["held_out"]) == {"short", "long"}
    assert (tmp_path / "run" / "loss_curve.png").read_bytes().startswith(b"\x89PNG")


def test_written_experts_compute_what_the_last_steps_trained(
    tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path
) -> None:
    trainer = Trainer(settings(start=0.0), fresh(tiny), shards)
    trainer.run()
    loaded = load_model(tmp_path / "run" / "model", dtype=torch.float32, experts="plain")
    quantize_experts(trainer.model, True)
    for mine, read in zip(trainer.model.modules(), loaded.modules(), strict=True):
        if hasattr(mine, "quantizer"):
            assert torch.equal(mine.quantizer(mine.w2), read.w2)


def test_resuming_gives_the_same_bits(tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path) -> None:
    whole = Trainer(settings(output=tmp_path / "whole", accumulate=2), fresh(tiny), shards)
    whole.run()
    first = Trainer(settings(output=tmp_path / "parts", accumulate=2), fresh(tiny), shards)
    for _ in range(3):
        first.step()
    first.save()
    second = Trainer(settings(output=tmp_path / "parts", accumulate=2), fresh(tiny), shards, resume=True)
    assert second.progress.step == 3
    second.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    assert whole.progress.tokens == second.progress.tokens
    assert losses(tmp_path / "whole")[3:] == losses(tmp_path / "parts")


def test_sigterm_saves_and_stops(tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path) -> None:
    trainer = Trainer(
        settings(steps=1000),
        fresh(tiny),
        shards,
        report=lambda line: os.kill(os.getpid(), signal.SIGTERM) if "step      2" in line else None,
    )
    before = signal.getsignal(signal.SIGTERM)
    assert trainer.run() == "stopped"
    assert [path.name for path in checkpoints(tmp_path / "run" / "checkpoints")] == ["step-0000002"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "run" / "model").exists()


def test_nan_stops_before_the_weights_are_touched(
    tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path
) -> None:
    trainer = Trainer(settings(checkpoint_every=1), fresh(tiny), shards)
    trainer.step()
    good = trainer.save()
    with torch.no_grad():
        trainer.model.lm_head.weight[0, 0] = torch.nan
    embedding = trainer.model.model.embed_tokens.weight.clone()
    with pytest.raises(NumericsError, match=f"step 2: loss is nan.*{good.name} is the last good checkpoint"):
        trainer.run()
    assert torch.equal(trainer.model.model.embed_tokens.weight, embedding)
    assert checkpoints(tmp_path / "run" / "checkpoints") == [good]


def test_old_checkpoints_are_pruned(tiny: K3Config, shards: Shards, settings: Settings, tmp_path: Path) -> None:
    Trainer(settings(checkpoint_every=1, keep_checkpoints=2), fresh(tiny), shards).run()
    names = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert sorted(names) == ["step-0000005", "step-0000006"]


def test_a_second_run_in_the_same_folder_is_refused(tiny: K3Config, shards: Shards, settings: Settings) -> None:
    Trainer(settings(), fresh(tiny), shards).save()
    with pytest.raises(TrainingError, match="holds a run already"):
        Trainer(settings(), fresh(tiny), shards)


def test_a_damaged_checkpoint_is_named(tiny: K3Config, shards: Shards, settings: Settings) -> None:
    saved = Trainer(settings(), fresh(tiny), shards).save()
    (saved / "state.pt").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(TrainingError, match="not a usable checkpoint"):
        Trainer(settings(), fresh(tiny), shards, resume=True)


def test_a_run_by_the_clock_ends(tiny: K3Config, shards: Shards, settings: Settings) -> None:
    trainer = Trainer(settings(steps=None, max_minutes=1e-4), fresh(tiny), shards)
    assert trainer.run() == "finished"
    assert trainer.progress.step >= 1


def test_missing_plots_are_said_before_the_run(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    monkeypatch.setattr(pretrain, "find_spec", lambda name: None)
    with pytest.raises(TrainingError, match="matplotlib is not installed"):
        pretrain.pretrain(settings(), resume=False, report=lambda line: None)


def test_a_model_with_mtp_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="MTP layers are not trained yet"):
        pretrain.make_model(ModelSource(preset="mtp5"), seed=0)
