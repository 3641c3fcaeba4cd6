"""A model and a data set so small that a training step takes milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openk3.model.config import K3Config, KDAConfig, MLAConfig, MoEConfig
from openk3.train.config import DataConfig, ModelSource, OptimConfig, RunConfig, SourceConfig, TrainConfig
from openk3.train.data.mixture import WeightedShard
from openk3.train.data.shards import Document, write_shard

VOCABULARY = 64


@pytest.fixture
def tiny() -> K3Config:
    return K3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        layer_kinds=("kda", "mla"),
        kda=KDAConfig(num_heads=2, head_dim=16),
        mla=MLAConfig(
            num_heads=2, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8
        ),
        moe=MoEConfig(
            num_experts=4, num_experts_per_token=2, num_shared_experts=1, intermediate_size=32, latent_size=32
        ),
        attn_res_block_size=1,
        bos_token_id=60,
        eos_token_id=62,
        pad_token_id=63,
    )


def document(rng: np.random.Generator, length: int) -> Document:
    """A run of counting: predictable, so that a model can learn it."""
    ids = (np.arange(length) + rng.integers(VOCABULARY - 8)) % (VOCABULARY - 8)
    return Document(ids, np.ones(length, dtype=np.bool_))


@pytest.fixture
def shards(tmp_path: Path) -> list[WeightedShard]:
    rng = np.random.default_rng(0)
    result = []
    for name, weight in (("short", 3.0), ("long", 1.0)):
        documents = [document(rng, int(n)) for n in rng.integers(4, 20 if name == "short" else 80, size=60)]
        shard = write_shard(tmp_path / "data" / name, documents, vocab_size=VOCABULARY, source=name)
        result.append(WeightedShard(name=name, weight=weight, shard=shard))
    return result


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., TrainConfig]:
    """Make a run's settings; keywords replace those of the section that has them."""
    config = TrainConfig(
        run=RunConfig(output=tmp_path / "run", steps=6, log_every=1, evaluate_every=100, checkpoint_every=100),
        model=ModelSource(preset="mini4"),
        data=DataConfig(
            sources=(SourceConfig(name="short", path=tmp_path),), window=32, tokens_per_step=128, held_out=0.1
        ),
        optim=OptimConfig(learning_rate=1e-2, min_learning_rate=1e-3),
    )

    def make(**changes: object) -> TrainConfig:
        made = config
        for section in ("run", "data", "optim", "quantization"):
            part = getattr(made, section)
            mine = {key: value for key, value in changes.items() if hasattr(part, key)}
            made = replace(made, **{section: replace(part, **mine)})
        return made

    return make
