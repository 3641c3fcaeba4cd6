"""What an engine has done and holds, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from openk3.engine.cache.metrics import CacheMetrics


@dataclass(frozen=True, kw_only=True)
class EngineMetrics:
    """Counts since the start, and what is held now.

    ``step_s`` is the time of all ``steps`` and ``model_s`` the forward passes' part of it, ``draft_s`` the drafters'.
    ``tokens_read`` of prompts were computed (after a preemption again), ``tokens_written`` chosen. Of ``drafted`` ones
    ``accepted`` were right. Every request ends as one of ``finished``, ``failed``, ``cancelled``.
    """

    steps: int = 0
    step_s: float = 0.0
    model_s: float = 0.0
    draft_s: float = 0.0
    tokens_read: int = 0
    tokens_written: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    waiting: int = 0
    free_slots: int = 0
    free_blocks: int = 0
    cache: CacheMetrics = field(default_factory=CacheMetrics)

    @property
    def requests(self) -> int:
        """Requests that have ended."""
        return self.finished + self.failed + self.cancelled

    @property
    def overhead(self) -> float:
        """Part of the step time that is spent outside the model and the drafters, 0 before the first step."""
        return 1 - (self.model_s + self.draft_s) / self.step_s if self.step_s else 0.0
