"""What the prefix cache saves, on a shared beginning and on an agent's growing conversation.

Unusual: an engine with the cache and one without take turns on the same requests, and their answers must be equal. Run
from the repository root: ``python -m benchmarks.engine_prefix_cache``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.engine_runs import Timing, conditions, greedy, joined, model_of, random_ids, running, timed
from benchmarks.result import write_result
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request

# No multiples of 16, so that what checkpoints at whole chunks lose is seen.
SYSTEM, QUESTION, ANSWER = 1001, 61, 17
AT_ONCE = 4
ROUNDS = {"nano": 4, "mid": 2}
TURNS = {"nano": 12, "mid": 5}
MEMORY = 6 << 30

Timings = list[tuple[Timing, Timing]]


def in_turns(
    cold: Engine, warm: Engine, requests: Sequence[Request], clients: int, number: int
) -> tuple[Timing, Timing]:
    """Give both engines the same requests, the one first and then the other; return their timings, cold and warm."""
    engines = (cold, warm) if number % 2 == 0 else (warm, cold)
    found = {engine: timed(engine, requests, clients) for engine in engines}
    assert found[cold].answers == found[warm].answers, "an answer depends on the cache"
    return found[cold], found[warm]


def shared(model: K3ForCausalLM, cold: Engine, warm: Engine, rounds: int) -> Timings:
    """Ask different questions behind one system prompt, some at once."""
    system = random_ids(model, SYSTEM, 0)
    timings = []
    for number in range(rounds):
        seeds = range(1 + AT_ONCE * number, 1 + AT_ONCE * (number + 1))
        asked = [Request(prompt_ids=system + random_ids(model, QUESTION, s), params=greedy(ANSWER)) for s in seeds]
        timings.append(in_turns(cold, warm, asked, AT_ONCE, number))
    return timings


def growing(model: K3ForCausalLM, cold: Engine, warm: Engine, turns: int) -> Timings:
    """Send a conversation again and again, each time with the last answer and a tool's result behind it."""
    history, timings = random_ids(model, SYSTEM, 99), []
    for turn in range(turns):
        length = len(history)
        request = Request(prompt_ids=history, params=greedy(ANSWER), replayed=partial(_all_tokens, length))
        timings.append(in_turns(cold, warm, [request], 1, turn))
        history = (*history, *timings[-1][0].answers[0], *random_ids(model, QUESTION, 100 + turn))
    return timings


def shared_tokens(timings: Timings) -> int:
    """Return the tokens that all but the first request have in common with it."""
    return SYSTEM * (sum(len(warm.stats) for _, warm in timings) - 1)


def grown_tokens(timings: Timings) -> int:
    """Return the tokens of all prompts that stood in the turn before, in its prompt or its answer."""
    return sum(warm.stats[0].prompt_tokens + warm.stats[0].completion_tokens for _, warm in timings[:-1])


def _all_tokens(num_prompt: int, generated: tuple[int, ...]) -> int:
    return num_prompt + len(generated)


def figures(timings: Timings, repeated: int) -> dict[str, Any]:
    """Compare a trace without and with the cache; ``repeated`` tokens of its prompts were in requests before."""
    cold, warm = joined([one for one, _ in timings]), joined([other for _, other in timings])
    prompt = sum(stats.prompt_tokens for stats in warm.stats)
    cached = sum(stats.cached_tokens for stats in warm.stats)
    return {
        "requests": len(warm.stats),
        "prompt_tokens": prompt,
        "tokens_from_cache": cached,
        "share_from_cache": round(cached / prompt, 3),
        "tokens_repeated": repeated,
        "tokens_lost_to_granularity": repeated - cached,
        "of_them_in_whole_units": sum(stats.matched_tokens for stats in warm.stats) - cached,
        "seconds_without": round(cold.seconds, 2),
        "seconds_with": round(warm.seconds, 2),
        "speed_up": round(cold.seconds / warm.seconds, 2),
        "speed_up_by_cpu_time": round(cold.cpu_seconds / warm.cpu_seconds, 2),
        "median_first_token_ms_without": round(cold.first_token_ms, 1),
        "median_first_token_ms_with": round(warm.first_token_ms, 1),
        "first_token_speed_up": round(cold.first_token_ms / warm.first_token_ms, 2),
    }


def measure(name: str) -> dict[str, Any]:
    """Measure both traces on one model."""
    model = model_of(name)
    result: dict[str, Any] = {**conditions()}
    repeated = {"shared_beginning": shared_tokens, "growing_conversation": grown_tokens}
    for trace, run, count in (
        ("shared_beginning", shared, ROUNDS[name]),
        ("growing_conversation", growing, TURNS[name]),
    ):
        with (
            running(model, EngineConfig(prefix_cache=False, memory_bytes=MEMORY)) as cold,
            running(model, EngineConfig(memory_bytes=MEMORY)) as warm,
        ):
            timings = run(model, cold, warm, count)
            result[trace] = figures(timings, repeated[trace](timings))
            cache = warm.metrics.cache
            result[trace]["checkpoints"] = cache.checkpoints
            result[trace]["checkpoint_megabytes"] = round(cache.checkpoint_bytes / 1e6, 2)
    return result


def main() -> None:
    """Measure and write the result."""
    what = f"{SYSTEM} shared tokens, {QUESTION} new ones per request, answers of {ANSWER}, bfloat16"
    write_result("engine_prefix_cache", what, {name: measure(name) for name in ROUNDS})


if __name__ == "__main__":
    main()
