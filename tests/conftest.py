"""What all tests share: one thread, one hypothesis profile, the reference files, a tiny model that chats.

Unusual: the reference files (real vocabulary, recorded activations) live beside the repository, not in it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from openk3.checkpoint.shards import ShardPlan

# Before torch is imported anywhere: tests run in parallel processes, one core each.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

REPOSITORY = Path(__file__).resolve().parent.parent

# Same examples on every run: a failure in one run is a failure in all.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference files: $OPENK3_SHARED, else ``shared`` beside the repository."""
    named = os.environ.get("OPENK3_SHARED")
    folder = Path(named) if named else REPOSITORY.parent / "shared"
    if not folder.is_dir():
        if named:
            pytest.fail(f"OPENK3_SHARED is {named!r}, which is not a folder")
        pytest.skip(f"no reference files: {folder} does not exist and OPENK3_SHARED is not set")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that can chat: mini4 with a vocabulary of the 256 bytes.

    Sampled with top-k 50 its answers never end: every special token has logit 0, and half of the bytes have more.
    """
    from openk3.checkpoint.random_init import RandomSource
    from openk3.checkpoint.writer import write_checkpoint
    from openk3.model.presets import preset
    from openk3.tokenizer.special import SpecialTokens
    from openk3.tokenizer.vocabulary import write_vocabulary

    special = SpecialTokens.block(256)
    config = replace(
        preset("mini4"),
        vocab_size=512,
        bos_token_id=special.bos,
        eos_token_id=special.end_of_msg,
        pad_token_id=special.pad,
        media_placeholder_token_id=special.media_pad,
    )

    def source(plan: ShardPlan) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in RandomSource(config, 1)(plan):
            if name.endswith("lm_head.weight"):
                tensor[special.bos :] = 0.0
            yield name, tensor

    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_checkpoint(folder, config, source)
    write_vocabulary(folder, [bytes([byte]) for byte in range(256)], special)
    return folder
