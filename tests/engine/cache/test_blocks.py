"""Reference counts: nothing is handed out twice, and every mistake is an error that changes nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openk3.engine.cache.blocks import BlockPool
from openk3.errors import ConfigError, EngineError

calls = st.tuples(st.sampled_from(["allocate", "retain", "release"]), st.lists(st.integers(0, 7), max_size=5))


@given(steps=st.lists(calls, max_size=60))
def test_counts_are_those_of_a_plain_counter(steps: list[tuple[str, list[int]]]) -> None:
    pool, model = BlockPool(8), Counter[int]()
    for call, blocks in steps:
        before = pool.counts.tolist()
        if call == "allocate":
            taken = pool.allocate(len(blocks))
            assert (taken is None) == (before.count(0) < len(blocks))
            assert all(before[block] == 0 for block in taken or ())
            model.update(taken or ())
        else:
            more = Counter(blocks)
            bad = any(model[b] < (n if call == "release" else 1) for b, n in more.items())
            act = pool.release if call == "release" else pool.retain
            if bad:
                with pytest.raises(EngineError, match="block"):
                    act(blocks)
                assert pool.counts.tolist() == before
            else:
                act(np.array(blocks, dtype=np.int64))
                (model.subtract if call == "release" else model.update)(more)
        assert pool.counts.tolist() == [model[block] for block in range(8)]
        assert pool.num_free == pool.counts.tolist().count(0)


def test_release_says_how_many_became_free() -> None:
    pool = BlockPool(3)
    a, b = pool.allocate(2) or []
    pool.retain([a])
    assert pool.release([a, b]) == 1
    assert pool.release([a]) == 1
    assert pool.num_free == 3


@pytest.mark.parametrize("blocks", [[-1], [3], [0, 99]])
def test_blocks_that_do_not_exist_are_refused(blocks: list[int]) -> None:
    pool = BlockPool(3)
    with pytest.raises(EngineError, match="expected 0 to 2"):
        pool.release(blocks)


def test_counts_cannot_be_written_from_outside() -> None:
    with pytest.raises(ValueError, match="read-only"):
        BlockPool(1).counts[0] = 1


def test_nonsense_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        BlockPool(0)
    with pytest.raises(EngineError, match="0 or more"):
        BlockPool(1).allocate(-1)
