"""What the tests of the command share: terminals to run it in, and models that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from openk3.cli.session import LoadedModel
from openk3.engine.generator import Generator
from openk3.model.generation_config import GenerationConfig
from openk3.model.published import load_config
from openk3.protocol.sampling import SamplingParams
from openk3.tokenizer.bpe import Tokenizer
from tests.cli.pseudo_terminal import Terminal
from tests.cli.scripted import Script, ScriptedModel, spell


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start programs in terminals: ``terminal([arguments of Python], NAME=value)``."""
    started: list[Terminal] = []

    def start(arguments: Sequence[str], **environment: str) -> Terminal:
        started.append(Terminal(arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def scripted(tiny_model: Path) -> Callable[..., Script]:
    """Make a model that gives these answers: ``scripted("thought<|close|>think<|sep|>…", …)``."""

    def make(*answers: str) -> Script:
        tokenizer = Tokenizer.load(tiny_model)
        model = ScriptedModel(load_config(tiny_model), [spell(tokenizer, answer) for answer in answers])
        generator = Generator(model, stop_token_ids=[tokenizer.special.end_of_msg])
        generation = GenerationConfig(sampling=SamplingParams(temperature=0.0))
        return Script(model, LoadedModel(generator, tokenizer, generation, "scripted"))

    return make
