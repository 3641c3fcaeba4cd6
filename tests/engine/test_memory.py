"""The memory plan: it adds up, it is a bound, and it says no with a table."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from openk3.engine.config import EngineConfig
from openk3.engine.memory import MemoryPlan, plan_memory
from openk3.engine.sizes import available_memory, format_size, parse_size
from openk3.errors import CapacityError, ConfigError
from openk3.model.presets import preset
from openk3.model.state import kda_shapes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("8 gb", 8 * 10**9),
        ("512MiB", 512 << 20),
        ("1.5g", 1_500_000_000),
        ("100", 100),
        ("2Ti", 2 << 40),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "8XB", "-1GB", "0", "8 i", "1e9", "0.0001"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="size is"):
        parse_size(text)


def test_sizes_as_we_write_them() -> None:
    assert [format_size(n) for n in (5, 1500, 2.5e6, 8e9, 3e12)] == ["5 B", "1.5 kB", "2.5 MB", "8 GB", "3 TB"]


def test_a_container_that_has_less_than_the_machine_counts(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "group"
    proc.mkdir()
    group.mkdir()
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:       50 kB\n")
    assert available_memory(proc, group) == 50 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("7\n")
    assert available_memory(proc, group) == 50 * 1024
    (group / "memory.max").write_text("1000\n")
    assert available_memory(proc, group) == 993
    (group / "memory.max").write_text("5\n")
    assert available_memory(proc, group) == 0
    assert available_memory(tmp_path / "none", tmp_path / "none") > 0


def plan(name: str = "mini4", budget: int | None = 2 * 10**9, weights: int = 10**6, **settings: object) -> MemoryPlan:
    engine = EngineConfig(**settings)  # type: ignore[arg-type]
    return plan_memory(preset(name), engine, dtype=torch.bfloat16, weight_bytes=weights, budget=budget)


@pytest.mark.parametrize("name", ["mini4", "tail9", "mtp5", "mid", "slice"])
@pytest.mark.parametrize("budget", [5 * 10**9, 50 * 10**9])
def test_parts_fill_the_budget_and_no_more(name: str, budget: int) -> None:
    divided = plan(name, budget)
    assert divided.total <= budget
    assert divided.total > 0.99 * budget
    assert divided.num_slots >= 1 and divided.num_blocks * 64 >= 1024


def test_little_memory_means_fewer_requests_at_once() -> None:
    slots = [plan("slice", 10**9 * n).num_slots for n in (4, 6, 60)]
    assert slots == sorted(slots) and slots[0] < slots[-1] == 32


def test_too_little_is_refused_with_a_table() -> None:
    with pytest.raises(CapacityError) as refused:
        plan("slice", 10**9, weights=7 * 10**9)
    lines = str(refused.value).splitlines()
    assert "the memory of 1 GB is too small" in lines[0]
    assert any(line.split() == ["weights", "7", "GB"] for line in lines)
    assert any(line.split()[0] == "total" for line in lines)


def test_without_a_budget_half_of_what_is_free_is_taken_beside_the_weights() -> None:
    assert plan(budget=None).budget <= 10**6 + 1.5 * available_memory() // 2


def test_a_draft_model_has_room_for_its_own_pass_and_states() -> None:
    engine, target = EngineConfig(speculate="draft"), preset("mini4")
    alone = plan_memory(target, engine, dtype=torch.bfloat16, weight_bytes=0, budget=10**10)
    drafted = plan_memory(
        target,
        engine,
        dtype=torch.bfloat16,
        weight_bytes=0,
        draft_model=(preset("slice"), torch.bfloat16),
        draft_weight_bytes=10**9,
        draft_bytes_per_token=1000,
        draft_bytes_per_sequence=10**6,
        budget=10**10,
    )
    assert dict(drafted.parts)["a step"] > 10 * dict(alone.parts)["a step"]
    assert drafted.num_blocks < alone.num_blocks and drafted.total <= 10**10


def test_what_all_layers_hold_until_drafts_are_judged_is_planned() -> None:
    plain, drafting = (
        dict(plan("slice", 60 * 10**9, speculate=kind, token_budget=256).parts) for kind in ("off", "ngram")
    )
    config = preset("slice")
    shapes = kda_shapes(config)
    token = len(config.kda_layers) * (math.prod(shapes.opened[1:]) * 4 + shapes.conv[1] * 2)
    state = len(config.kda_layers) * math.prod(shapes.recurrent) * 4
    assert drafting["a step"] - plain["a step"] == 256 * token
    assert drafting["rows of a step"] - plain["rows of a step"] >= 32 * state
