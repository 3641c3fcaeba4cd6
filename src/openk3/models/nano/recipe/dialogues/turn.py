"""One question with its thinking and its answer, and what keeps training and evaluation apart.

Unusual: the thinking exists once per effort level, so that the same question is thought about briefly or at length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Effort = Literal["low", "high", "max"]
EFFORTS: tuple[Effort, ...] = ("low", "high", "max")
_HELD_OUT_ONE_IN = 25
_REQUESTS = frozenset(
    "Add Subtract Take Multiply Divide Find Sort Put Count Write Define Explain Give Tell Name List".split()
)


@dataclass(frozen=True, kw_only=True)
class Thinking:
    """Thoughts of growing length: ``low`` alone, or ``steps``, or ``steps`` and then ``check``."""

    low: str
    steps: str
    check: str

    def at(self, effort: Effort) -> str:
        """Return the thinking for ``effort``."""
        return {"low": self.low, "high": self.steps, "max": f"{self.steps} {self.check}"}[effort]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call that answers the question, what the tool says, and what is thought about that."""

    tool: str
    arguments: dict[str, Any]
    result: str
    reading: str


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A question and its answer; ``key`` is what must not be seen in training for the question to count as unseen."""

    task: str
    key: str
    question: str
    thinking: Thinking
    answer: str
    brief: str | None = None
    calls: tuple[Call, ...] = ()
    tools: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    @property
    def held_out(self) -> bool:
        """Whether the question belongs to the evaluation (one in 25, by a hash of task and key)."""
        digest = hashlib.blake2s(f"{self.task}|{self.key}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0


Task = Callable[[Random], Turn]


def article(noun: str) -> str:
    """Return ``noun`` with a or an before it."""
    sounds_open = (noun[0] in "aeiou" and not noun.startswith(("uni", "use", "eu", "one"))) or noun.startswith("hour")
    return f"{'an' if sounds_open else 'a'} {noun}"


def capital(text: str) -> str:
    """Return ``text`` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def listed(words: Sequence[str]) -> str:
    """Return ``words`` as an English list: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rough(rng: Random, question: str) -> str:
    """Return ``question`` as people type it: sometimes in lower case, without its mark, or with a please."""
    if rng.random() < 0.12 and question.split()[0] in _REQUESTS:
        question = f"Please {question[0].lower()}{question[1:]}"
    if rng.random() < 0.15 and not question.startswith(("I ", "I'")):
        question = question[0].lower() + question[1:]
    if rng.random() < 0.15 and question[-1] in ".?!":
        question = question[:-1]
    return question
