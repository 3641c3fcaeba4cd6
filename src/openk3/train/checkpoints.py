"""A run's own checkpoints: weights, optimiser state, data cursor, random state, step and elapsed time.

Unusual: a checkpoint is a folder that appears whole by a rename, and older ones go only after it stands.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from openk3.errors import TrainingError

_PARTS = {"progress", "model", "optimizers", "cursor", "rng"}
_NAME = re.compile(r"step-(\d{7})")


@dataclass(kw_only=True)
class Progress:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write ``state`` as the checkpoint of ``step``, keep only the last ``keep``; raise `TrainingError` if it can't."""
    final = folder / f"step-{step:07}"
    part = folder / f"{final.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        torch.save(state, part / "state.pt")
        _sync(part / "state.pt")
        shutil.rmtree(final, ignore_errors=True)
        os.replace(part, final)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        shutil.rmtree(part, ignore_errors=True)
        raise TrainingError(
            f"{final}: cannot be written: {error}",
            hint="free some space and go on with --resume; older checkpoints are kept",
        ) from None
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; raise `TrainingError` if it is not one."""
    try:
        state: Any = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise TrainingError(
            f"{path}: not a usable checkpoint: {error!r:.200}", hint="delete it to resume from the one before"
        ) from None
    if not isinstance(state, dict) or set(state) != _PARTS:
        raise TrainingError(f"{path}: not a checkpoint of a run", hint="delete it to resume from the one before")
    return cast(dict[str, Any], state)


def checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints in ``folder``, oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if _NAME.fullmatch(path.name))


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
