"""A model that says what a test wants, in the chat format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from openk3.cli.session import LoadedModel
from openk3.model.config import K3Config
from openk3.model.state import SequenceState
from openk3.tokenizer.bpe import Tokenizer


class ScriptedModel:
    """Generates one given list of ids after another, one per sequence; remembers the prompts."""

    def __init__(self, config: K3Config, scripts: Sequence[Sequence[int]]) -> None:
        self.config = config
        self._scripts = [list(script) for script in scripts]
        self.prompts: list[list[int]] = []

    def new_state(self) -> SequenceState:
        self.prompts.append([])
        return cast(SequenceState, self._scripts.pop(0))

    def __call__(
        self, input_ids: Tensor, lengths: Sequence[int], states: Sequence[SequenceState], *, last_only: bool
    ) -> Tensor:
        if input_ids.numel() > 1:
            self.prompts[-1] += input_ids.tolist()
        logits = torch.full((1, self.config.vocab_size), -10.0)
        logits[0, cast(list[int], states[0]).pop(0)] = 30.0
        return logits


@dataclass(frozen=True)
class Script:
    """A model that says what a test wants, and the words to want it in."""

    model: ScriptedModel
    loaded: LoadedModel

    @property
    def prompts(self) -> list[str]:
        """What the model was asked, as text with the spellings of the special tokens."""
        return [self.loaded.tokenizer.decode(prompt) for prompt in self.model.prompts]


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which special tokens are spelled out."""
    special = tokenizer.special
    ids: list[int] = []
    for piece in re.split(r"(<\|\w+\|>|\[EOS\])", text):
        ids += [special.id_of(piece)] if piece.startswith("<|") or piece == "[EOS]" else tokenizer.encode(piece)
    return ids


def answer(thought: str, text: str) -> str:
    """A whole answer in the chat format, as the model goes on from an open think channel."""
    return (
        f"{thought}<|close|>think<|sep|><|open|>response<|sep|>{text}<|close|>response<|sep|>"
        "<|close|>message<|sep|><|end_of_msg|>"
    )
