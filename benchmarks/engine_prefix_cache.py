"""What the prefix cache saves, on a shared beginning and on an agent's growing conversation.

Unusual: the same requests run with and without the cache, and their answers must be equal. Run from the repository
root: ``python -m benchmarks.engine_prefix_cache``.
"""

from __future__ import annotations

from typing import Any

from benchmarks.engine_runs import Timing, greedy, model_of, random_ids, running, timed
from benchmarks.result import write_result
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request

SYSTEM, QUESTION, ANSWER = 1024, 64, 16
SHARED_REQUESTS, TURNS = 16, 12


def shared(engine: Engine, model: K3ForCausalLM) -> Timing:
    """Ask different questions behind one system prompt, four at once."""
    system = random_ids(model, SYSTEM, 0)
    asked = [
        Request(prompt_ids=system + random_ids(model, QUESTION, seed), params=greedy(ANSWER))
        for seed in range(1, SHARED_REQUESTS + 1)
    ]
    return timed(engine, asked, 4)


def growing(engine: Engine, model: K3ForCausalLM) -> Timing:
    """Send a conversation again and again, each time with the last answer and a tool's result behind it."""
    history, timings = random_ids(model, SYSTEM, 99), []
    for turn in range(TURNS):
        length = len(history)
        request = Request(
            prompt_ids=history, params=greedy(ANSWER), replayed=lambda generated, n=length: n + len(generated)
        )
        timings.append(timed(engine, [request], 1))
        history = (*history, *timings[-1].answers[0], *random_ids(model, QUESTION, 100 + turn))
    return Timing(
        [t.answers[0] for t in timings], [t.stats[0] for t in timings], sum(t.seconds for t in timings)
    )


def measure(name: str) -> dict[str, Any]:
    """Measure both traces on one model."""
    model = model_of(name)
    result: dict[str, Any] = {}
    for trace, run in (("shared_beginning", shared), ("growing_conversation", growing)):
        with running(model, EngineConfig(prefix_cache=False)) as engine:
            cold = run(engine, model)
        with running(model, EngineConfig()) as engine:
            warm = run(engine, model)
            cache = engine.metrics.cache
        assert warm.answers == cold.answers, "an answer depends on the cache"
        result[trace] = {
            "prompt_tokens": sum(s.prompt_tokens for s in warm.stats),
            "tokens_from_cache": sum(s.cached_tokens for s in warm.stats),
            "tokens_lost_to_granularity": sum(s.matched_tokens - s.cached_tokens for s in warm.stats),
            "checkpoints": cache.checkpoints,
            "checkpoint_megabytes": round(cache.checkpoint_bytes / 1e6, 2),
            "seconds_without": round(cold.seconds, 2),
            "seconds_with": round(warm.seconds, 2),
            "speed_up": round(cold.seconds / warm.seconds, 2),
            "median_first_token_ms_without": round(cold.first_token_ms, 1),
            "median_first_token_ms_with": round(warm.first_token_ms, 1),
        }
    return result


def main() -> None:
    """Measure and write the result."""
    what = f"{SYSTEM} shared tokens, {QUESTION} new ones per request, answers of {ANSWER}, bfloat16"
    write_result("engine_prefix_cache", what, {"nano": measure("nano"), "mid": measure("mid")})


if __name__ == "__main__":
    main()
