"""Adaptive depth: nothing is drafted where drafts are wrong, and as much as possible where they are right."""

from __future__ import annotations

import random

import pytest

from openk3.engine.speculative.depth import AdaptiveDepth


def run(depth: AdaptiveDepth, right: float, steps: int, seed: int = 0) -> list[int]:
    """Draft as deep as allowed, each draft right with probability ``right``; return the depths."""
    rng, depths = random.Random(seed), []
    for _ in range(steps):
        drafted = depth.depth
        accepted = next((i for i in range(drafted) if rng.random() >= right), drafted)
        depth.observe(drafted, accepted)
        depths.append(drafted)
    return depths


@pytest.mark.parametrize("max_depth", [1, 2, 4, 14])
def test_steady_success_gives_the_most_and_failure_nothing(max_depth: int) -> None:
    depth = AdaptiveDepth(max_depth)
    assert set(run(depth, 1.0, 50)[20:]) == {max_depth}
    assert run(depth, 0.0, 12)[-1] == 0


def test_failure_costs_ever_fewer_attempts_but_never_none() -> None:
    depth = AdaptiveDepth(4)
    depths = run(depth, 0.0, 2000)
    early, late = depths[10:200], depths[1000:]
    assert set(late) == {0, 1}
    assert sum(late) / len(late) < sum(early) / len(early)
    assert sum(late) / len(late) < 0.02


@pytest.mark.parametrize("failed", [10, 500, 3000])
def test_it_recovers_soon_after_drafts_are_right_again(failed: int) -> None:
    depth = AdaptiveDepth(4)
    run(depth, 0.0, failed)
    assert run(depth, 1.0, 150)[-1] == 4


def test_a_better_guesser_may_guess_deeper() -> None:
    means = [sum(depths) / len(depths) for depths in (run(AdaptiveDepth(14), p, 2000) for p in (0.2, 0.5, 0.8, 0.95))]
    assert means == sorted(means)
    assert means[0] < 0.5
    assert means[-1] > 9


@pytest.mark.parametrize("seed", range(20))
def test_it_is_always_from_none_to_the_most(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.choice([0, 1, 3, 14])
    depth = AdaptiveDepth(most)
    for _ in range(300):
        assert 0 <= depth.depth <= most
        drafted = rng.choice([0, depth.depth, rng.randint(0, 14)])
        depth.observe(drafted, rng.choice([0, drafted, rng.randint(0, drafted)]))


def test_steps_in_which_nothing_could_be_drafted_change_no_rate() -> None:
    depth = AdaptiveDepth(4)
    before = depth.depth
    for _ in range(500):
        depth.observe(0, 0)
    assert depth.depth == before
