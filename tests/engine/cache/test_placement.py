"""Where checkpoints go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.engine.cache.placement import last_boundary, planned_positions


@pytest.mark.parametrize("tokens, boundary", [(0, 0), (1, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_the_last_boundary_leaves_a_token_to_compute(tokens: int, boundary: int) -> None:
    assert last_boundary(tokens, 16) == boundary


@given(
    resumed=st.integers(0, 40).map(lambda n: n * 16),
    tokens=st.integers(1, 2000),
    fork=st.none() | st.integers(1, 2000),
    ladder=st.integers(0, 500),
)
def test_positions_rise_and_can_be_resumed_from(resumed: int, tokens: int, fork: int | None, ladder: int) -> None:
    positions = planned_positions(resumed, tokens, 16, fork=fork, ladder=ladder)
    assert positions == sorted(set(positions))
    assert all(resumed < position < tokens and position % 16 == 0 for position in positions)
    if resumed < last_boundary(tokens, 16):
        assert positions[-1] == last_boundary(tokens, 16)


def test_all_three_kinds() -> None:
    assert planned_positions(64, 1000, 16, fork=208, ladder=300) == [208, 304, 608, 912, 992]
