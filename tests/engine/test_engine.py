"""The engine's thread: submitting, leaving and closing from any thread, and what happens when something fails.

Unusual: tests hold the engine inside a step with a `Gate`, so that nothing depends on who is faster.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from openk3.engine import core
from openk3.engine.config import EngineConfig
from openk3.engine.engine import Engine
from openk3.engine.stream import TokenStream
from openk3.errors import CapacityError, ConfigError, DeadlineError, EngineError, OpenK3Error, QueueFullError
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams, TokenOutput
from tests.engine.harness import STOP, build, ids, plain

MEMORY = 400_000_000
SECONDS = 30.0
"""A bound on every wait; reached only by a test that fails."""

Make = Callable[..., Engine]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make engines, closed at the end."""
    made: list[Engine] = []

    def engine(**settings: Any) -> Engine:
        made.append(Engine(build(), EngineConfig(memory_bytes=MEMORY, **settings), stop_token_ids=[STOP]))
        return made[-1]

    yield engine
    for each in made:
        each.close()
        assert not each._thread.is_alive()


class Gate:
    """Holds an engine's model calls until `open`; `wait` returns when the first has come."""

    def __init__(self, engine: Engine) -> None:
        self._come, self._open = threading.Event(), threading.Event()
        run = engine._core._runner.run

        def held(rows: Any) -> Any:
            self._come.set()
            assert self._open.wait(SECONDS)
            return run(rows)

        engine._core._runner.run = held  # type: ignore[method-assign]

    def wait(self) -> None:
        assert self._come.wait(SECONDS)

    def open(self) -> None:
        self._open.set()


def ask(seed: int = 0, count: int = 3, **more: Any) -> Request:
    return Request(prompt_ids=ids(20, seed), params=SamplingParams(temperature=0.0, max_tokens=count), **more)


def endless(seed: int = 0) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=2000, logit_bias={STOP: -1000.0})
    return Request(prompt_ids=ids(20, seed), params=params)


def expected(request: Request) -> list[TokenOutput]:
    return list(plain(build(), request).outputs)


def ending(stream: TokenStream) -> OpenK3Error | None:
    """Read a stream to its end and return its error."""
    try:
        for _ in stream:
            pass
    except OpenK3Error as error:
        return error
    return None


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.002)


def is_free(engine: Engine) -> bool:
    metrics, memory = engine.metrics, engine.memory
    held = metrics.running + metrics.waiting
    return held == 0 and (metrics.free_slots, metrics.free_blocks) == (memory.num_slots, memory.num_blocks)


def test_a_queue_that_is_full_refuses_and_takes_again_later(make: Make) -> None:
    engine = make(max_running=1, max_waiting=2)
    gate = Gate(engine)
    streams = [engine.submit(ask(0))]
    gate.wait()
    streams += [engine.submit(ask(seed)) for seed in (1, 2)]
    with pytest.raises(QueueFullError, match="2 requests are waiting, expected fewer than 2") as refused:
        engine.submit(ask(3))
    assert refused.value.hint == "try again later"
    gate.open()
    assert [list(stream) for stream in streams] == [expected(ask(seed)) for seed in range(3)]
    assert list(engine.submit(ask(3))) == expected(ask(3))


def test_a_request_that_makes_no_sense_is_refused_to_its_face(make: Make) -> None:
    engine = make()
    with pytest.raises(ConfigError, match="prompt token 0 is 999"):
        engine.submit(Request(prompt_ids=(999,)))
    assert list(engine.submit(ask())) == expected(ask())


class TestClosing:
    def test_everybody_gets_an_error_and_nobody_comes_after(self, make: Make) -> None:
        engine = make(max_running=1)
        gate = Gate(engine)
        streams = [engine.submit(endless(seed)) for seed in range(3)]
        gate.wait()
        with ThreadPoolExecutor(4) as pool:
            closing = [pool.submit(engine.close) for _ in range(4)]
            until(lambda: engine._closed)
            with pytest.raises(EngineError):  # while it still computes
                engine.submit(ask())
            gate.open()
            for each in closing:
                each.result(SECONDS)
        for stream in streams:
            assert isinstance(ending(stream), EngineError)
            assert stream.stats is not None
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            engine.submit(ask())
        metrics = engine.metrics
        assert (metrics.failed, metrics.requests, metrics.running, metrics.waiting) == (3, 3, 0, 0)
        assert metrics.free_slots == engine.memory.num_slots

    def test_an_engine_that_did_nothing_closes(self, make: Make) -> None:
        with make() as engine:
            pass
        assert not engine._thread.is_alive()

    def test_from_the_engine_itself(self, make: Make) -> None:
        engine = make()

        def replayed(generated: tuple[int, ...]) -> int:
            engine.close()
            return 0

        assert list(engine.submit(ask(replayed=replayed))) == expected(ask())
        engine._thread.join(SECONDS)
        assert not engine._thread.is_alive()

    def test_while_somebody_reads(self, make: Make) -> None:
        engine = make()
        stream = engine.submit(endless())
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(ending, stream)
            until(lambda: engine.metrics.tokens_written > 2)
            engine.close()
            assert isinstance(reading.result(SECONDS), EngineError)


class TestLeaving:
    def test_by_another_thread(self, make: Make) -> None:
        engine = make(prefix_cache=False, max_running=2)
        streams = [engine.submit(endless(seed)) for seed in range(4)]
        until(lambda: engine.metrics.running == 2)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda stream: stream.cancel(), streams))
        assert [ending(stream) for stream in streams] == [None] * 4
        until(lambda: is_free(engine))
        assert engine.metrics.cancelled == 4

    def test_by_breaking_off_the_iteration(self, make: Make) -> None:
        engine = make(prefix_cache=False)
        stream = engine.submit(endless())
        first = next(output for output in stream)
        gc.collect()  # only an interpreter that does not count references needs this
        until(lambda: is_free(engine))
        assert first.token_id == expected(ask(count=1))[0].token_id
        assert engine.metrics.cancelled == 1

    def test_by_an_error_of_the_reader(self, make: Make) -> None:
        engine = make(prefix_cache=False)

        def read() -> None:
            for _ in engine.submit(endless()):
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            read()
        until(lambda: is_free(engine))

    def test_by_cancelling_a_task(self, make: Make) -> None:
        engine = make(prefix_cache=False)

        async def read(got: asyncio.Event) -> None:
            async for _ in engine.submit(endless()):
                got.set()

        async def main() -> None:
            got = asyncio.Event()
            task = asyncio.create_task(read(got))
            await asyncio.wait_for(got.wait(), SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        until(lambda: is_free(engine))

    def test_by_the_clock(self, make: Make) -> None:
        engine = make(prefix_cache=False)
        late = engine.submit(ask(timeout_s=1e-6))
        assert isinstance(ending(late), DeadlineError)
        assert list(engine.submit(ask(timeout_s=1000.0))) == expected(ask())
        until(lambda: is_free(engine))
        assert (engine.metrics.failed, engine.metrics.finished) == (1, 1)


def test_many_threads_get_their_own_answers(make: Make) -> None:
    engine = make(max_running=8)
    wanted = [expected(ask(seed)) for seed in range(16)]
    start = threading.Barrier(16, timeout=SECONDS)

    def work(seed: int) -> list[list[TokenOutput]]:
        start.wait()
        return [list(engine.submit(ask(seed))) for _ in range(2)]

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16), timeout=SECONDS)) == [[answer, answer] for answer in wanted]
    assert len({tuple(answer) for answer in wanted}) > 10


def test_an_event_loop_reads_several_at_once(make: Make) -> None:
    engine = make()

    async def read(seed: int) -> list[TokenOutput]:
        return [output async for output in engine.submit(ask(seed))]

    async def late(seed: int) -> list[TokenOutput]:
        stream = engine.submit(ask(seed))
        while stream.stats is None:  # all tokens are there before anybody asks
            await asyncio.sleep(0.002)
        return [output async for output in stream]

    async def main() -> list[list[TokenOutput]]:
        return await asyncio.wait_for(asyncio.gather(read(0), read(1), late(2)), SECONDS)

    assert asyncio.run(main()) == [expected(ask(seed)) for seed in range(3)]


class TestFailing:
    def test_in_the_model_ends_what_it_computed_only(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        engine = make(max_running=1)
        gate = Gate(engine)
        model = engine._core._runner.model = copy.deepcopy(build())
        run, calls = model.run, []

        def fail_once(*args: Any) -> Any:
            calls.append(args)
            return run(*args) if len(calls) > 1 else 1 / 0

        model.run = fail_once  # type: ignore[method-assign]
        sick, sound = engine.submit(ask(0)), engine.submit(ask(1))
        gate.wait()
        gate.open()
        error = ending(sick)
        assert isinstance(error, EngineError)
        assert "division by zero" in str(error)
        assert list(sound) == expected(ask(1))
        assert list(engine.submit(ask(0))) == expected(ask(0))
        assert "a step of 1 requests failed" in caplog.text

    def test_where_nobody_foresaw_it_ends_all_and_refuses_more(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = make(max_running=1)
        gate = Gate(engine)
        streams = [engine.submit(endless(seed)) for seed in range(3)]
        gate.wait()
        monkeypatch.setattr(engine._core.scheduler, "plan", lambda: 1 / 0)
        gate.open()
        assert all(isinstance(ending(stream), EngineError) for stream in streams)
        with pytest.raises(EngineError):
            engine.submit(ask())
        engine.close()
        assert "the engine stopped" in caplog.text
        assert engine.metrics.failed == 3


def test_bookkeeping_that_fails_leaves_nobody_waiting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    bias = {STOP: -1000.0}
    streams = [
        engine.submit(
            Request(
                prompt_ids=ids(20, seed),
                params=SamplingParams(temperature=0.0, max_tokens=5000, logit_bias=bias),
            )
        )
        for seed in range(3)
    ]
    readers = [iter(stream) for stream in streams]
    for reader in readers:
        next(reader)

    def broken(sequence: object) -> None:
        raise RuntimeError("the books are in disorder")

    monkeypatch.setattr(engine._core.holdings, "release", broken)
    streams[0].cancel()
    engine._thread.join(SECONDS)
    assert all(stream.stats is not None for stream in streams), "a reader would wait for ever"
    for reader in readers[1:]:
        with pytest.raises(EngineError):
            list(reader)


def test_an_engine_that_could_not_be_made_leaves_its_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(memory_bytes=MEMORY, cache_folder=tmp_path)

    def refuse(*_: object) -> None:
        raise CapacityError("no memory", hint="close something")

    with monkeypatch.context() as patch:
        patch.setattr(core, "Arena", refuse)
        with pytest.raises(CapacityError):
            Engine(build(), config, fingerprint="x")
    engine = Engine(build(), config, fingerprint="x")
    try:
        assert engine._core._disk is not None and not caplog.records
    finally:
        engine.close()


def test_counts_add_up_after_the_streams_have_ended(make: Make) -> None:
    engine = make(max_running=3)
    gate = Gate(engine)
    streams = [engine.submit(ask(seed % 4, count=1 + seed % 3)) for seed in range(9)]
    streams += [engine.submit(ask(timeout_s=1e-6)), engine.submit(endless())]
    gate.wait()
    streams[-1].cancel()
    gate.open()
    for stream in streams:
        ending(stream)
    engine.close()
    metrics, stats = engine.metrics, [stream.stats for stream in streams]
    assert (metrics.finished, metrics.failed, metrics.cancelled) == (9, 1, 1)
    assert metrics.tokens_written == sum(s.completion_tokens for s in stats if s is not None)
    assert metrics.cache.hit_tokens == sum(s.cached_tokens for s in stats if s is not None)
    assert metrics.cache.lookups == 9  # two never ran
    assert metrics.free_slots == engine.memory.num_slots
    assert metrics.model_s <= metrics.step_s
