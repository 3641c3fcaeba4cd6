"""Tokens per second and time to the first token with 1 to 32 requests at once, on nano and mid.

Unusual: every answer is also compared with the one that the same request got alone. Run from the repository root:
``python -m benchmarks.engine_throughput``.
"""

from __future__ import annotations

from benchmarks.engine_runs import conditions, greedy, model_of, random_ids, running, timed
from benchmarks.result import write_result
from openk3.engine.config import EngineConfig
from openk3.protocol.request import Request

CONCURRENCY = (1, 2, 4, 8, 16, 32)
PROMPT, ANSWER = 128, 32


def measure(name: str, rounds: int) -> dict[str, object]:
    """Measure one model; each client asks ``rounds`` times."""
    model = model_of(name)
    requests = [
        Request(prompt_ids=random_ids(model, PROMPT, seed), params=greedy(ANSWER)) for seed in range(max(CONCURRENCY))
    ]
    figures, before = list[dict[str, object]](), conditions()
    with running(model, EngineConfig(prefix_cache=False)) as engine:
        alone = timed(engine, requests[:4], 1).answers
        for concurrency in CONCURRENCY:
            count = max(2, concurrency) * rounds
            timing = timed(engine, [requests[i % len(requests)] for i in range(count)], concurrency)
            assert all(timing.answers[i] == alone[i] for i in range(min(4, count))), "an answer depends on its company"
            figures.append(
                {
                    "concurrency": concurrency,
                    "requests": count,
                    "written_tokens_per_s": round(timing.tokens_per_second, 1),
                    "read_and_written_tokens_per_s": round(count * (PROMPT + ANSWER) / timing.seconds, 1),
                    "median_first_token_ms": round(timing.first_token_ms, 1),
                    "longest_first_token_ms": round(timing.last_first_token_ms, 1),
                }
            )
    return {**before, "by_concurrency": figures}


def main() -> None:
    """Measure and write the result."""
    write_result(
        "engine_throughput",
        f"prompts of {PROMPT} tokens, answers of {ANSWER}, bfloat16, no prefix cache, by requests at once",
        {"nano": measure("nano", rounds=2), "mid": measure("mid", rounds=1)},
    )


if __name__ == "__main__":
    main()
