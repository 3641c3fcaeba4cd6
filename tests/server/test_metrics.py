"""Numbers for Prometheus: named as vLLM's where they mean the same, and equal to what was answered."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from openk3 import LLM
from openk3.server.metrics import _COUNTERS, _GAUGES
from tests.server.harness import small_app, wait_until

VLLM = """
vllm:num_requests_running vllm:num_requests_waiting vllm:generation_tokens_total vllm:prompt_tokens_total
vllm:num_preemptions_total vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:request_success_total
vllm:time_to_first_token_seconds_bucket vllm:inter_token_latency_seconds_bucket vllm:request_queue_time_seconds_bucket
vllm:e2e_request_latency_seconds_bucket vllm:request_prompt_tokens_bucket vllm:request_generation_tokens_bucket
vllm:spec_decode_num_draft_tokens_total vllm:spec_decode_num_accepted_tokens_total
""".split()

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _scrape(client: TestClient) -> Samples:
    reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def _scrape_after(client: TestClient, before: Samples, answers: int) -> Samples:
    """Scrape once the engine has counted so many more; it does so after the last token was sent."""

    def finished(samples: Samples) -> float:
        return _value(samples, "openk3:engine_requests_total", how="finished")

    wait_until(lambda: finished(_scrape(client)) == finished(before) + answers)
    return _scrape(client)


def _value(samples: Samples, name: str, **labels: Any) -> float:
    return sum(
        value for (key, given), value in samples.items() if key == name and labels.items() <= dict(given).items()
    )


def test_dashboards_of_vllm_find_their_names(llm: LLM) -> None:
    with TestClient(small_app(llm)) as client:
        client.post("/v1/tell", json={"prompt": "x", "n": 3})
        names = {name for name, _ in _scrape(client)}
    assert set(VLLM) <= names
    assert all(name.startswith(("vllm:", "openk3:")) for name in names)


def test_numbers_are_those_of_the_answers(llm: LLM) -> None:
    with TestClient(small_app(llm, names=("some-name",))) as client:
        before = _scrape(client)
        usages = [client.post("/v1/tell", json={"prompt": "One, two", "n": n}).json()["usage"] for n in (3, 4)]
        client.post("/v1/tell", json={"prompt": "One, two", "n": 5, "stream": True})
        client.post("/v1/tell", json={})
        client.get("/random/path/1")
        client.get("/random/path/2")
        after = _scrape_after(client, before, answers=3)

    def more(name: str, **labels: str) -> float:
        return _value(after, name, model_name="some-name", **labels) - _value(before, name, **labels)

    assert more("vllm:generation_tokens_total") == 12
    assert more("vllm:prompt_tokens_total") == 3 * usages[0]["prompt_tokens"]
    assert more("vllm:request_success_total", finished_reason="length") == 3
    assert more("vllm:time_to_first_token_seconds_count") == more("vllm:e2e_request_latency_seconds_count") == 3
    assert more("vllm:request_generation_tokens_sum") == 12
    assert 1 <= more("vllm:inter_token_latency_seconds_count") <= 12
    assert more("openk3:http_responses_total", path="/v1/tell", status="400") == 1
    assert more("openk3:http_responses_total", path="other", status="404") == 2
    assert more("openk3:engine_requests_total", how="finished") == 3


def test_cached_prefixes_are_counted(llm: LLM) -> None:
    body = {"prompt": "A counted prefix, " * 40, "n": 1}
    with TestClient(small_app(llm)) as client:
        before = _scrape(client)
        cached = [client.post("/v1/tell", json=body).json()["usage"]["cached_tokens"] for _ in range(3)]
        after = _scrape_after(client, before, answers=3)
    hits = _value(after, "vllm:prefix_cache_hits_total") - _value(before, "vllm:prefix_cache_hits_total")
    assert hits == sum(cached) > 0


@pytest.mark.parametrize(("name", "text", "where"), [*_GAUGES, *_COUNTERS])
def test_every_number_is_one_that_the_engine_has(llm: LLM, name: str, text: str, where: str) -> None:
    value: Any = llm.metrics
    for part in where.split("."):
        value = getattr(value, part)
    assert isinstance(value, int | float)
    assert text.endswith(".") and not name.endswith("_total")
