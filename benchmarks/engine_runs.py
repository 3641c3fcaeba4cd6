"""Models, requests and timings that the engine's benchmarks share.

Unusual: the tokens are random, and so are the weights of every model but nano: time does not depend on what they say.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from openk3.checkpoint.loader import load_model
from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.resolve import resolve_model
from openk3.checkpoint.writer import write_checkpoint
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.engine.stream import TokenStream
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from openk3.protocol.request import Request, RequestStats
from openk3.protocol.sampling import SamplingParams

# Nano is measured with one thread, as small models run by default, and whatever comes after it with all again.
_THREADS = torch.get_num_threads()


def model_of(name: str, seed: int = 0) -> K3ForCausalLM:
    """Load nano, or a preset as `openk3 init` writes it, in bfloat16 with experts expanded once, not at each use."""
    torch.set_num_threads(1 if name == "nano" else _THREADS)
    if name == "nano":
        return load_model(resolve_model("nano"), experts="plain")
    config = preset(name)
    with TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), config, RandomSource(config, seed), vision=True)
        return load_model(folder, experts="plain")


def conditions() -> dict[str, object]:
    """Return what time depends on beside the machine: threads of products, and how busy the machine was."""
    return {"threads": torch.get_num_threads(), "load_average": round(os.getloadavg()[0], 2)}


@contextmanager
def running(model: K3ForCausalLM, config: EngineConfig, draft_model: K3ForCausalLM | None = None) -> Iterator[Engine]:
    """Run an engine that has computed something once, so that nothing is set up while it is timed."""
    with Engine(model, config, draft_model=draft_model) as engine:
        warm = Request(prompt_ids=random_ids(model, 24, -1), params=greedy(4), cache_salt="warm-up")
        list(engine.submit(warm))
        yield engine


def random_ids(model: K3ForCausalLM, count: int, seed: int) -> tuple[int, ...]:
    """Return token ids of one seed."""
    return tuple(random.Random(seed).choices(range(model.config.vocab_size // 2), k=count))


def greedy(count: int) -> SamplingParams:
    """Ask for exactly ``count`` tokens: nothing ends an answer here."""
    return SamplingParams(temperature=0.0, max_tokens=count)


@dataclass(frozen=True)
class Timing:
    """Answers of some requests, what each cost, and the wall time and the processors' time of all."""

    answers: list[list[int]]
    stats: list[RequestStats]
    seconds: float
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Written tokens per second of wall time, reading included."""
        return sum(s.completion_tokens for s in self.stats) / self.seconds

    @property
    def first_token_ms(self) -> float:
        """Median time to the first token, waiting included."""
        return 1000 * statistics.median(s.first_token_s or 0.0 for s in self.stats)

    @property
    def last_first_token_ms(self) -> float:
        """The longest time to a first token."""
        return 1000 * max(s.first_token_s or 0.0 for s in self.stats)


def joined(timings: Sequence[Timing]) -> Timing:
    """Return the timing of runs one after another."""
    return Timing(
        [answer for timing in timings for answer in timing.answers],
        [stats for timing in timings for stats in timing.stats],
        sum(timing.seconds for timing in timings),
        sum(timing.cpu_seconds for timing in timings),
    )


def timed(engine: Engine, requests: Sequence[Request], concurrency: int) -> Timing:
    """Submit ``requests`` from ``concurrency`` clients, each waiting for its answer before it asks again."""
    answers: dict[int, tuple[list[int], TokenStream]] = {}
    pending = iter(enumerate(requests))
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                number, request = next(pending, (None, None))
            if request is None or number is None:
                return
            stream = engine.submit(request)
            answers[number] = ([output.token_id for output in stream], stream)

    threads = [threading.Thread(target=client) for _ in range(concurrency)]
    start, cpu_start = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    ordered = [answers[number] for number in sorted(answers)]
    stats = [stream.stats for _, stream in ordered if stream.stats is not None]
    return Timing([ids for ids, _ in ordered], stats, seconds, cpu_seconds)
