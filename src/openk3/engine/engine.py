"""An `EngineCore` with its thread: submit from anywhere, iterate over tokens, close.

Unusual: nothing but the thread touches the core; submitting leaves a checked sequence in an inbox, cancelling sets a
flag. If a step fails in a way that nobody foresaw, every request ends with an error and new ones are refused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection
from types import TracebackType

import torch
from torch import nn

from openk3.engine.cache.disk import DiskTier, open_disk_tier
from openk3.engine.config import EngineConfig
from openk3.engine.core import EngineCore
from openk3.engine.grammar import GrammarCompiler
from openk3.engine.memory import MemoryPlan, plan_memory
from openk3.engine.metrics import EngineMetrics
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.choice import make_drafter
from openk3.engine.stream import TokenStream, closed_engine
from openk3.errors import ConfigError, QueueFullError
from openk3.model.model import K3ForCausalLM
from openk3.ops import row_independent
from openk3.protocol.request import Request

_log = logging.getLogger(__name__)


class Engine:
    """Runs many requests at once on one model; a context manager.

    ``fingerprint`` names the weights, for a cache on disk. ``grammars`` is needed for requests with a grammar.

    Raises:
        CapacityError: weights and caches do not fit in the memory; the message has the table.
        ConfigError: settings that this model or machine cannot honour.
    """

    def __init__(
        self,
        model: K3ForCausalLM,
        config: EngineConfig | None = None,
        *,
        stop_token_ids: Collection[int] = (),
        grammars: GrammarCompiler | None = None,
        draft_model: K3ForCausalLM | None = None,
        fingerprint: str = "",
    ) -> None:
        self.config = config or EngineConfig()
        self.stop_token_ids = frozenset(stop_token_ids)
        _check_rows(model, self.config)
        drafter = make_drafter(model, self.config, draft_model)
        self.memory: MemoryPlan = plan_memory(
            model.config,
            self.config,
            dtype=model.dtype,
            weight_bytes=_weight_bytes(model),
            draft_weight_bytes=0 if draft_model is None else _weight_bytes(draft_model),
            draft_bytes_per_token=0 if drafter is None else drafter.bytes_per_token,
            draft_bytes_per_sequence=0 if drafter is None else drafter.bytes_per_sequence,
            draft_model=None if draft_model is None else (draft_model.config, draft_model.dtype),
            budget=self.config.memory_bytes,
        )
        disk = _open_disk(model, self.config, fingerprint)
        try:
            self._core = EngineCore(
                model,
                self.config,
                self.memory,
                stop_token_ids=stop_token_ids,
                grammars=grammars,
                drafter=drafter,
                disk=disk,
            )
        except BaseException:
            if disk is not None:
                disk.close()
            raise
        self._changed = threading.Condition()
        self._inbox: deque[EngineSequence] = deque()
        self._closed = False
        self._metrics = self._core.metrics
        self._thread = threading.Thread(target=self._run, name="openk3-engine", daemon=True)
        self._thread.start()

    @property
    def metrics(self) -> EngineMetrics:
        """Counts as of the last finished step; its streams may have ended a moment before."""
        return self._metrics

    @property
    def is_running(self) -> bool:
        """Whether requests are answered: until it is closed, or has failed."""
        return self._thread.is_alive() and not self._closed

    @property
    def max_tokens(self) -> int:
        """Most tokens of one request, prompt and answer."""
        return self._core.max_tokens

    def submit(self, request: Request) -> TokenStream:
        """Hand in a request and return its tokens as they come; by any thread.

        Raises:
            ConfigError: an id outside the vocabulary, or a grammar that is none.
            CapacityError: the prompt leaves no room for an answer.
            QueueFullError: too many are waiting.
            EngineError: the engine was closed.
        """
        stream = TokenStream(self._wake)
        sequence = self._core.prepare(request, stream)
        with self._changed:
            if self._closed:
                raise closed_engine()
            waiting = len(self._inbox) + self._core.scheduler.num_waiting
            if waiting >= self.config.max_waiting:
                raise QueueFullError(
                    f"{waiting} requests are waiting, expected fewer than {self.config.max_waiting}",
                    hint="try again later",
                )
            self._inbox.append(sequence)
            self._changed.notify()
        return stream

    def close(self) -> None:
        """Stop; requests that are not finished end with EngineError. May be called twice, and by any thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        try:
            while self._collect():
                self._core.step()
                self._metrics = self._core.metrics
        except BaseException:
            _log.exception("the engine stopped")
        finally:
            self._end()

    def _collect(self) -> bool:
        """Take in what was submitted, waiting while there is nothing to do; False when the engine is closed."""
        with self._changed:
            while not (self._closed or self._inbox or self._core.has_work):
                self._changed.wait()
            while self._inbox:
                self._core.add(self._inbox.popleft())
            return not self._closed

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            while self._inbox:
                self._core.add(self._inbox.popleft())
        self._core.close()
        self._metrics = self._core.metrics


def _weight_bytes(model: nn.Module) -> int:
    """Return the bytes of all parameters and buffers, shared ones once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())


def _check_rows(model: K3ForCausalLM, config: EngineConfig) -> None:
    """Check on this machine what bit-equality rests on: a product's row does not depend on the number of rows."""
    shapes = {(p.shape[0], p.shape[1]) for p in model.parameters() if p.ndim == 2 and p.shape[0] <= _MOST_ROWS_CHECKED}
    if row_independent.holds(sorted(shapes), model.dtype):
        return
    what = f"on this machine, {model.dtype} matrix products of a row depend on the number of rows"
    if config.deterministic:
        raise ConfigError(what, hint="choose another dtype or number of threads, or do without --deterministic")
    _log.warning("%s: results may differ in the last bits with the requests that are computed together", what)


# The head's weight may have 163,840 rows of 7,168: more of the same code, and as slow to check as a step.
_MOST_ROWS_CHECKED = 8192


def _open_disk(model: K3ForCausalLM, config: EngineConfig, fingerprint: str) -> DiskTier | None:
    if config.cache_folder is None:
        return None
    if not fingerprint:
        raise ConfigError("a cache on disk needs a fingerprint of the weights, which tells models' files apart")
    parts = [
        fingerprint,
        model.dtype,
        model.options,
        model.lm_head.weight.device.type,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        config.identity_unit,
    ]
    return open_disk_tier(config.cache_folder, " ".join(str(part) for part in parts), config.cache_folder_bytes)
