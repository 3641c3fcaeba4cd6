"""Random requests on a random engine, all choices from one seed: whatever happens, every answer is the plain one.

Unusual: the same workload serves the default run (a few seeds) and the long one (all that the time allows); it returns
what it covered, so that a run can say so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from openk3.engine.cache.disk import DiskTier
from openk3.engine.config import EngineConfig
from openk3.engine.stream import TokenStream
from openk3.errors import OpenK3Error
from openk3.protocol.request import MediaSpan, Request
from openk3.protocol.sampling import SamplingParams, TokenOutput
from tests.engine.harness import Harness, Oracle, PlainAnswer, build, drain, ids, plain

MODELS = ("mini4", "tail9", "k128", "mtp5")


@dataclass
class Workload:
    """One engine and what is asked of it; `run` returns counts of what was covered."""

    seed: int
    scale: int = 1
    folder: Path | None = None
    covered: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        rng = self.random
        self.name = rng.choice(MODELS)
        self.dtype = rng.choice([torch.float32, torch.bfloat16])
        self.model = build(self.name, self.dtype)
        unit = rng.choice([16, 16, 32, 48])
        page = rng.choice([5, 16, 64, 100])
        longest = rng.choice([40, 90, 90 * self.scale])
        self.bases = [ids(longest, rng.randrange(4)) for _ in range(rng.choice([1, 2, 3]))]
        self.config = EngineConfig(
            max_running=rng.choice([1, 3, 8]),
            token_budget=rng.choice([16, 37, 512]),
            page_size=page,
            identity_unit=unit,
            ladder=rng.choice([0, unit, 2 * unit]),
            prefix_cache=rng.random() < 0.9 or self.folder is not None,
            speculate_depth=rng.choice([1, 4, 14]),
        )
        pages = -(-(longest + 61) // page)  # prompts get up to 40 tokens more, answers have up to 20
        self.blocks = pages * rng.choice([1, 2, 20]) + rng.choice([0, 3])
        self.speculates = rng.random() < 0.6
        steps_of_a_prompt = (longest + 40) // self.config.token_budget + 1
        self.unrest = rng.choice([0.0, 0.2 / steps_of_a_prompt, 1 / 6 if self.config.prefix_cache else 0.0])

    def run(self, num_requests: int = 12) -> Counter[str]:
        """Submit, step, cancel; then check every answer and that nothing is left behind."""
        rng, harness = self.random, self._harness()
        asked: list[tuple[Request, TokenStream, int | None]] = []
        for _ in range(num_requests):
            request = self._request()
            try:
                asked.append((request, harness.submit(request), rng.choice([None] * 5 + [rng.randrange(30)])))
            except OpenK3Error:
                self.covered["refused"] += 1
            for _ in range(rng.choice([0, 0, 1, 5])):
                self._step(harness, asked)
        while harness.core.has_work:
            self._step(harness, asked)
        for request, stream, cancel in asked:
            self._check(request, stream, cancel)
        self._count(harness)
        harness.check_nothing_is_held()
        if self.folder is not None:
            harness.core.close()
        return self.covered

    def _harness(self) -> Harness:
        drafter = Oracle(lambda s: self._plain(s.request).ids, self.random.random(), self.seed)
        return Harness(
            self.model,
            self.config,
            slots=self.config.max_running,
            blocks=self.blocks,
            drafter=drafter if self.speculates else None,
            disk=DiskTier(self.folder, f"{self.name} {self.dtype}", 1 << 26) if self.folder else None,
        )

    def _step(self, harness: Harness, asked: list[tuple[Request, TokenStream, int | None]]) -> None:
        for _, stream, cancel in asked:
            if cancel is not None and harness.core.metrics.steps >= cancel:
                stream.cancel()
        running = harness.core.scheduler.running
        if running and self.random.random() < self.unrest:  # set somebody aside for no reason at all
            harness.core.scheduler.preempt(self.random.choice(running))
        harness.step()

    def _request(self) -> Request:
        rng = self.random
        base = rng.choice(self.bases)
        cut = rng.choice([rng.randint(1, len(base)), len(base) // 16 * 16, len(base)])
        prompt = base[:cut] + ids(rng.choice([0, 0, 1, 17, rng.randrange(40)]), rng.randrange(3))
        media = (MediaSpan(0, 1, rng.choice([b"cat", b"dog"])),) if rng.random() < 0.1 else ()
        return Request(
            prompt_ids=prompt,
            params=_params(rng),
            priority=rng.choice(["interactive", "interactive", "batch"]),
            media=media,
            cache_salt=rng.choice(["", "", "", "other"]),
            replayed=rng.choice([None, partial(_all_replayed, len(prompt))]),
        )

    def _plain(self, request: Request) -> PlainAnswer:
        params = request.params
        return plain_answer(self.name, self.dtype, request.prompt_ids, _key(params))

    def _check(self, request: Request, stream: TokenStream, cancel: int | None) -> None:
        outputs, error = drain(stream)
        assert error is None, error
        expected = self._plain(request).outputs
        self.covered["answers"] += 1
        self.covered["tokens"] += len(outputs)
        if cancel is not None and len(outputs) < len(expected):
            self.covered["cancelled"] += 1
            assert _comparable(outputs) == _comparable(expected[: len(outputs)])
        else:
            assert _comparable(outputs) == _comparable(expected)

    def _count(self, harness: Harness) -> None:
        metrics = harness.core.metrics
        self.covered["workloads"] += 1
        self.covered["steps"] += metrics.steps
        self.covered["preemptions"] += metrics.preemptions
        self.covered["accepted drafts"] += metrics.accepted
        self.covered["rejected drafts"] += metrics.drafted - metrics.accepted
        self.covered["resumed tokens"] += metrics.cache.hit_tokens
        self.covered["evictions"] += metrics.cache.evictions
        self.covered["hits from disk"] += metrics.cache.disk.hits


def _all_replayed(num_prompt: int, generated: Sequence[int]) -> int:
    return num_prompt + len(generated)


def _params(rng: random.Random) -> SamplingParams:
    length = rng.choice([1, 2, 5, 20])
    kind = rng.choice(["greedy", "greedy", "sampled", "penalties"])
    if kind == "greedy":
        return SamplingParams(temperature=0.0, max_tokens=length, top_logprobs=rng.choice([0, 3]))
    if kind == "sampled":
        return SamplingParams(temperature=1.0, top_p=0.9, seed=rng.randrange(3), max_tokens=length)
    return SamplingParams(
        temperature=0.8, top_k=20, seed=1, presence_penalty=0.5, repetition_penalty=1.2, max_tokens=length
    )


def _key(params: SamplingParams) -> tuple[tuple[str, Any], ...]:
    names = ("temperature", "top_p", "top_k", "seed", "presence_penalty", "repetition_penalty", "max_tokens")
    return tuple((name, getattr(params, name)) for name in (*names, "top_logprobs"))


@lru_cache(maxsize=50_000)
def plain_answer(
    name: str, dtype: torch.dtype, prompt: tuple[int, ...], params: tuple[tuple[str, Any], ...]
) -> PlainAnswer:
    """Return the plain loop's answer, computed once."""
    return plain(build(name, dtype), Request(prompt_ids=prompt, params=SamplingParams(**dict(params))))


def _comparable(outputs: list[TokenOutput] | tuple[TokenOutput, ...]) -> list[tuple[object, ...]]:
    return [(o.token_id, o.logprob, o.finish_reason, o.alternatives) for o in outputs]
