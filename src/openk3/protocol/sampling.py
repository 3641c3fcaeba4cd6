"""How tokens are chosen, and what one chosen token looks like.

Unusual: ``stop`` holds strings, which the engine (it knows token ids only) leaves to whoever turns ids into text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from openk3.errors import ConfigError

FinishReason = Literal["stop", "length", "tool_calls"]
"""Why an answer ended: the model or a stop string ended it, a limit did, or it called tools."""

# What a generator's seed can hold: 64 bits.
_SEED_LIMIT = 2**64


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens; raise `ConfigError` for values without meaning.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 restrict nothing. ``max_tokens`` None: until the model
    stops or its context is full. The same ``seed`` gives the same tokens; None takes a new seed each time.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}, expected 0 (greedy) or a positive number")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, expected more than 0 and at most 1 (1 keeps every token)")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}, expected 0 (keep every token) or a positive number")
        if self.seed is not None and not 0 <= self.seed < _SEED_LIMIT:
            raise ConfigError(f"seed is {self.seed}, expected a number from 0 to 2^64 - 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}, expected at least 1")
        if "" in self.stop:
            raise ConfigError("stop holds an empty string, which would stop every answer before its first character")


@dataclass(frozen=True)
class TokenOutput:
    """One generated token; ``finish_reason`` is set on the last one.

    ``logprob`` is the natural logarithm of its probability under the model itself, before temperature, top-k and top-p.
    """

    token_id: int
    logprob: float
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer: ``completion_tokens`` counts all that were generated, thinking and tags included."""

    prompt_tokens: int
    completion_tokens: int
