"""Numbers for Prometheus, under vLLM's names where they mean the same, so that its dashboards show them.

Unusual: what the engine counts is read when somebody asks; only times of requests are kept here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from openk3.llm.llm import LLM
from openk3.protocol.request import RequestStats
from openk3.protocol.sampling import Usage

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280)
_TOKENS = (*(base * 10**power for power in range(6) for base in (1, 2, 5)), 1_000_000)

# Name, what it says, and where it stands in `EngineMetrics`.
_GAUGES = (
    ("vllm:num_requests_running", "Requests that are being computed.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait for their turn.", "waiting"),
    ("openk3:free_slots", "Places for states of more requests.", "free_slots"),
    (
        "openk3:free_blocks",
        "Blocks that hold nothing of requests, past ones neither.",
        "free_blocks",
    ),
    ("openk3:checkpoints", "States that later requests can begin from.", "cache.checkpoints"),
    ("openk3:checkpoint_bytes", "Memory of these states.", "cache.checkpoint_bytes"),
    ("openk3:disk_bytes", "Files of the cache folder.", "cache.disk.bytes"),
)
_COUNTERS = (
    ("vllm:generation_tokens", "Tokens that the model chose.", "tokens_written"),
    ("vllm:num_preemptions", "Requests that had to give up their place for a while.", "preemptions"),
    ("vllm:prefix_cache_queries", "Tokens of prompts that were looked up in the cache.", "cache.lookup_tokens"),
    ("vllm:prefix_cache_hits", "Tokens of prompts that were found there.", "cache.hit_tokens"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens that were guessed ahead.", "drafted"),
    ("vllm:spec_decode_num_accepted_tokens", "Tokens that were guessed right.", "accepted"),
    ("openk3:tokens_read", "Tokens of prompts that were computed, after a preemption again.", "tokens_read"),
    ("openk3:steps", "Steps of the engine.", "steps"),
    ("openk3:step_seconds", "Time of all steps.", "step_s"),
    ("openk3:model_seconds", "Time of the model's part of all steps.", "model_s"),
    ("openk3:draft_seconds", "Time of the drafters' part of all steps.", "draft_s"),
    (
        "openk3:cache_granularity_tokens",
        "Tokens found, but above the last state.",
        "cache.granularity_tokens",
    ),
    ("openk3:cache_evictions", "States that made room for others.", "cache.evictions"),
    ("openk3:cache_refused", "States that found no room.", "cache.refused"),
    ("openk3:disk_hits", "States that came from the cache folder.", "cache.disk.hits"),
    ("openk3:disk_damaged", "Files of the cache folder that were broken and removed.", "cache.disk.damaged"),
)
_REASONS = {"stop": "stop", "tool_calls": "stop", "length": "length"}


class _EngineCollector(Collector):
    """Reads what the engine counts."""

    def __init__(self, llm: LLM, model: str) -> None:
        self._llm, self._model = llm, model

    def collect(self) -> Iterator[Metric]:
        """Give the engine's numbers as of its last step."""
        metrics = self._llm.metrics
        for name, text, where in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._model], _read(metrics, where))
            yield gauge
        for name, text, where in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._model], _read(metrics, where))
            yield counter
        yield self._ended()

    def _ended(self) -> Metric:
        metrics = self._llm.metrics
        ended = CounterMetricFamily("openk3:engine_requests", "Requests that have ended.", labels=["model_name", "how"])
        for how in ("finished", "failed", "cancelled"):
            ended.add_metric([self._model, how], getattr(metrics, how))
        return ended


def _read(metrics: object, where: str) -> float:
    for name in where.split("."):
        metrics = getattr(metrics, name)
    return float(metrics)  # type: ignore[arg-type]


class ServerMetrics:
    """Counts what requests cost; ``model`` is what the numbers are labelled with."""

    def __init__(self, llm: LLM, model: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # one more series for each, that says when it began
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(llm, model))
        self._model = model
        self._prompt = self._counter("vllm:prompt_tokens", "Tokens of prompts, cached ones too.")
        self._success = self._counter("vllm:request_success", "Answers, by why they ended.", "finished_reason")
        self._answers = self._counter("openk3:http_responses", "Responses, by path and status.", "path", "status")
        self._first = self._histogram("vllm:time_to_first_token_seconds", "From the request to its first token.")
        self._between = self._histogram("vllm:inter_token_latency_seconds", "From one token to the next.")
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "From the request to its end.")
        self._queue = self._histogram("vllm:request_queue_time_seconds", "How long it waited for its turn.")
        self._prompts = self._histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._lengths = self._histogram("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)

    def first_token(self, prompt_tokens: int, seconds: float) -> None:
        """Count an answer that begins."""
        self._prompt.labels(self._model).inc(prompt_tokens)
        self._first.labels(self._model).observe(seconds)

    def between(self, count: int, seconds: float) -> None:
        """Count the time from one piece to the next, of ``count`` tokens."""
        histogram = self._between.labels(self._model)
        for _ in range(count):
            histogram.observe(seconds / count)

    def ended(self, reason: str | None, usage: Usage, seconds: float, stats: RequestStats | None) -> None:
        """Count an answer that has ended; ``reason`` is None if it was left."""
        self._success.labels(self._model, _REASONS.get(reason or "", "abort")).inc()
        self._whole.labels(self._model).observe(seconds)
        self._prompts.labels(self._model).observe(usage.prompt_tokens)
        self._lengths.labels(self._model).observe(usage.completion_tokens)
        if stats is not None:
            self._queue.labels(self._model).observe(stats.queue_s)

    def response(self, path: str, status: int) -> None:
        """Count a response at one of the server's own paths."""
        self._answers.labels(self._model, path, str(status)).inc()

    def text(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ["model_name", *labels], registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        return Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets)
