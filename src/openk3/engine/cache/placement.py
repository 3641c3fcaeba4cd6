"""Where a prompt's checkpoints go: at its end, at a fork that a second request has proved, on a sparse ladder.

Unusual: the end is the last unit boundary that an identical prompt can resume from, one token being left to compute.
"""

from __future__ import annotations


def last_boundary(num_tokens: int, unit: int) -> int:
    """Return the deepest multiple of ``unit`` that leaves a token of ``num_tokens`` to compute, 0 if none."""
    return max(0, num_tokens - 1) // unit * unit


def planned_positions(
    resumed: int, num_tokens: int, unit: int, *, fork: int | None = None, ladder: int = 0
) -> list[int]:
    """Return the rising positions after ``resumed`` at which to publish while a prompt of ``num_tokens`` is computed.

    ``fork`` is `PrefixCache.fork_position`; ``ladder`` is the spacing of further ones in tokens, rounded up to whole
    units, 0 for none.
    """
    end = last_boundary(num_tokens, unit)
    wanted = {end}
    if fork is not None:
        wanted.add(fork // unit * unit)
    if ladder > 0:
        step = -(-ladder // unit) * unit
        wanted.update(range(step, end, step))
    return sorted(position for position in wanted if resumed < position <= end)
