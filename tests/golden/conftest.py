"""The golden sets: tiny checkpoints in the published layout with recorded outputs of the published reference code."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from openk3.checkpoint.golden_limits import find_limits
from openk3.checkpoint.loader import load_model
from openk3.model.model import K3ForCausalLM, ModelOptions

GOLDEN = Path(os.environ.get("OPENK3_SHARED") or Path(__file__).resolve().parents[3] / "shared") / "golden"
# whatever is there; the two names make the reason for skipping appear where nothing is
SETS = sorted(folder.name for folder in GOLDEN.glob("*")) or ["mini4", "k128"]


@dataclass(frozen=True)
class Limits:
    """What the set's own description accepts in float32."""

    largest: float
    median: float
    tight_trace: float  # kda_o, kda_state, kda_beta, router_weights
    trace: float = 3e-4


LIMITS = {"mini4": Limits(3e-3, 5e-5, 2e-5), "k128": Limits(1e-3, 3e-5, 3e-5)}


@dataclass(frozen=True)
class GoldenSet:
    """One set; models are loaded anew for each form, so that a test may change one."""

    name: str
    folder: Path
    recorded: dict[str, torch.Tensor]

    @property
    def limits(self) -> Limits:
        if self.name in LIMITS:
            return LIMITS[self.name]
        derived = find_limits(self.folder / "golden.safetensors", None)
        logits, tight, trace = derived.of("logits"), derived.of("kda_o", "17"), derived.of("ffn_out", "17")
        return Limits(logits.largest, logits.median, tight.largest, trace.largest)

    @property
    def lengths(self) -> list[int]:
        """Lengths of the recorded prompts."""
        prefix = "input_ids.len"
        return sorted(int(name.removeprefix(prefix)) for name in self.recorded if name.startswith(prefix))

    def model(self, dtype: torch.dtype = torch.float32, **options: Any) -> K3ForCausalLM:
        return load_model(self.folder / "checkpoint", dtype=dtype, options=ModelOptions(**options))

    def ids(self, length: int) -> torch.Tensor:
        return self.recorded[f"input_ids.len{length}"].long()

    def recorded_experts(self, length: int) -> dict[int, torch.Tensor]:
        pattern = re.compile(rf"trace\.len{length}\.layer(\d+)\.router_experts")
        found = ((pattern.fullmatch(name), value) for name, value in self.recorded.items())
        return {int(match[1]): value.long() for match, value in found if match}

    def check_logits(self, logits: torch.Tensor, length: int) -> None:
        """Assert that ``logits`` [length, vocab] are within the set's limits."""
        gap = (logits - self.recorded[f"logits.len{length}"]).abs()
        assert gap.max() <= self.limits.largest, f"len{length}: {gap.max():.2e} at most {self.limits.largest:.0e}"
        assert gap.median() <= self.limits.median, f"len{length}: {gap.median():.2e} at most {self.limits.median:.0e}"


@cache
def _recorded(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


@pytest.fixture(params=SETS)
def golden(request: pytest.FixtureRequest, shared: Path) -> GoldenSet:
    """Each golden set in turn."""
    folder = shared / "golden" / request.param
    return GoldenSet(request.param, folder, _recorded(folder / "golden.safetensors"))


@pytest.fixture
def run() -> Callable[[K3ForCausalLM, torch.Tensor], torch.Tensor]:
    """Run a whole prompt in one pass."""

    def one_pass(model: K3ForCausalLM, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
        with torch.inference_mode():
            return model(ids, [len(ids)], **arguments)

    return one_pass
