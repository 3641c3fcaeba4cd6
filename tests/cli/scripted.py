"""A model that says what a test wants, in the chat format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from openk3.engine.engine import Engine
from openk3.engine.stream import TokenStream
from openk3.llm.llm import LLM
from openk3.llm.loading import LoadedModel
from openk3.model.generation_config import GenerationConfig
from openk3.protocol.request import Request, RequestStats
from openk3.protocol.sampling import FinishReason, TokenOutput
from openk3.tokenizer.bpe import Tokenizer


class ScriptedEngine:
    """Generates one given list of ids after another, one per request, all at once; remembers the requests."""

    def __init__(self, scripts: Sequence[Sequence[int]], stop_token_id: int) -> None:
        self.stop_token_ids = frozenset({stop_token_id})
        self._scripts = list(scripts)
        self.requests: list[Request] = []

    def submit(self, request: Request) -> TokenStream:
        self.requests.append(request)
        stops = self.stop_token_ids.union(request.params.stop_token_ids)
        stream, count = TokenStream(), 0
        for count, token in enumerate(self._scripts.pop(0), 1):
            full = count == request.params.max_tokens
            reason: FinishReason | None = "stop" if token in stops else "length" if full else None
            stream.put(TokenOutput(token, 0.0, reason))
            if reason is not None:
                break
        stream.cached_tokens = 16
        stream.close(
            RequestStats(
                prompt_tokens=len(request.prompt_ids),
                completion_tokens=count,
                matched_tokens=16,
                cached_tokens=16,
                queue_s=0.0,
                first_token_s=1.0,
                total_s=1.0 + 0.5 * (count - 1),
            )
        )
        return stream

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Script:
    """A model that says what a test wants, and what it was asked."""

    engine: ScriptedEngine
    tokenizer: Tokenizer
    generation: GenerationConfig

    @cached_property
    def llm(self) -> LLM:
        return LLM.of(LoadedModel(cast(Engine, self.engine), self.tokenizer, self.generation, "scripted"))

    @property
    def prompts(self) -> list[str]:
        """What the model was asked, as text with the spellings of the special tokens."""
        return [self.tokenizer.decode(request.prompt_ids) for request in self.engine.requests]

    @property
    def num_prompt_tokens(self) -> int:
        """How many tokens of the first prompt are billed: all but the tag that opens the channel."""
        return len(self.engine.requests[0].prompt_ids) - 3


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
