"""The arena: bytes come back as they went in, and pages are a view, not a copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openk3.engine.cache.arena import Arena, PageRows
from openk3.errors import CapacityError, ConfigError, EngineError


@given(n=st.integers(1, 640), seed=st.integers(0, 99))
def test_bytes_come_back_and_touch_nothing_else(n: int, seed: int) -> None:
    arena = Arena(16, 64)
    torch.manual_seed(seed)
    order = torch.randperm(16).tolist()
    blocks, others = order[: arena.num_blocks_for(n)], order[arena.num_blocks_for(n) :]
    flat = torch.randint(1, 256, (n,), dtype=torch.uint8)
    arena.write_bytes(blocks, flat)
    assert torch.equal(arena.read_bytes(blocks, n), flat)
    if others:
        assert not arena.read_bytes(others, len(others) * 64).any()


def test_pages_are_views_of_the_blocks() -> None:
    arena = Arena(4, 3 * 5 * 2 * 7 - 1)
    assert arena.block_bytes % 64 == 0 and arena.block_bytes >= 3 * 5 * 2 * 7
    pages = arena.latents(torch.bfloat16, 3, 5, 7)
    assert pages.shape == (4, 3, 5, 7)
    pages[2] = 1.5
    assert (arena.latents(torch.bfloat16, 3, 5, 7)[2] == 1.5).all()
    assert not arena.latents(torch.bfloat16, 3, 5, 7)[[0, 1, 3]].any()
    arena.clear([2])
    assert not pages.any()


def test_a_page_larger_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="a page takes 80 bytes, but a block has 64"):
        Arena(4, 64).latents(torch.float32, 1, 4, 5)


@given(page_size=st.integers(1, 9), start=st.integers(0, 30), count=st.integers(1, 30))
def test_rows_are_cut_by_token_whatever_the_page_size(page_size: int, start: int, count: int) -> None:
    latents = Arena(64, page_size * 2 * 3 * 2).latents(torch.int16, 2, page_size, 3)
    latents[:] = -1
    pages = torch.randperm(64, generator=torch.Generator().manual_seed(page_size)).tolist()
    rows = PageRows(latents)
    new = torch.arange(count * rows.row_bytes).to(torch.uint8).view(count, rows.row_bytes)
    rows.write(pages, start, new)
    assert torch.equal(rows.read(pages, start, start + count), new)
    flat = latents[pages].transpose(1, 2).reshape(-1, 6)
    assert torch.equal(flat[start : start + count].contiguous().view(torch.uint8), new)
    assert (flat[:start] == -1).all() and (flat[start + count :] == -1).all()


def test_misuse_is_refused() -> None:
    arena = Arena(4, 64)
    with pytest.raises(EngineError, match="65 bytes in 1 blocks, expected 2"):
        arena.write_bytes([0], torch.zeros(65, dtype=torch.uint8))
    with pytest.raises(EngineError, match="expected uint8"):
        arena.write_bytes([0], torch.zeros(4))
    with pytest.raises(ConfigError, match="at least 1 of each"):
        Arena(0, 64)


def test_more_memory_than_there_is() -> None:
    with pytest.raises(CapacityError, match="cannot be allocated"):
        Arena(1 << 40, 1 << 20)
