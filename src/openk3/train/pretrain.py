"""A pre-training run from its configuration: model, data, trainer."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from openk3.checkpoint.loader import load_model
from openk3.errors import ConfigError, TrainingError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.model.published import load_config
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.vocabulary import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from openk3.tokenizer.vocabulary import VOCABULARY_FILE
from openk3.train.config import ModelSource, TrainConfig
from openk3.train.data.mixture import WeightedShard
from openk3.train.data.sources import open_shard
from openk3.train.init import init_for_training
from openk3.train.trainer import Outcome, Trainer


def pretrain(config: TrainConfig, *, resume: bool, report: Callable[[str], None]) -> Outcome:
    """Run ``config`` to its end or to SIGTERM; errors as `Trainer` and `Trainer.run`."""
    _require_plots()
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    torch.set_flush_denormal(True)  # decayed states and momenta end up there, at a hundred times the cost
    model = make_model(config.model, config.run.seed)
    shards = open_sources(config, report)
    vocabulary = _vocabulary_files(config.data.tokenizer) if config.data.tokenizer else {}
    return Trainer(config, model, shards, resume=resume, companions=vocabulary, report=report).run()


def _require_plots() -> None:
    """Say that the loss curve cannot be drawn before a run, not after it."""
    if find_spec("matplotlib") is None:
        raise TrainingError(
            "matplotlib is not installed, and a run ends by drawing its loss curve",
            hint="install what training needs: pip install 'openk3[train]'",
        )


def _vocabulary_files(source: Path) -> dict[str, Path]:
    """Name the files that go beside the weights, so that the folder can be talked to."""
    file = source / VOCABULARY_FILE if source.is_dir() else source
    named = file.with_name(TOKENIZER_CONFIG_FILE)
    return {VOCABULARY_FILE: file} | ({TOKENIZER_CONFIG_FILE: named} if named.is_file() else {})


def make_model(source: ModelSource, seed: int) -> K3ForCausalLM:
    """Build the model to train, in float32: fresh from ``seed``, or with a checkpoint's weights."""
    if source.weights is not None:
        _require_no_mtp(load_config(source.weights))
        return load_model(source.weights, dtype=torch.float32, experts="plain")
    if source.preset is not None:
        config = preset(source.preset)
    elif source.config is not None:
        config = load_config(source.config)
    else:
        raise ConfigError("model needs one of preset, config and weights")
    _require_no_mtp(config)
    model = K3ForCausalLM(config, dtype=torch.float32, experts="plain")
    init_for_training(model, seed)
    return model


def _require_no_mtp(config: K3Config) -> None:
    """Refuse to leave layers at their random start without a word."""
    if config.num_nextn_predict_layers:
        raise ConfigError(
            f"num_nextn_predict_layers is {config.num_nextn_predict_layers}, but MTP layers are not trained yet",
            hint="train with 0",
        )


def open_sources(config: TrainConfig, report: Callable[[str], None]) -> list[WeightedShard]:
    """Open every source of the mixture, tokenising text into ``<output>/tokens`` where needed."""
    tokenizer = Tokenizer.load(config.data.tokenizer) if config.data.tokenizer else None
    cache: Path = config.run.output / "tokens"
    return [
        WeightedShard(name=source.name, weight=source.weight, shard=open_shard(source, cache, tokenizer, report))
        for source in config.data.sources
    ]
