"""How many tokens to draft for one sequence: as many as its drafts have lately been worth.

Unusual: a sequence whose drafts are not accepted stops drafting, and tries a single one again after some steps.
"""

from __future__ import annotations

# Weight of the latest step in the running acceptance rate.
_WEIGHT = 0.25
# Drafts are made while at least so many are right.
_WORTH = 0.4
# A further draft is worth it if it counts, with those before it, at least so often.
_DEEP_WORTH = 0.16
# Steps without drafts before the first new attempt, and the most that doubling makes of them.
_FIRST_PAUSE, _LONGEST_PAUSE = 8, 128


class AdaptiveDepth:
    """The number of drafts for the next step, from 0 to ``max_depth``."""

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._rate = 0.7
        self._pause = _FIRST_PAUSE
        self._waited = 0

    @property
    def depth(self) -> int:
        """Drafts for the next step: the last of them is still worth it if each is right at the usual rate."""
        if self._rate < _WORTH:
            return min(1, self._max_depth) if self._waited >= self._pause else 0
        depth, chance = 0, self._rate
        while depth < self._max_depth and chance >= _DEEP_WORTH:
            depth, chance = depth + 1, chance * self._rate
        return depth

    def observe(self, drafted: int, accepted: int) -> None:
        """Take note of a step in which ``accepted`` of ``drafted`` were right; the first wrong one hides the rest."""
        if drafted == 0:
            self._waited += 1
            return
        tried = min(drafted, accepted + 1)
        retried = self._rate < _WORTH
        for number in range(tried):
            self._rate += _WEIGHT * ((number < accepted) - self._rate)
        self._waited = 0
        if accepted == drafted:
            self._pause = _FIRST_PAUSE
            self._rate = max(self._rate, _WORTH) if retried else self._rate
        elif retried:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
