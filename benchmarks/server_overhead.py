"""What HTTP streaming costs over the engine in the same process: per token, per request, with 1 to 32 at once.

Unusual: both sides take turns within one run, with the very same requests, so that what else the machine does hits
both. Run from the repository root: ``python -m benchmarks.server_overhead``.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn

from benchmarks.engine_runs import conditions, model_of, timed
from benchmarks.result import write_result
from benchmarks.server_client import ClientProcess
from openk3 import LLM
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.llm.loading import LoadedModel
from openk3.llm.question import ask_chat
from openk3.model.generation_config import GenerationConfig
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from openk3.server.access_log import AccessLog
from openk3.server.app import create_app
from openk3.server.serve import bind, url_of
from openk3.server.settings import ServerSettings
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.tokenizer.vocabulary import write_vocabulary

CONCURRENCY = (1, 2, 4, 8, 16, 32)
CONFIG = EngineConfig(prefix_cache=False, memory_bytes=6 << 30)
PATH = "/v1/chat/completions"
# Tokens of an answer, and how often each side has its turn.
SIZES = {"nano": (48, 7), "mid": (12, 3)}
SHORT, SHORT_ROUNDS = 1, 40


def letters_of(count: int) -> list[bytes]:
    """Return a vocabulary of ``count`` tokens: all bytes, then groups of three letters."""
    letters = "abcdefghijklmnopqrstuvwxyz ABCDEF"
    groups = (f"{a}{b}{c}".encode() for a in letters for b in letters for c in letters)
    return [bytes([byte]) for byte in range(256)] + [next(groups) for _ in range(count - 256)]


def loaded(name: str) -> LoadedModel:
    """Load nano, or a preset with a vocabulary that was made up."""
    if name == "nano":
        return LLM("nano", engine=CONFIG)._model
    model = model_of(name)
    special = SpecialTokens.block(model.config.vocab_size - 256)
    with TemporaryDirectory() as folder:
        write_vocabulary(Path(folder), letters_of(model.config.vocab_size - 256), special)
        tokenizer = Tokenizer.load(Path(folder))
    engine = Engine(model, CONFIG, stop_token_ids={special.end_of_msg})
    return LoadedModel(engine, tokenizer, GenerationConfig(), f"{name}: random")


@contextmanager
def served(llm: LLM) -> Iterator[str]:
    """Serve as `openk3 serve` does, but in a thread, and give the URL."""
    sock = bind("127.0.0.1", 0)
    settings = ServerSettings(free_sampling=True, names=("model",))
    with open(os.devnull, "w") as nowhere:
        app = create_app(llm, settings, log=AccessLog(nowhere))
        config = uvicorn.Config(app, http="h11", ws="none", loop="asyncio", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield url_of(sock)
        server.should_exit = True
        thread.join(60)


def body_of(number: int, tokens: int) -> dict[str, Any]:
    """Ask for exactly ``tokens`` tokens."""
    messages = [{"role": "user", "content": f"{number}: tell me about a boat and a big blue lake."}]
    exact = {"max_tokens": tokens, "min_tokens": tokens, "temperature": 0, "stream": True}
    return {"model": "model", "messages": messages, **exact}


def request_of(model: LoadedModel, number: int, tokens: int) -> Request:
    """Return the request that the server makes of `body_of`."""
    params = SamplingParams(temperature=0.0, top_p=0.95, max_tokens=tokens, min_tokens=tokens)
    return ask_chat(model, body_of(number, tokens)["messages"], {"params": params}).request


class Bench:
    """A model, its server, and the client of it."""

    def __init__(self, model: LoadedModel, url: str, client: ClientProcess) -> None:
        self._model, self._url, self._client = model, url, client

    def turn(self, count: int, tokens: int) -> tuple[float, float, float, float]:
        """Answer ``count`` requests at once, in the process and over HTTP: seconds, and processor seconds here."""
        begin = time.process_time()
        inside = timed(self._model.engine, [request_of(self._model, n, tokens) for n in range(count)], count)
        between = time.process_time()
        over_http = self._client.run(self._url, PATH, [body_of(n, tokens) for n in range(count)], count)
        return inside.seconds, over_http.seconds, between - begin, time.process_time() - between

    def measure(self, count: int, tokens: int, rounds: int) -> dict[str, Any]:
        """Take turns and return what HTTP adds."""
        turns = [self.turn(count, tokens) for _ in range(rounds)]
        inside, over_http, cpu_inside, cpu_http = (statistics.median(column) for column in zip(*turns, strict=True))
        return {
            "concurrency": count,
            "engine_ms_per_token": round(1000 * inside / tokens, 3),
            "http_ms_per_token": round(1000 * over_http / tokens, 3),
            "overhead": round(statistics.median(turn[1] / turn[0] - 1 for turn in turns), 4),
            "overhead_of_medians": round(over_http / inside - 1, 4),
            "overhead_of_fastest": round(min(turn[1] for turn in turns) / min(turn[0] for turn in turns) - 1, 4),
            "more_processor_ms_per_token_and_stream": round(1000 * (cpu_http - cpu_inside) / tokens / count, 4),
        }


def measure(name: str) -> dict[str, Any]:
    """Measure one model."""
    tokens, rounds = SIZES[name]
    model = loaded(name)
    with LLM.of(model) as llm, served(llm) as url, ClientProcess() as client:
        bench = Bench(model, url, client)
        bench.turn(2, 4)  # whatever is set up once
        before = conditions()
        short = [bench.turn(1, SHORT) for _ in range(SHORT_ROUNDS)]
        return {
            **before,
            "tokens_per_answer": tokens,
            "one_request_of_one_token_more_ms": round(1000 * statistics.median(t[1] - t[0] for t in short), 2),
            "by_concurrency": [bench.measure(count, tokens, rounds) for count in CONCURRENCY],
        }


def main() -> None:
    """Measure and write the result."""
    logging.getLogger().setLevel(logging.WARNING)
    names = sys.argv[1:] or list(SIZES)
    figures = {name: measure(name) for name in names}
    what = "streamed chat completions over HTTP, client in another process, against the engine's own token streams"
    write_result("server_overhead", what, figures)


if __name__ == "__main__":
    main()
