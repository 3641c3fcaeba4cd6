"""What is asked of an engine, in token ids, and what one answer cost.

Unusual: nothing here knows text. A grammar is the source text of one, over token ids; an image is where it stands in
the prompt and a digest of what it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from openk3.errors import ConfigError
from openk3.protocol.sampling import SamplingParams

Priority = Literal["interactive", "batch"]
"""Who goes first when not everybody can: somebody who waits, or work that can wait."""


@dataclass(frozen=True)
class Grammar:
    """What the whole output must match: a Lark grammar in llguidance's dialect, special tokens as ``<[id]>``."""

    lark: str


@dataclass(frozen=True)
class MediaSpan:
    """Positions of a prompt that an image fills, and the hash of what it shows: it is part of a prefix's identity."""

    start: int
    length: int
    digest: bytes

    def __post_init__(self) -> None:
        if self.start < 0 or self.length < 1:
            raise ConfigError(f"an image spans {self.length} tokens from {self.start}, expected at least 1 from 0 on")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One sequence to generate.

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
        if not self.prompt_ids:
            raise ConfigError("the prompt is empty, expected at least one token")
        if self.priority not in ("interactive", "batch"):
            raise ConfigError(f"priority is {self.priority!r}, expected interactive or batch")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}, expected a positive number of seconds")
        for span in self.media:
            if span.start + span.length > len(self.prompt_ids):
                raise ConfigError(
                    f"an image spans tokens {span.start} to {span.start + span.length - 1}, "
                    f"but the prompt has {len(self.prompt_ids)}"
                )


@dataclass(frozen=True, kw_only=True)
class RequestStats:
    """What one request cost, in tokens and seconds.

    ``matched_tokens`` of the prompt had been computed before; ``cached_tokens`` of them were taken from a checkpoint and
    the rest computed again. Of ``drafted`` tokens ``accepted`` were right.
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
