"""Drafters for nano, which comes with none: an MTP layer and a small model, fitted in a minute to nano's own answers.

Unusual: nano itself is left as it is; the fits are as good as a minute makes them, far from what real drafters reach.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.engine_runs import running, timed
from openk3.chat.render import render
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.resolve import resolve_model
from openk3.engine.config import EngineConfig
from openk3.model.config import KDAConfig
from openk3.model.model import K3ForCausalLM
from openk3.model.mtp import MTPLayer
from openk3.protocol.messages import Message
from openk3.protocol.request import Request
from openk3.protocol.sampling import SamplingParams
from openk3.tokenizer.bpe import Tokenizer
from openk3.train.init import init_for_training
from openk3.train.loss import next_token_loss

QUESTIONS = (
    "What is {a} plus {b}?",
    "What is {a} times {b}?",
    "Which is larger, {a} or {b}?",
    "What does the word {word} mean?",
    "Tell me a story about a {animal}.",
    "Name {few} animals.",
    "What is the capital of {country}?",
    "Hello!",
    "Who are you?",
)
WORDS = "river house table winter bread garden stone window music horse paper summer church market".split()
ANIMALS = "bear fox dog cat horse wolf mouse bird".split()
COUNTRIES = "France Spain Italy Japan Egypt Peru".split()
ANSWER, BATCH, LEARNING_RATE = 96, 12, 2e-3


def questions(count: int, seed: int) -> list[tuple[int, ...]]:
    """Return rendered questions of one seed, as token ids."""
    rng, tokenizer = random.Random(seed), Tokenizer.load(resolve_model("nano"))
    found = []
    for _ in range(count):
        text = rng.choice(QUESTIONS).format(
            a=rng.randrange(2, 50),
            b=rng.randrange(2, 50),
            few=rng.choice(("two", "three", "four")),
            word=rng.choice(WORDS),
            animal=rng.choice(ANIMALS),
            country=rng.choice(COUNTRIES),
        )
        found.append(tuple(render([Message(role="user", content=text)], tokenizer=tokenizer, effort="low").ids))
    return found


def answers(model: K3ForCausalLM, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return prompts with the answers that ``model`` samples."""
    params = [SamplingParams(temperature=0.7, seed=i, max_tokens=ANSWER) for i in range(len(prompts))]
    asked = [Request(prompt_ids=prompt, params=one) for prompt, one in zip(prompts, params, strict=True)]
    with running(model, EngineConfig(memory_bytes=1 << 30)) as engine:
        return [[*prompt, *answer] for prompt, answer in zip(prompts, timed(engine, asked, 32).answers, strict=True)]


def with_mtp_layer() -> K3ForCausalLM:
    """Return nano in float32 with a fresh MTP layer, whose embedding and head are nano's."""
    nano = load_model(resolve_model("nano"), dtype=torch.float32, experts="plain")
    model = K3ForCausalLM(replace(nano.config, num_nextn_predict_layers=1), dtype=torch.float32)
    init_for_training(model, seed=0)
    model.load_state_dict(nano.state_dict(), strict=False)
    return model


def small_model(nano: K3ForCausalLM, seed: int = 0) -> K3ForCausalLM:
    """Return a fresh model of one KDA layer and half nano's width, float32."""
    d = nano.config.hidden_size // 2
    config = replace(
        nano.config,
        hidden_size=d,
        intermediate_size=2 * d,
        layer_kinds=("kda",),
        kda=KDAConfig(num_heads=d // 32, head_dim=32),
        num_nextn_predict_layers=0,
    )
    model = K3ForCausalLM(config, dtype=torch.float32)
    init_for_training(model, seed)
    return model


def fit_mtp(model: K3ForCausalLM, texts: Sequence[Sequence[int]], seconds: float) -> None:
    """Fit the MTP layer alone: from token t's mix and token t + 1 to token t + 2."""
    layer = model.model.layers[-1]
    assert isinstance(layer, MTPLayer)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in layer.parameters():
        parameter.requires_grad_(True)

    def loss(batch: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(text) - 2 for text in batch]
        with torch.no_grad():
            mix = model.mixed(_packed(text[:-2] for text in batch), lengths)
        new, _ = model.draft(mix, _packed(text[1:-1] for text in batch), lengths)
        total, count = next_token_loss(layer.shared_head.norm(new), model.lm_head.weight, _packed(t[2:] for t in batch))
        return total / count

    _fit(layer, texts, loss, seconds)


def fit_model(model: K3ForCausalLM, texts: Sequence[Sequence[int]], seconds: float) -> None:
    """Fit a whole small model."""

    def loss(batch: Sequence[Sequence[int]]) -> Tensor:
        hidden = model.hidden(_packed(text[:-1] for text in batch), [len(text) - 1 for text in batch])
        total, count = next_token_loss(hidden, model.lm_head.weight, _packed(text[1:] for text in batch))
        return total / count

    _fit(model, texts, loss, seconds)


def _fit(
    module: nn.Module,
    texts: Sequence[Sequence[int]],
    loss: Callable[[Sequence[Sequence[int]]], Tensor],
    seconds: float,
) -> None:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer, rng = torch.optim.AdamW(parameters, lr=LEARNING_RATE), random.Random(0)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, 2 * left / seconds)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss(rng.choices(texts, k=BATCH)))
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def _packed(texts: Iterable[Sequence[int]]) -> Tensor:
    return torch.tensor([token for text in texts for token in text], dtype=torch.int64)
