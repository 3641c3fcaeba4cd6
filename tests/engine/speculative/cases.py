"""What the drafters' tests share: sequences without an engine, models that say few different words, whole runs."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor

from openk3.engine.cache.identity import HashChain
from openk3.engine.config import EngineConfig
from openk3.engine.metrics import EngineMetrics
from openk3.engine.sampler import RowSampler
from openk3.engine.sequence import EngineSequence
from openk3.engine.speculative.depth import AdaptiveDepth
from openk3.engine.speculative.drafter import Drafter
from openk3.engine.stream import TokenStream
from openk3.model.model import K3ForCausalLM
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from tests.engine.harness import Harness, PlainAnswer, build, ids, plain

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
SAMPLED = SamplingParams(temperature=0.9, top_k=3, seed=5, max_tokens=16, top_logprobs=1)


class ScriptedSampler:
    """Guesses what it is told; keeps the logits that it was shown, and calls ``on_guess``."""

    def __init__(self, script: Sequence[int] = (), on_guess: Callable[[], None] = lambda: None) -> None:
        self.script, self.on_guess = list(script), on_guess
        self.rows: list[Tensor] = []

    def guess(self, logits: Tensor, offset: int) -> int:
        """Return the scripted token of this place, the best one beyond the script."""
        assert offset == len(self.rows)
        self.rows.append(logits)
        self.on_guess()
        return self.script[offset] if offset < len(self.script) else int(logits.argmax())


def writing(tokens: Sequence[int], sampler: ScriptedSampler | None = None) -> EngineSequence:
    """Make a sequence whose last token alone was not computed, outside any engine."""
    request = Request(prompt_ids=tuple(tokens), params=GREEDY)
    real = RowSampler(request.params, request.prompt_ids, (), 256)
    sequence = EngineSequence(
        request=request,
        stream=TokenStream(),
        sampler=real if sampler is None else cast(RowSampler, sampler),
        chain=HashChain(16),
        stop_token_ids=frozenset(),
        limit=10_000,
        depth=AdaptiveDepth(4),
    )
    sequence.position = len(tokens) - 1
    return sequence


@cache
def few_words(name: str, seed: int = 0) -> K3ForCausalLM:
    """Make a model whose best token is one of few, so that even random layers often guess it."""
    model = copy.deepcopy(build(name, seed=seed))
    kept = torch.zeros(256, 1)
    kept[[3, 20, 200]] = 1
    with torch.no_grad():
        model.lm_head.weight.mul_(kept)
    return model


def spoil(module: torch.nn.Module, value: float) -> None:
    """Fill a module's weights with ``value``."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.fill_(value)


@cache
def plain_answer(model: K3ForCausalLM, request: Request) -> PlainAnswer:
    """Return the plain loop's answer, computed once for a model object."""
    return plain(model, request, stop=())


def check_answers(model: K3ForCausalLM, drafter: Drafter, *, preempts: bool = False) -> EngineMetrics:
    """Run greedy and sampled requests of different lengths together; assert that each gets the plain answer."""
    prompts = [ids(40, 1), ids(3, 2), ids(150, 3), ids(40, 1) + ids(9, 4)]
    both = (GREEDY, SAMPLED, GREEDY, SAMPLED)
    requests = [Request(prompt_ids=prompt, params=params) for prompt, params in zip(prompts, both, strict=True)]
    config = EngineConfig(max_running=3, token_budget=64, page_size=16, speculate_depth=drafter.max_depth)
    harness = Harness(model, config, slots=3, drafter=drafter, stop=())
    streams = [harness.submit(request) for request in requests]
    rng, steps = random.Random(6), 0
    while harness.core.has_work:
        steps += 1
        assert steps < 1000
        if preempts and steps % 2 == 0 and harness.core.scheduler.running:
            harness.core.scheduler.preempt(rng.choice(harness.core.scheduler.running))
        harness.step()
    for request, stream in zip(requests, streams, strict=True):
        assert tuple(stream) == plain_answer(model, request).outputs
    metrics = harness.core.metrics
    assert (metrics.preemptions > 2) == preempts
    harness.check_nothing_is_held()
    return metrics


def tensor_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of all storages that keep ``tensors``, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
