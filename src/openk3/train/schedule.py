"""How far a run is, and what the learning rate is then: a function of steps, of minutes, or of both."""

from __future__ import annotations

import math

from openk3.train.config import OptimConfig, RunConfig


def progress(run: RunConfig, step: int, minutes: float) -> float:
    """Return the elapsed share of the run, 0 to 1, after ``step`` steps and ``minutes``; the nearer limit counts."""
    by_steps = step / run.steps if run.steps else 0.0
    by_time = minutes / run.max_minutes if run.max_minutes else 0.0
    return min(1.0, max(by_steps, by_time))


def learning_rate(optim: OptimConfig, share: float) -> float:
    """Return the rate at ``share`` of the run: linear warm-up, then cosine (Kimi K3 report, section 3.3)."""
    if share < optim.warmup:
        return optim.learning_rate * share / optim.warmup
    fallen = (share - optim.warmup) / (1.0 - optim.warmup)
    span = optim.learning_rate - optim.min_learning_rate
    return optim.min_learning_rate + 0.5 * span * (1.0 + math.cos(math.pi * fallen))
