"""An engine under load stays within the memory that its plan names, and what it asks for at least is enough.

Unusual: the load runs in a process of its own, whose peak the system counts; the model is tiny but for its latents and
states, so that some thousand tokens fill all pages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openk3.checkpoint.random_init import init_parameters
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.engine.memory import MemoryPlan, plan_memory
from openk3.engine.sizes import parse_size
from openk3.errors import CapacityError
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from tests.engine.harness import build, ids

STATUS = Path("/proc/self/status")
MEGABYTE = 10**6

# What there is beside blocks: a step's temporaries (the plan's bound covers the widest kernels' tiles, which so small a
# model does not fill), code that is read from disk at its first use, a thread's stack and allocator, Python's objects.
_TOLERANCE = 60 * MEGABYTE
# What a full engine may still take: the allocator's pieces between what lives long.
_LEAK = 10 * MEGABYTE
_SETTINGS = EngineConfig(max_running=4, token_budget=128, page_size=16, memory_bytes=400 * MEGABYTE, ladder=16)


def wide_config() -> K3Config:
    """Return a tiny model's configuration with 0.6 MB of states per checkpoint."""
    small = preset("mini4")
    return replace(small, layer_kinds=("kda", "mla", "mla", "mla"), kda=replace(small.kda, num_heads=32, head_dim=64))


def peak() -> int:
    """Return the most memory that this process ever had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


def wave(engine: Engine, seeds: range) -> None:
    """Answer many long requests at once, some of which go on from others."""
    params = SamplingParams(temperature=0.0, max_tokens=4)
    prompts = [ids(200, seed) + ids(seed % 3, seed) for seed in seeds]
    streams = [engine.submit(Request(prompt_ids=prompt, params=params)) for prompt in (*prompts, *prompts[:4])]
    assert all(len(list(stream)) >= 1 for stream in streams)


def load() -> None:
    """Load an engine until it is full and on; print what that took as JSON."""
    torch.set_num_threads(1)
    model = K3ForCausalLM(wide_config(), dtype=torch.float32)
    init_parameters(model, seed=0)
    with torch.inference_mode():  # what the model's code takes at its first use is no matter of the engine
        model.eval()(torch.tensor(ids(64, 0)), [64], [model.new_state()], last_only=True)
    before = peak()
    with Engine(model, _SETTINGS) as engine:
        wave(engine, range(10))
        full = peak()
        evictions = engine.metrics.cache.evictions
        wave(engine, range(100, 106))
        plan = engine.memory
    print(
        json.dumps(
            {
                "growth": full - before,
                "later": peak() - full,
                "claimed": plan.total - dict(plan.parts)["weights"],
                "arena": plan.num_blocks * plan.block_bytes,
                "evictions": evictions,
            }
        )
    )


@pytest.mark.skipif(not STATUS.exists(), reason="the system does not tell a process its peak")
def test_under_load_it_takes_what_was_planned_and_no_more() -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    code = "from tests.engine.test_memory_bound import load; load()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    assert took["evictions"] > 0, took  # it was full
    assert took["growth"] >= 0.8 * took["arena"], took  # and what it was full of is memory
    assert took["growth"] <= took["claimed"], took
    assert took["growth"] <= took["arena"] + _TOLERANCE, took
    assert took["later"] <= _LEAK, took


def test_too_little_is_refused_with_the_table_before_anything_runs() -> None:
    before = threading.active_count()
    with pytest.raises(CapacityError, match="the memory of 10 MB is too small; at least") as refused:
        Engine(build(), EngineConfig(memory_bytes=10 * MEGABYTE))
    names = re.findall(r"^  (\S.*?) {2,}\S+ \S+$", str(refused.value), re.MULTILINE)
    assert names[0] == "weights"
    assert names[-2:] == ["total", "budget"]
    assert {"a step", "state slots", "pages and checkpoints"} < set(names)
    assert refused.value.hint is not None
    assert threading.active_count() == before


def plan(name: str, budget: int, settings: EngineConfig) -> MemoryPlan:
    return plan_memory(preset(name), settings, dtype=torch.float32, weight_bytes=MEGABYTE, budget=budget)


def least(name: str, settings: EngineConfig) -> int:
    """Return how much memory the refusal says is needed, as its reader would pass it on."""
    with pytest.raises(CapacityError) as refused:
        plan(name, 1, settings)
    found = re.search(r"at least (.+?) are needed", str(refused.value))
    assert found is not None
    return parse_size(found[1])


def settings() -> Iterator[EngineConfig]:
    yield EngineConfig()
    yield EngineConfig(page_size=1024)
    yield EngineConfig(token_budget=16, prefix_cache=False)


@pytest.mark.parametrize("name", ["mini4", "tail9", "k128", "mid", "slice", "k3"])
def test_the_least_that_a_refusal_names_is_enough(name: str) -> None:
    for engine in settings():
        enough = least(name, engine)
        assert plan(name, enough, engine).total <= enough


def test_an_engine_with_the_least_memory_serves_more_than_it_can_hold() -> None:
    """Reported bug 49: engines stopped, or did not start, for want of memory that was theirs to divide."""
    with pytest.raises(CapacityError) as refused:
        Engine(build(), EngineConfig(memory_bytes=1))
    found = re.search(r"at least (.+?) are needed", str(refused.value))
    assert found is not None
    with Engine(build(), EngineConfig(memory_bytes=parse_size(found[1]) + MEGABYTE)) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=3)
        streams = [engine.submit(Request(prompt_ids=ids(200 + n, n), params=params)) for n in range(8)]
        assert all(list(stream)[-1].finish_reason for stream in streams)
    assert engine.metrics.finished == 8
