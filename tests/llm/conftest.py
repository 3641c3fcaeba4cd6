"""The bundled model, loaded once for all tests of the in-process API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from openk3 import LLM
from openk3.engine.config import EngineConfig
from openk3.engine.metrics import EngineMetrics

# Small enough that several fit beside each other in test processes.
CONFIG = EngineConfig(memory_bytes=1 << 30)


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM("nano", dtype="float32", engine=CONFIG) as loaded:
        yield loaded


@pytest.fixture
def idle_metrics(llm: LLM) -> Callable[[], EngineMetrics]:
    """The shared model's metrics once nothing runs: they are those of the last step, which may end after an answer."""

    def wait() -> EngineMetrics:
        deadline = time.monotonic() + 30
        while (metrics := llm.metrics).running or metrics.waiting:
            assert time.monotonic() < deadline, metrics
            time.sleep(0.01)
        return metrics

    return wait


@pytest.fixture
def own_llm() -> Iterator[LLM]:
    """One that a test may close."""
    with LLM("nano", dtype="float32", engine=CONFIG) as loaded:
        yield loaded
