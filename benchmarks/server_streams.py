"""How many streams one core of the server can feed, when tokens cost nothing: events per second, and time per event.

Unusual: the engine is a list of tokens, given at once or one per stream and step; the client is another process.
Run from the repository root: ``python -m benchmarks.server_streams``; with ``--profile`` it says where time goes.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

from benchmarks.engine_runs import conditions
from benchmarks.result import write_result
from benchmarks.server_client import ClientProcess
from benchmarks.server_overhead import PATH, served
from openk3 import LLM
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.engine.metrics import EngineMetrics
from openk3.engine.stream import TokenStream
from openk3.llm.loading import LoadedModel
from openk3.protocol.request import Request, RequestStats
from openk3.protocol.sampling import TokenOutput

TOKENS = 200
AT_ONCE = (1, 8, 32, 64)
STREAMS = (32, 128, 512)
STEP_S = 0.02
TEXT = " The little boat went over the big blue lake."


class ListEngine:
    """Answers with ``ids``, over and over: at once, or a token for each stream in every step."""

    stop_token_ids: frozenset[int] = frozenset()
    max_tokens = 8192
    is_running = True
    metrics = EngineMetrics()

    def __init__(self, ids: Sequence[int], step_s: float | None) -> None:
        self._ids, self._step_s = ids, step_s
        self._inbox: list[tuple[TokenStream, int]] = []
        self._over = threading.Event()
        if step_s is not None:
            threading.Thread(target=self._run, daemon=True).start()

    def submit(self, request: Request) -> TokenStream:
        """Answer a request."""
        stream, most = TokenStream(), request.params.max_tokens or TOKENS
        if self._step_s is not None:
            self._inbox.append((stream, most))
            return stream
        for number in range(most):
            self._put(stream, number, most)
        return stream

    def close(self) -> None:
        """Stop."""
        self._over.set()

    def _put(self, stream: TokenStream, number: int, most: int) -> None:
        is_last = number == most - 1
        stream.put(TokenOutput(self._ids[number % len(self._ids)], -1.0, "length" if is_last else None))
        if is_last:
            stream.close(_STATS)

    def _run(self) -> None:
        running: list[list[Any]] = []
        due = time.monotonic()
        while not self._over.is_set():
            due = max(due + (self._step_s or 0.0), time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            while self._inbox:
                stream, most = self._inbox.pop()
                running.append([stream, 0, most])
            for one in running:
                self._put(*one)
                one[1] += 1
            running = [one for one in running if one[1] < one[2]]


_STATS = RequestStats(
    prompt_tokens=1,
    completion_tokens=TOKENS,
    matched_tokens=0,
    cached_tokens=0,
    queue_s=0.0,
    first_token_s=0.0,
    total_s=0.0,
)


def measure(base: LoadedModel, step_s: float | None, concurrency: int, rounds: int) -> dict[str, Any]:
    """Stream ``rounds`` answers on each of ``concurrency`` connections."""
    ids = base.tokenizer.encode(TEXT)
    model = LoadedModel(cast(Engine, ListEngine(ids, step_s)), base.tokenizer, base.generation, base.about)
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "model", "messages": messages, "max_tokens": TOKENS, "stream": True}
    with LLM.of(model) as llm, served(llm) as url, ClientProcess() as client:
        client.run(url, PATH, [body] * concurrency, concurrency)
        begin = time.process_time()
        run = client.run(url, PATH, [body] * concurrency * rounds, concurrency)
        cpu = time.process_time() - begin
    slowest = max(answer.total_s for answer in run.answers)
    return {
        "streams": concurrency,
        "events": run.events,
        "events_per_s": round(run.events / run.seconds),
        "answers_per_s": round(len(run.answers) / run.seconds, 1),
        "server_us_per_event": round(1e6 * cpu / run.events, 1),
        "events_per_server_second": round(run.events / cpu),
        "server_load": round(cpu / run.seconds, 3),
        "client_load": round(run.cpu_s / run.seconds, 3),
        "slowest_answer_s": round(slowest, 3),
    }


def profile(base: LoadedModel) -> None:
    """Print where the event loop's thread spends its time."""
    profiler = cProfile.Profile(time.thread_time)

    def bootstrap(frame: Any, event: str, arg: Any) -> None:
        sys.setprofile(None)
        if threading.current_thread().name.startswith("Thread-") and "run" in frame.f_code.co_name:
            profiler.enable()

    threading.setprofile(bootstrap)
    try:
        measure(base, None, 32, 8)
    finally:
        threading.setprofile(None)
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> None:
    """Measure and write the result."""
    base = LLM("nano", engine=EngineConfig(memory_bytes=1 << 30))._model
    base.engine.close()
    if "--profile" in sys.argv:
        profile(base)
        return
    figures: dict[str, Any] = {**conditions(), "tokens_per_answer": TOKENS}
    figures["all_tokens_at_once"] = [measure(base, None, count, max(2, 64 // count)) for count in AT_ONCE]
    figures[f"a_token_per_stream_every_{1000 * STEP_S:g}_ms"] = [measure(base, STEP_S, n, 2) for n in STREAMS]
    write_result(
        "server_streams", "streamed chat completions of an engine that costs nothing, nano's tokenizer", figures
    )


if __name__ == "__main__":
    main()
