"""What speculation gains or costs, by drafter: n-grams, MTP layer, draft model, on texts that suit them and not.

Unusual: engines with and without a drafter take turns on the same requests, and their answers must be equal. Nano comes
without drafters, so two are fitted to its answers first. Run from the repository root:
``python -m benchmarks.engine_speculation``.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.engine_drafts import answers, fit_model, fit_mtp, questions, small_model, with_mtp_layer
from benchmarks.engine_runs import Timing, conditions, greedy, joined, model_of, random_ids, running, timed
from benchmarks.result import write_result
from openk3.engine.config import EngineConfig, Speculation
from openk3.engine.engine import Engine
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams

FITTED_TEXTS, FIT_SECONDS = 300, 60.0
REQUESTS, ANSWER = 6, 96
MID_ANSWER = 48
MEMORY = 6 << 30

Entry = tuple[str, Speculation, K3ForCausalLM | None]
# The second plain engine shows how far two equal ones are apart: what is nearer to 1 than it says nothing.
PLAIN: Entry = ("off", "off", None)
PLAIN_AGAIN: Entry = ("off_again", "off", None)


@dataclass(frozen=True)
class Contestant:
    """An engine and the timings that it collects."""

    name: str
    engine: Engine
    timings: list[Timing]


def repetitive(model: K3ForCausalLM, count: int, answer: int) -> list[Request]:
    """Ask to go on with a phrase that was said eight times."""
    return [Request(prompt_ids=random_ids(model, 12, seed) * 8, params=greedy(answer)) for seed in range(count)]


def monotonous(model: K3ForCausalLM, count: int, answer: int) -> list[Request]:
    """Ask for one token again and again, whatever the model says: every draft is right."""
    params = SamplingParams(temperature=0.0, logit_bias={100: 1000.0}, max_tokens=answer)
    return [Request(prompt_ids=random_ids(model, 96, seed), params=params) for seed in range(count)]


def adverse(count: int, answer: int) -> list[Request]:
    """Ask for text of eight tokens in random order: every pair was there before, what followed it tells nothing."""
    few = range(100, 108)
    params = [
        SamplingParams(temperature=20.0, logit_bias=dict.fromkeys(few, 1000.0), seed=seed, max_tokens=answer)
        for seed in range(count)
    ]
    prompts = [tuple(random.Random(seed).choices(few, k=128)) for seed in range(count)]
    return [Request(prompt_ids=prompt, params=one) for prompt, one in zip(prompts, params, strict=True)]


def chats(count: int, answer: int, temperature: float) -> list[Request]:
    """Ask questions that the fitted drafters have not seen answered in these words."""
    return [
        Request(prompt_ids=ids, params=SamplingParams(temperature=temperature, seed=7, max_tokens=answer))
        for ids in questions(count, seed=1)
    ]


def contest(contestants: Sequence[Contestant], requests: Sequence[Request], at_once: int) -> None:
    """Let everyone answer a portion of the requests, then the next, each time in another order."""
    for contestant in contestants:
        contestant.timings.clear()
    for number, first in enumerate(range(0, len(requests), at_once)):
        turn = number % len(contestants)
        for contestant in (*contestants[turn:], *contestants[:turn]):
            contestant.timings.append(timed(contestant.engine, requests[first : first + at_once], at_once))
    answers = [joined(contestant.timings).answers for contestant in contestants]
    assert all(answer == answers[0] for answer in answers), "an answer depends on speculation"


def figures(contestants: Sequence[Contestant], requests: Sequence[Request], at_once: int = 1) -> dict[str, Any]:
    """Return speed, gain over the first contestant, and acceptance of each one."""
    before = [contestant.engine.metrics for contestant in contestants]
    contest(contestants, requests, at_once)
    plain, found = contestants[0], dict[str, Any]()
    for contestant, then in zip(contestants, before, strict=True):
        now, whole = contestant.engine.metrics, joined(contestant.timings)
        drafted, accepted = now.drafted - then.drafted, now.accepted - then.accepted
        pairs = zip(plain.timings, contestant.timings, strict=True)
        found[contestant.name] = {
            "written_tokens_per_s": round(whole.tokens_per_second, 1),
            "speed_to_plain": round(joined(plain.timings).seconds / whole.seconds, 3),
            "speed_to_plain_by_cpu_time": round(joined(plain.timings).cpu_seconds / whole.cpu_seconds, 3),
            "median_speed_to_plain": round(statistics.median(one.seconds / other.seconds for one, other in pairs), 3),
            "tokens_per_step": round((now.tokens_written - then.tokens_written) / (now.steps - then.steps), 3),
            "drafted": drafted,
            "accepted": accepted,
            "accepted_share": round(accepted / drafted, 3) if drafted else None,
            "drafting_share_of_time": round((now.draft_s - then.draft_s) / (now.step_s - then.step_s), 4),
        }
    return found


def engines(stack: ExitStack, model: K3ForCausalLM, entries: Sequence[Entry]) -> list[Contestant]:
    """Start one engine for each name, drafter and draft model."""
    found = []
    for name, speculate, draft_model in entries:
        config = EngineConfig(prefix_cache=False, memory_bytes=MEMORY, speculate=speculate)
        found.append(Contestant(name, stack.enter_context(running(model, config, draft_model)), []))
    return found


def measure_nano() -> dict[str, Any]:
    """Measure all drafters on nano, the fitted ones on chats and the others where they gain most and least."""
    model, fitted, unfitted = _fitted()
    with ExitStack() as stack:
        off, again, ngram, mtp, draft, wrong = engines(
            stack,
            model,
            [
                PLAIN,
                PLAIN_AGAIN,
                ("ngram", "ngram", None),
                ("mtp", "mtp", None),
                ("draft", "draft", fitted),
                ("draft_untrained", "draft", unfitted),
            ],
        )
        useful = (off, again, ngram, mtp, draft)
        return {
            **conditions(),
            "chat_greedy": figures(useful, chats(REQUESTS, ANSWER, 0.0)),
            "chat_sampled": figures(useful, chats(REQUESTS, ANSWER, 1.0)),
            "chat_greedy_4_at_once": figures(useful, chats(2 * REQUESTS, ANSWER, 0.0), 4),
            "repetitive": figures(useful, repetitive(model, REQUESTS, ANSWER)),
            "adverse": figures((*useful, wrong), adverse(REQUESTS, ANSWER)),
        }


def _fitted() -> tuple[K3ForCausalLM, K3ForCausalLM, K3ForCausalLM]:
    """Return nano with an MTP layer, a draft model, and one that was never trained, in bfloat16."""
    nano = model_of("nano")
    texts = answers(nano, questions(FITTED_TEXTS, seed=0))
    model, small = with_mtp_layer(), small_model(nano)
    fit_mtp(model, texts, FIT_SECONDS)
    fit_model(small, texts, FIT_SECONDS)
    narrow = [one.requires_grad_(False).to(torch.bfloat16).eval() for one in (model, small, small_model(nano, seed=1))]
    return narrow[0], narrow[1], narrow[2]


def measure_mid() -> dict[str, Any]:
    """Measure n-grams on mid, where a step costs products rather than Python; by itself it repeats nothing."""
    model = model_of("mid")
    with ExitStack() as stack:
        three = engines(stack, model, [PLAIN, PLAIN_AGAIN, ("ngram", "ngram", None)])
        return {
            **conditions(),
            "monotonous": figures(three, monotonous(model, 3, MID_ANSWER)),
            "adverse": figures(three, adverse(3, MID_ANSWER)),
        }


def main() -> None:
    """Measure and write the result."""
    what = f"answers of {ANSWER} tokens on nano with two drafters fitted for {FIT_SECONDS} s each, {MID_ANSWER} on mid"
    write_result("engine_speculation", what, {"nano": measure_nano(), "mid": measure_mid()})


if __name__ == "__main__":
    main()
