"""The bundled model, loaded once for all tests of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from openk3 import LLM
from openk3.engine.config import EngineConfig
from openk3.engine.metrics import EngineMetrics
from tests.server.harness import wait_until

CONFIG = EngineConfig(memory_bytes=1 << 30)


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    with LLM("nano", dtype="float32", engine=CONFIG) as loaded:
        yield loaded


@pytest.fixture
def narrow_llm() -> Iterator[LLM]:
    """One that computes one request at a time and lets one wait; a test may close it."""
    config = EngineConfig(memory_bytes=1 << 30, max_running=1, max_waiting=1)
    with LLM("nano", dtype="float32", engine=config) as loaded:
        yield loaded


@pytest.fixture
def idle_metrics() -> Callable[[LLM], EngineMetrics]:
    """An engine's metrics once it has nothing to do."""

    def wait(llm: LLM) -> EngineMetrics:
        wait_until(lambda: not (llm.metrics.running or llm.metrics.waiting), lambda: llm.metrics)
        return llm.metrics

    return wait
