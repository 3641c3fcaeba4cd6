"""What the engine asks of whoever guesses tokens.

Unusual: a drafter cannot be wrong in a way that matters. Guesses only decide how many tokens a step gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from openk3.engine.sequence import EngineSequence


@dataclass(frozen=True)
class ComputedRow:
    """Tokens of ``sequence`` that were computed from position ``start`` on, with their final mixes ``mix`` [n, d].

    The tokens are ``sequence.tokens[start : start + n]``; wrong drafts are left out.
    """

    sequence: EngineSequence
    start: int
    mix: Tensor


class Drafter(Protocol):
    """Guesses the next tokens of sequences; used by one thread.

    ``max_depth`` bounds the guesses at once. Memory: at most ``bytes_per_token`` for each token of a running sequence
    and ``bytes_per_sequence`` for each running sequence.
    """

    max_depth: int
    bytes_per_token: int
    bytes_per_sequence: int

    def propose(self, sequences: Sequence[EngineSequence], depths: Sequence[int]) -> list[list[int]]:
        """Return for each sequence at most its depth of tokens that may follow its last one; none is allowed."""
        ...

    def computed(self, rows: Sequence[ComputedRow]) -> None:
        """Take note of what the model has computed, before the sequences' positions advance."""
        ...

    def release(self, sequence: EngineSequence) -> None:
        """Forget a sequence; it may come back with all its tokens to be computed, or from a checkpoint on."""
        ...
