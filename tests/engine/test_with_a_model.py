"""The generation loop with a real, tiny model: what users can't tell apart gives the same tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openk3.checkpoint.loader import load_model
from openk3.engine.generator import Generator
from openk3.model.model import K3ForCausalLM
from openk3.protocol.sampling import SamplingParams

PROMPT = [72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> K3ForCausalLM:
    return load_model(tiny_model, dtype=torch.float32)


@pytest.mark.parametrize("seed", [None, 3], ids=["greedy", "sampled"])
def test_chunks_of_the_prompt_do_not_change_the_answer(model: K3ForCausalLM, seed: int | None) -> None:
    params = SamplingParams(temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=12)
    runs = [list(Generator(model, prefill_chunk=size).stream(PROMPT, params)) for size in (1, 5, 100)]
    assert [[o.token_id for o in run] for run in runs[1:]] == [[o.token_id for o in runs[0]]] * 2
    for run in runs[1:]:
        assert [o.logprob for o in run] == pytest.approx([o.logprob for o in runs[0]], abs=1e-4)


def test_greedy_tokens_are_those_of_one_pass_over_everything(model: K3ForCausalLM) -> None:
    outputs = list(Generator(model).stream(PROMPT, SamplingParams(temperature=0.0, max_tokens=12)))
    ids = [*PROMPT, *(output.token_id for output in outputs)]
    with torch.inference_mode():
        logprobs = model(torch.tensor(ids), [len(ids)]).log_softmax(-1)[len(PROMPT) - 1 : -1]
    assert logprobs.argmax(-1).tolist() == ids[len(PROMPT) :]
    assert logprobs.max(-1).values.tolist() == pytest.approx([output.logprob for output in outputs], abs=1e-4)
