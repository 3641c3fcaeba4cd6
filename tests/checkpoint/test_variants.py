"""Tensors stored otherwise than published: what the loader reads, `openk3 verify` remarks on, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openk3.checkpoint.convert import convert_experts
from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.verify import Report, verify_headers
from openk3.errors import CheckpointError, TensorError
from tests.checkpoint.conftest import edit_index, shard

ATTENTION = "language_model.model.layers.0.self_attn."
A_LOG, CONV, BIAS = ATTENTION + "A_log", ATTENTION + "q_conv1d.weight", ATTENTION + "dt_bias"
Change = Callable[[torch.Tensor], torch.Tensor]


def store(folder: Path, name: str, change: Change) -> Report:
    """Verify the checkpoint after one of its tensors was changed."""
    tensors = load_file(shard(folder, 1))
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, shard(folder, 1))
    edit_index(folder, lambda index: index.pop("metadata"))
    assert (folder / INDEX_FILE).is_file()
    return verify_headers(folder)


@pytest.mark.parametrize(
    ("name", "change", "note"),
    [
        (A_LOG, lambda t: t[:3].view(1, 1, 3, 1), "stored as [1, 1, 3, 1] instead of [16]: 1 tensors, first " + A_LOG),
        (CONV, lambda t: t.squeeze(1), "stored as [48, 4] instead of [48, 1, 4]: 1 tensors, first " + CONV),
        (BIAS, lambda t: t.bfloat16(), "stored as BF16 instead of F32: 1 tensors, first " + BIAS),
        (CONV, lambda t: t.squeeze(1).half(), "stored as F16 instead of F32 and [48, 4] instead of [48, 1, 4]"),
    ],
)
def test_what_can_be_read_is_a_note(checkpoint: Path, name: str, change: Change, note: str) -> None:
    report = store(checkpoint, name, change)
    assert report.ok and [text for text in report.notes if text.startswith(note)] == report.variants
    load_model(checkpoint)
    with pytest.raises(CheckpointError, match="stored as"):
        convert_experts(checkpoint, checkpoint.with_name("converted"), "bf16")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (A_LOG, lambda t: t[:2]),
        (A_LOG, lambda t: t.view(4, 4)),
        (CONV, lambda t: t.squeeze(1).T),
        (BIAS, lambda t: t.view(1, -1)),
    ],
)
def test_what_cannot_be_read_is_a_problem(checkpoint: Path, name: str, change: Change) -> None:
    report = store(checkpoint, name, change)
    assert len(report.problems) == 1 and f"{name}: shape is" in report.problems[0] and not report.variants
    with pytest.raises(TensorError, match="shape is"):
        load_model(checkpoint)
