"""How tokens are chosen, and what one chosen token looks like.

Unusual: ``stop`` holds strings, which the engine (it knows token ids only) leaves to whoever turns ids into text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from openk3.errors import ConfigError
from openk3.protocol.checks import WHOLE_LIMIT, as_ids, as_number, as_whole, shown

FinishReason = Literal["stop", "length", "tool_calls"]
"""Why an answer ended: the model or a stop string ended it, a limit did, or it called tools."""

_MOST_ALTERNATIVES = 20

_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_WHOLE_NUMBERS = ("top_k", "seed", "max_tokens", "min_tokens", "top_logprobs")
_OPTIONAL = ("seed", "max_tokens")


class LogitBias(Mapping[int, float]):
    """Numbers that are added to the logits of tokens; cannot be changed, so that it has a hash."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        if not isinstance(biases, Mapping):
            raise ConfigError(f"logit_bias is {shown(biases)}, expected a mapping of token ids to numbers")
        self._biases = dict(_bias(token, bias) for token, bias in biases.items())

    def __getitem__(self, token: int) -> float:
        return self._biases[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return hash(frozenset(self._biases.items()))

    def __repr__(self) -> str:
        return repr(self._biases)


def _bias(token: object, bias: object) -> tuple[int, float]:
    whole, number = as_whole(token), as_number(bias)
    if whole is None or whole < 0:
        raise ConfigError(f"logit_bias names token {shown(token)}, expected ids, whole numbers from 0 on")
    if number is None or not math.isfinite(number):
        raise ConfigError(f"logit_bias of token {shown(token)} is {shown(bias)}, expected a finite number")
    return whole, number


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens; raise `ConfigError` for values without meaning.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 restrict nothing. ``presence_penalty`` and
    ``frequency_penalty`` are taken from the logits of generated tokens, once and per occurrence; positive logits of
    tokens in prompt and answer are divided by ``repetition_penalty``, others multiplied. ``logit_bias`` (token id to
    number) is added. ``max_tokens`` None: until the model stops or its context is full; before ``min_tokens`` it does
    not stop. The same ``seed`` gives the same tokens; None takes a new seed each time. ``top_logprobs`` alternatives
    are reported with each token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _texts(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", LogitBias(self.logit_bias))
        self._read_numbers()
        self._check_choice()
        self._check_penalties()
        self._check_end()

    def _read_numbers(self) -> None:
        """Make numbers Python's own, or refuse them."""
        for name in _NUMBERS:
            value: object = getattr(self, name)
            _require((number := as_number(value)) is not None, name, value, "a number that float64 can hold")
            object.__setattr__(self, name, number)
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if not (value is None and name in _OPTIONAL):
                _require((whole := as_whole(value)) is not None, name, value, "a whole number of at most 64 bits")
                object.__setattr__(self, name, whole)

    def _check_choice(self) -> None:
        _require(0 <= self.temperature < math.inf, "temperature", self.temperature, "0 (greedy) or a positive number")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "more than 0 and at most 1 (1 keeps every token)")
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (keep every token) or a positive number")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "a number from 0 (keep every token) to 1")
        _require(self.seed is None or 0 <= self.seed < WHOLE_LIMIT, "seed", self.seed, "a number from 0 to 2^64 - 1")
        limits = f"a number from 0 to {_MOST_ALTERNATIVES}"
        _require(0 <= self.top_logprobs <= _MOST_ALTERNATIVES, "top_logprobs", self.top_logprobs, limits)

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, value, "a number from -2 to 2 (0 changes nothing)")
        positive = "a positive number (1 changes nothing)"
        _require(0 < self.repetition_penalty < math.inf, "repetition_penalty", self.repetition_penalty, positive)

    def _check_end(self) -> None:
        most = self.max_tokens
        _require(most is None or most >= 1, "max_tokens", most, "at least 1")
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or a positive number")
        _require(most is None or self.min_tokens <= most, "min_tokens", self.min_tokens, f"at most max_tokens, {most}")
        if "" in self.stop:
            raise ConfigError("stop holds an empty string, which would stop every answer before its first character")


def _texts(stop: object) -> tuple[str, ...]:
    given = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str | Mapping) else (None,)
    texts = tuple(text for text in given if isinstance(text, str))
    if len(texts) < len(given):
        raise ConfigError(f"stop is {shown(stop)}, expected a tuple of strings")
    return texts


def _ids(values: object) -> tuple[int, ...]:
    ids = as_ids(values)
    if ids is None:
        raise ConfigError(f"stop_token_ids is {shown(values)}, expected a tuple of ids, whole numbers from 0 on")
    return ids


def _require(is_met: bool, name: str, value: object, expected: str) -> None:
    if not is_met:
        raise ConfigError(f"{name} is {shown(value)}, expected {expected}")


@dataclass(frozen=True)
class TokenOutput:
    """One generated token; ``finish_reason`` is set on the last one.

    ``logprob`` is the natural logarithm of its probability under the model itself, before penalties, temperature,
    grammar and so on; ``alternatives`` are the most likely ids with theirs, the likeliest first, as many as asked for.
    """

    token_id: int
    logprob: float
    finish_reason: FinishReason | None = None
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer: ``completion_tokens`` counts all that were generated, thinking and tags included.

    ``cached_tokens`` of the prompt were not computed anew; ``reasoning_tokens`` of the answer were thinking.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
