"""What the tests of the command share: terminals to run it in, and models that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from openk3.model.generation_config import GenerationConfig
from openk3.protocol.sampling import SamplingParams
from openk3.tokenizer.bpe import Tokenizer
from tests.cli.pseudo_terminal import Terminal
from tests.cli.scripted import Script, ScriptedEngine, spell


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
        engine = ScriptedEngine([spell(tokenizer, answer) for answer in answers], tokenizer.special.end_of_msg)
        return Script(engine, tokenizer, GenerationConfig(sampling=SamplingParams(temperature=0.0)))

    return make
