"""What users can't tell apart by asking is equal bit for bit: tokens, log-probabilities and alternatives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openk3.engine.cache.identity import CHUNK
from openk3.engine.config import EngineConfig
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from tests.engine.harness import Harness, build, ids, plain
from tests.engine.workload import Workload

GREEDY = SamplingParams(temperature=0.0, max_tokens=3, top_logprobs=2)


@pytest.mark.parametrize(
    ("unit", "page", "dtype"), [(16, 16, torch.float32), (16, 7, torch.bfloat16), (32, 64, torch.bfloat16)]
)
def test_warm_equals_cold_at_every_length_and_from_shorter_prompts(unit: int, page: int, dtype: torch.dtype) -> None:
    model, text = build("mini4", dtype), ids(3 * 32 + 2, seed=1)
    lengths = [n for n in range(1, 3 * unit + 3) if unit == CHUNK or n % CHUNK in (0, 1, 2, 9, CHUNK - 1)]
    requests = {n: Request(prompt_ids=text[:n], params=GREEDY) for n in lengths}
    cold = {n: plain(model, request).outputs for n, request in requests.items()}
    harness = Harness(model, EngineConfig(identity_unit=unit, page_size=page), blocks=3000)
    for n in lengths:
        assert harness.answer(requests[n]) == cold[n]  # resumes from what shorter ones left
        assert harness.answer(requests[n]) == cold[n]  # resumes from itself
    assert harness.core.metrics.cache.hit_tokens >= sum(max(0, n - 1) // unit * unit for n in lengths)


@pytest.mark.parametrize("budget", [16, 17, 50])
def test_the_portions_of_a_prompt_do_not_change_the_answer(budget: int) -> None:
    model = build("tail9")
    request = Request(prompt_ids=ids(150, seed=2), params=GREEDY)
    harness = Harness(model, EngineConfig(token_budget=budget))
    assert harness.answer(request) == plain(model, request).outputs


@pytest.mark.parametrize("seed", range(30))
def test_any_company_and_any_fate_gives_the_plain_answer(seed: int) -> None:
    Workload(seed).run(8)


@pytest.mark.parametrize("seed", range(4))
def test_after_a_restart_the_files_give_the_plain_answer(seed: int, tmp_path: Path) -> None:
    covered = Workload(seed, folder=tmp_path).run(8) + Workload(seed, folder=tmp_path).run(8)
    assert covered["hits from disk"] > 0 or covered["tokens"] < 100


def test_the_workloads_of_the_default_run_cover_what_they_are_for() -> None:
    total = sum((Workload(seed).run(6) for seed in range(110, 115)), start=Workload(0).covered)
    for what in ("preemptions", "accepted drafts", "rejected drafts", "resumed tokens", "evictions", "cancelled"):
        assert total[what] > 0, what
