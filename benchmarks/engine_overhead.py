"""What the engine costs beside the model: the part of a step spent in scheduling, sampling and keeping books.

Unusual: the same steps are timed as a profile, so that it is also said where that part goes. Run from the repository
root: ``python -m benchmarks.engine_overhead``.
"""

from __future__ import annotations

import cProfile
import pstats
from typing import Any

from benchmarks.engine_runs import greedy, model_of, random_ids
from benchmarks.result import write_result
from openk3.engine.config import EngineConfig
from openk3.engine.core import EngineCore
from openk3.engine.memory import plan_memory
from openk3.engine.stream import TokenStream
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams

PROMPT, ANSWER = 64, 32
CONCURRENCY = (1, 8, 32)
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=1, max_tokens=ANSWER)


def core_of(model: K3ForCausalLM) -> EngineCore:
    """Make an engine whose steps are made here, without a thread."""
    config = EngineConfig(memory_bytes=8 * 10**9)
    memory = plan_memory(model.config, config, dtype=model.dtype, weight_bytes=0, budget=config.memory_bytes)
    return EngineCore(model, config, memory)


def work(core: EngineCore, model: K3ForCausalLM, count: int, params: SamplingParams, first_seed: int) -> None:
    """Answer ``count`` requests at once."""
    for seed in range(first_seed, first_seed + count):
        request = Request(prompt_ids=random_ids(model, PROMPT, seed), params=params)
        core.add(core.prepare(request, TokenStream()))
    while core.has_work:
        core.step()


def measure(model: K3ForCausalLM, count: int, params: SamplingParams) -> dict[str, Any]:
    """Return the time of a step and the part of it outside the model."""
    core = core_of(model)
    work(core, model, 1, params, 1000)
    before = core.metrics
    work(core, model, count, params, 0)
    after = core.metrics
    steps, seconds = after.steps - before.steps, after.step_s - before.step_s
    inside = after.model_s - before.model_s
    return {
        "concurrency": count,
        "steps": steps,
        "step_ms": round(1000 * seconds / steps, 2),
        "outside_the_model_ms": round(1000 * (seconds - inside) / steps, 3),
        "outside_the_model": round(1 - inside / seconds, 4),
    }


def profile(model: K3ForCausalLM, count: int) -> dict[str, float]:
    """Return seconds by function of the engine outside the forward pass, the largest first."""
    core = core_of(model)
    work(core, model, 1, SAMPLED, 1000)
    profiler = cProfile.Profile()
    profiler.runcall(work, core, model, count, SAMPLED, 0)
    rows = pstats.Stats(profiler).get_stats_profile().func_profiles
    names = ("_take", "choose", "_store", "settle", "note_computed", "admit", "plan", "_drop", "put", "publish", "run")
    found = {name: round(rows[name].cumtime, 3) for name in names if name in rows}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main() -> None:
    """Measure and write the result."""
    figures: dict[str, Any] = {}
    for name in ("nano", "mid"):
        model = model_of(name)
        figures[name] = {
            "greedy": [measure(model, count, greedy(ANSWER)) for count in CONCURRENCY],
            "sampled_top_p": [measure(model, count, SAMPLED) for count in CONCURRENCY],
            "profile_cumulative_s": profile(model, 8),
        }
    write_result(
        "engine_overhead", f"steps of requests with {PROMPT} + {ANSWER} tokens, bfloat16, with prefix cache", figures
    )


if __name__ == "__main__":
    main()
