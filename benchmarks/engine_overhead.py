"""What the engine costs beside the model: the part of a step spent in scheduling, sampling and keeping books.

Unusual: the forward pass is timed by itself, so that all the rest counts as the engine's, what surrounds the pass in
the runner too; and that rest alone is profiled. Run from the repository root: ``python -m benchmarks.engine_overhead``.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from benchmarks.engine_runs import conditions, greedy, model_of, random_ids
from benchmarks.result import write_result
from openk3.engine.batch import PagedStates
from openk3.engine.config import EngineConfig
from openk3.engine.core import EngineCore
from openk3.engine.memory import plan_memory
from openk3.engine.stream import TokenStream
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams

Phase = Literal["reading", "writing"]

MODELS = ("nano", "mid")
PROMPT, STEPS = 64, 24
CONCURRENCY = (1, 8, 16)
MEMORY = 8 << 30
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, seed=1, max_tokens=2 * STEPS)
SETTINGS = {"greedy": greedy(2 * STEPS), "sampled_top_p": SAMPLED}
PROFILED, LONGEST = 8, 16
PARTS = ("_drop", "admit", "_draft", "plan", "run", "logit_rows", "sound_rows", "_take", "_store", "settle", "publish")


@contextmanager
def surrounded(
    owner: Any, names: tuple[str, ...], before: Callable[[], None], after: Callable[[], None]
) -> Iterator[None]:
    """Call ``before`` and ``after`` around some of an object's methods."""
    originals = {name: getattr(owner, name) for name in names}

    def around(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            try:
                return method(*args, **kwargs)
            finally:
                after()

        return call

    for name, method in originals.items():
        setattr(owner, name, around(method))
    try:
        yield
    finally:
        for name, method in originals.items():
            setattr(owner, name, method)


class Watch:
    """Adds up the seconds between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def start(self) -> None:
        """Begin a stretch."""
        self.seconds -= time.perf_counter()

    def stop(self) -> None:
        """End it."""
        self.seconds += time.perf_counter()

    def take(self) -> float:
        """Return the sum and begin with zero again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def core_of(model: K3ForCausalLM, params: SamplingParams, count: int, seed: int = 0) -> EngineCore:
    """Make an engine whose steps are made here, without a thread, and give it ``count`` requests."""
    config = EngineConfig(memory_bytes=MEMORY)
    core = EngineCore(
        model, config, plan_memory(model.config, config, dtype=model.dtype, weight_bytes=0, budget=MEMORY)
    )
    for number in range(count):
        request = Request(prompt_ids=random_ids(model, PROMPT, seed + number), params=params)
        core.add(core.prepare(request, TokenStream()))
    return core


def is_reading(core: EngineCore) -> bool:
    """Tell whether a request has not come to writing yet."""
    return bool(core.scheduler.num_waiting) or not all(sequence.is_writing for sequence in core.scheduler.running)


def steps_of(core: EngineCore, phase: Phase) -> Iterator[None]:
    """Make a step each time: until every request is writing, or some in which every one writes."""
    if phase == "writing":
        for _ in range(STEPS):
            core.step()
            yield
        return
    while is_reading(core):
        core.step()
        yield


def timed(core: EngineCore, model: K3ForCausalLM, phase: Phase) -> dict[str, float]:
    """Return median milliseconds of a step and of what is outside the forward pass, and the parts that they are."""
    whole, inside, states = Watch(), Watch(), Watch()
    before, times = core.metrics, []
    with (
        surrounded(model, ("run", "head"), inside.start, inside.stop),
        surrounded(PagedStates, ("read_kda", "write_kda", "extend_latents", "latents"), states.start, states.stop),
    ):
        whole.start()
        for _ in steps_of(core, phase):
            whole.stop()
            times.append((whole.take(), inside.take(), states.take()))
            whole.start()
    after = core.metrics
    by_counters = 1 - (after.model_s - before.model_s) / (after.step_s - before.step_s)
    step = statistics.median(one for one, _, _ in times)
    outside = statistics.median(one - passed for one, passed, _ in times)
    return {
        "steps": len(times),
        "step_ms": round(1000 * step, 2),
        "outside_the_forward_pass_ms": round(1000 * outside, 3),
        "outside_the_forward_pass": round(outside / step, 4),
        "outside_by_the_engines_own_counters": round(by_counters, 4),
        "states_and_pages_within_the_pass": round(statistics.median(state / one for one, _, state in times), 4),
    }


def measure(model: K3ForCausalLM, count: int, params: SamplingParams) -> dict[str, Any]:
    """Measure steps that read prompts, and steps that write."""
    for _ in steps_of(core_of(model, params, 1, seed=1000), "reading"):
        pass  # whatever is set up once
    core = core_of(model, params, count)
    return {
        "concurrency": count,
        "reading": timed(core, model, "reading"),
        "writing": timed(core, model, "writing"),
    }


def profile(model: K3ForCausalLM, params: SamplingParams) -> dict[str, dict[str, float]]:
    """Return milliseconds per writing step outside the forward pass, by part and by function alone."""
    core = core_of(model, params, PROFILED)
    for _ in steps_of(core, "reading"):
        pass
    profiler = cProfile.Profile(time.thread_time)  # time in which others had the processor does not count
    with surrounded(model, ("run", "head"), profiler.disable, profiler.enable):
        profiler.enable()
        for _ in steps_of(core, "writing"):
            pass
        profiler.disable()
    rows: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = getattr(pstats.Stats(profiler), "stats")  # noqa: B009
    own = {_place(key): round(1000 * row[2] / STEPS, 4) for key, row in rows.items()}
    parts = {
        f"{Path(key[0]).name}: {key[2]}": round(1000 * row[3] / STEPS, 4)
        for key, row in rows.items()
        if key[2] in PARTS and "openk3" in key[0]
    }
    return {
        "with_what_it_calls_ms": dict(sorted(parts.items(), key=lambda item: -item[1])),
        "alone_ms": dict(sorted(own.items(), key=lambda item: -item[1])[:LONGEST]),
    }


def _place(key: tuple[str, int, str]) -> str:
    file, line, function = key
    return function if file == "~" else f"{Path(file).name}:{line} {function}"


def main() -> None:
    """Measure and write the result."""
    figures: dict[str, Any] = {}
    for name in MODELS:
        model = model_of(name)
        figures[name] = {**conditions()}
        for label, params in SETTINGS.items():
            figures[name][label] = [measure(model, count, params) for count in CONCURRENCY]
            figures[name][f"profile_{label}_at_{PROFILED}"] = profile(model, params)
    what = f"steps of requests with {PROMPT} tokens of prompt, {STEPS} steps of writing, bfloat16, with prefix cache"
    write_result("engine_overhead", what, figures)


if __name__ == "__main__":
    main()
