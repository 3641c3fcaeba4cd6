"""What is asked of an engine, in token ids, and what one answer cost.

Unusual: nothing here knows text. A grammar is the source text of one, over token ids; an image is where it stands in
the prompt and a digest of what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field
from typing import Literal

from openk3.errors import ConfigError
from openk3.protocol.checks import as_ids, as_number, as_whole, shown
from openk3.protocol.sampling import SamplingParams

Priority = Literal["interactive", "batch"]
"""Who goes first when not everybody can: somebody who waits, or work that can wait."""


@dataclass(frozen=True)
class Grammar:
    """What the whole output must match: a Lark grammar in llguidance's dialect, special tokens as ``<[id]>``."""

    lark: str

    def __post_init__(self) -> None:
        if not isinstance(self.lark, str):
            raise ConfigError(f"a grammar is {shown(self.lark)}, expected its text")


@dataclass(frozen=True)
class MediaSpan:
    """Positions of a prompt that an image fills, and the hash of what it shows: it is part of a prefix's identity."""

    start: int
    length: int
    digest: bytes

    def __post_init__(self) -> None:
        start, length = as_whole(self.start), as_whole(self.length)
        if start is None or length is None or start < 0 or length < 1:
            raise ConfigError(
                f"an image spans {shown(self.length)} tokens from {shown(self.start)}, expected at least 1 from 0 on"
            )
        if not isinstance(self.digest, bytes):
            raise ConfigError(f"the digest of an image is {shown(self.digest)}, expected bytes")
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "length", length)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to generate; raise `ConfigError` for values without meaning.

    ``timeout_s`` counts from submission. Only requests with equal ``cache_salt`` share cached prefixes. ``replayed`` is
    called once, at a normal end, with the generated ids: it returns how many leading tokens of prompt and answer the
    next prompt of the conversation will repeat, which decides whether the state at the end is worth keeping.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = "interactive"
    timeout_s: float | None = None
    grammar: Grammar | None = None
    media: tuple[MediaSpan, ...] = ()
    cache_salt: str = ""
    replayed: Callable[[tuple[int, ...]], int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", _prompt(self.prompt_ids))
        object.__setattr__(self, "media", _spans(self.media, len(self.prompt_ids)))
        if not isinstance(self.params, SamplingParams):
            raise ConfigError(f"params is {shown(self.params)}, expected SamplingParams")
        if self.priority not in ("interactive", "batch"):
            raise ConfigError(f"priority is {shown(self.priority)}, expected interactive or batch")
        if not (self.grammar is None or isinstance(self.grammar, Grammar)):
            raise ConfigError(f"grammar is {shown(self.grammar)}, expected Grammar or None")
        if not (self.replayed is None or callable(self.replayed)):
            raise ConfigError(f"replayed is {shown(self.replayed)}, expected a function or None")
        self._check_timeout()
        self._check_salt()

    def _check_timeout(self) -> None:
        if self.timeout_s is None:
            return
        seconds = as_number(self.timeout_s)
        if seconds is None or not seconds > 0:
            raise ConfigError(f"timeout_s is {shown(self.timeout_s)}, expected a positive number of seconds")
        object.__setattr__(self, "timeout_s", seconds)

    def _check_salt(self) -> None:
        try:
            str.encode(self.cache_salt)
        except (TypeError, UnicodeEncodeError):
            raise ConfigError(f"cache_salt is {shown(self.cache_salt)}, expected text") from None


def _prompt(values: object) -> tuple[int, ...]:
    ids = None if isinstance(values, Set) else as_ids(values)
    if ids is None:
        raise ConfigError(f"prompt_ids is {shown(values)}, expected a tuple of token ids, whole numbers from 0 on")
    if not ids:
        raise ConfigError("the prompt is empty, expected at least one token")
    return ids


def _spans(media: object, num_prompt: int) -> tuple[MediaSpan, ...]:
    given = tuple(media) if isinstance(media, Iterable) else (None,)
    spans = tuple(span for span in given if isinstance(span, MediaSpan))
    if len(spans) < len(given):
        raise ConfigError(f"media is {shown(media)}, expected a tuple of MediaSpan")
    for span in spans:
        last = span.start + span.length - 1
        if last >= num_prompt:
            raise ConfigError(f"an image spans tokens {span.start} to {last}, but the prompt has {num_prompt}")
    return spans


@dataclass(frozen=True, kw_only=True)
class RequestStats:
    """What one request cost, in tokens and seconds.

    ``matched_tokens`` of the prompt had been computed before; ``cached_tokens`` of them were taken from a checkpoint
    and the rest computed again. Of ``drafted`` tokens ``accepted`` were right.
    """

    prompt_tokens: int
    completion_tokens: int
    matched_tokens: int
    cached_tokens: int
    queue_s: float
    first_token_s: float | None
    total_s: float
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
