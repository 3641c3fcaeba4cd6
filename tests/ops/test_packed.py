"""Packing: chunks hold every token once, in order, and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openk3.errors import ConfigError
from openk3.ops.packed import PackedSequences

lengths_lists = st.lists(st.integers(1, 50), min_size=1, max_size=8)


@given(lengths=lengths_lists, size=st.sampled_from([1, 3, 16]))
def test_split_and_join_are_inverse(lengths: list[int], size: int) -> None:
    packed = PackedSequences(lengths)
    plan = packed.chunks(size)
    x = torch.arange(1, packed.num_tokens + 1)[:, None]
    chunks = plan.split(x)
    assert torch.equal(plan.join(chunks), x)
    assert int((chunks != 0).sum()) == packed.num_tokens
    assert sum(plan.running) == chunks.shape[0] == sum(-(-length // size) for length in lengths)


@given(lengths=lengths_lists, size=st.sampled_from([1, 4, 16]))
def test_chunks_of_a_sequence_follow_each_other_in_its_lane(lengths: list[int], size: int) -> None:
    packed = PackedSequences(lengths)
    plan = packed.chunks(size)
    chunks, at = plan.split(torch.arange(1, packed.num_tokens + 1)), 0
    lanes: list[list[int]] = [[] for _ in lengths]
    for running in plan.running:
        for lane in range(running):
            lanes[lane] += [int(token) for token in chunks[at + lane] if token]
        at += running
    for lane, sequence in zip(lanes, plan.order.tolist(), strict=True):
        start = packed.starts[sequence] + 1
        assert lane == list(range(start, start + lengths[sequence]))


@pytest.mark.parametrize("lengths", [[], [0], [3, 0], [-1]])
def test_empty_sequences_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ConfigError, match="each at least 1"):
        PackedSequences(lengths)


def test_subset_names_the_tokens_of_its_sequences() -> None:
    part, tokens = PackedSequences([2, 3, 1]).subset([2, 1])
    assert part.lengths == (1, 3)
    assert tokens.tolist() == [5, 2, 3, 4]
