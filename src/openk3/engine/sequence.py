"""One request while the engine has it: its tokens, what it holds, and where its checkpoints are to go.

Unusual: reading a prompt, writing an answer and catching up after a preemption are one thing: there are tokens that
have not been computed yet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from openk3.engine.cache.identity import HashChain
from openk3.engine.grammar import Matcher
from openk3.engine.sampler import RowSampler
from openk3.engine.speculative.depth import AdaptiveDepth
from openk3.engine.stream import TokenStream
from openk3.protocol.request import Request, RequestStats


@dataclass(eq=False)
class EngineSequence:
    """A request's progress; ``position`` counts the computed of its ``tokens``; ``limit`` is the most it may have."""

    request: Request
    stream: TokenStream
    sampler: RowSampler
    chain: HashChain
    stop_token_ids: frozenset[int]
    limit: int
    depth: AdaptiveDepth
    matcher: Matcher | None = None
    tokens: list[int] = field(default_factory=list)
    position: int = 0
    slot: int | None = None
    pages: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)  # rising positions at which a checkpoint is to be kept
    num_sighted: int = 0  # units of the chain that the cache has been told of
    drafts: list[int] = field(default_factory=list)
    matched_tokens: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    arrived: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        self.chain.extend(self.tokens)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def generated(self) -> list[int]:
        """Tokens chosen so far."""
        return self.tokens[self.num_prompt :]

    @property
    def num_generated(self) -> int:
        """How many tokens were chosen so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Tokens that have not been computed; one while writing."""
        return len(self.tokens) - self.position

    @property
    def is_writing(self) -> bool:
        """Whether one more computed token gives the next one."""
        return self.num_missing == 1 and self.num_generated > 0

    @property
    def is_batch(self) -> bool:
        """Whether others go first."""
        return self.request.priority == "batch"

    def append(self, token: int) -> None:
        """Take a chosen token."""
        self.tokens.append(token)
        self.sampler.append(token)
        self.chain.extend([token])
        if self.first_token is None:
            self.first_token = time.monotonic()

    def is_late(self, now: float) -> bool:
        """Tell whether the request's time is over at monotonic time ``now``."""
        return self.request.timeout_s is not None and now - self.arrived > self.request.timeout_s

    def stats(self) -> RequestStats:
        """Return what it cost so far."""
        now = time.monotonic()
        return RequestStats(
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_generated,
            matched_tokens=self.matched_tokens,
            cached_tokens=self.cached_tokens,
            queue_s=(now if self.admitted is None else self.admitted) - self.arrived,
            first_token_s=None if self.first_token is None else self.first_token - self.arrived,
            total_s=now - self.arrived,
            drafted=self.drafted,
            accepted=self.accepted,
            preemptions=self.preemptions,
        )


def common_units(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """Return how many leading names two chains share; names cover all before them, so halving finds it."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[middle - 1] == second[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
