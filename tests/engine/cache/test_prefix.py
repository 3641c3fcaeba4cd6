"""The prefix cache on single cases, among them those that are known to have gone wrong elsewhere."""

from __future__ import annotations

import pytest
import torch

from openk3.engine.cache.arena import Arena
from openk3.engine.cache.blocks import BlockPool
from openk3.engine.cache.identity import HashChain
from openk3.engine.cache.prefix import PrefixCache
from openk3.errors import ConfigError, EngineError
from openk3.protocol.request import MediaSpan
from tests.engine.cache.simulation import Bench, prompt, true_state


@pytest.mark.parametrize("page_size", [5, 16, 24, 64])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48, 49, 64])
def test_a_repeated_prompt_resumes_from_its_last_boundary(length: int, page_size: int) -> None:
    bench = Bench(page_size=page_size)
    ids = prompt(length)
    positions = [(length - 1) // 16 * 16] if length > 16 else [16]
    assert bench.run(ids, at=positions if length > 16 else [0]) == 0
    assert bench.run(ids, at=[0]) == (length - 1) // 16 * 16


def test_a_checkpoint_at_the_very_end_serves_a_longer_prompt_only() -> None:
    bench = Bench()
    assert bench.run(prompt(64), at=[64]) == 0
    match = bench.cache.match(bench.chain(prompt(64)).keys, 63)
    assert match.checkpoint is None and match.matched_tokens == 48
    assert bench.run(prompt(65), at=[0]) == 64


def test_matched_but_not_resumable_is_reported_and_planted_at_the_fork() -> None:
    bench = Bench()
    bench.run(prompt(100))
    other = [*prompt(64), *prompt(50, seed=2)]
    match = bench.cache.match(bench.chain(other).keys, len(other) - 1)
    assert match.matched_tokens == 64 and match.resumed_tokens == 0
    fork = bench.cache.fork_position(match)
    assert fork == 64
    bench.run(other, at=[fork, 112])
    third = [*prompt(64), *prompt(50, seed=3)]
    match = bench.cache.match(bench.chain(third).keys, len(third) - 1)
    assert match.resumed_tokens == 64 and bench.cache.fork_position(match) is None


def test_every_counter_counts() -> None:
    bench = Bench(num_blocks=32)
    bench.run(prompt(100))
    bench.run(prompt(100))
    bench.run([*prompt(64), *prompt(50, seed=2)])
    metrics = bench.cache.metrics
    assert (metrics.lookups, metrics.hits, metrics.published) == (3, 1, 2)
    assert (metrics.lookup_tokens, metrics.hit_tokens) == (99 + 99 + 113, 96)
    assert metrics.granularity_tokens == 64
    assert metrics.checkpoints == 2 and metrics.sightings > 0
    assert metrics.checkpoint_bytes == (6 + 2 + 7 + 2) * bench.arena.block_bytes
    assert bench.cache.make_room(32)
    assert bench.cache.metrics.evictions == 2
    assert bench.cache.metrics.checkpoint_bytes == 0 and bench.pool.num_free == 32


def test_a_second_look_at_one_prompt_need_not_count() -> None:
    bench = Bench()
    bench.cache.match(bench.chain(prompt(40)).keys, 39, count=False)
    assert bench.cache.metrics.lookups == 0


def test_salts_and_images_keep_equal_tokens_apart() -> None:
    bench = Bench()
    bench.run(prompt(40), b"one")
    assert bench.run(prompt(40), b"two") == 0
    assert bench.run(prompt(40), b"one") == 32
    cat, dog = (HashChain(16, media=(MediaSpan(3, 4, digest),)) for digest in (b"cat", b"dog"))
    pages = bench.pool.allocate(3) or []
    for chain in (cat, dog):
        chain.extend([7] * 40)
    assert bench.cache.publish(cat.keys, 32, pages, lambda: torch.zeros(700, dtype=torch.uint8))
    assert bench.cache.match(cat.keys, 39).resumed_tokens == 32
    assert bench.cache.match(dog.keys, 39).checkpoint is None


def test_what_was_not_computed_cannot_be_published() -> None:
    bench = Bench()
    live = bench.start(prompt(100))
    assert live is not None and bench.advance(live, 40)
    for position, message in [
        (0, "multiple of 16"), (-16, "multiple of 16"), (24, "multiple of 16"), (112, "named units end"),
        (48 + 16, "3 pages for 64 tokens, expected at least 4"),
    ]:  # fmt: skip
        with pytest.raises(EngineError, match=message):
            bench.publish(live, position)
    assert bench.cache.metrics.checkpoints == 0
    free = bench.pool.num_free
    with pytest.raises(EngineError, match="a state of 699 bytes, expected 700"):
        bench.cache.publish(live.chain.keys, 32, live.pages, lambda: torch.zeros(699, dtype=torch.uint8))
    with pytest.raises(EngineError, match="is free"):
        bench.cache.publish(live.chain.keys, 32, [60, 61, 62], lambda: torch.zeros(700, dtype=torch.uint8))
    with pytest.raises(EngineError, match="twice"):
        bench.cache.publish(live.chain.keys, 32, live.pages[:1] * 2, lambda: torch.zeros(700, dtype=torch.uint8))
    assert bench.pool.num_free == free


def test_a_state_that_cannot_be_read_leaves_nothing_behind() -> None:
    bench = Bench()
    live = bench.start(prompt(40))
    assert live is not None and bench.advance(live, 40)
    free = bench.pool.num_free

    def broken() -> torch.Tensor:
        raise RuntimeError("no state")

    with pytest.raises(RuntimeError, match="no state"):
        bench.cache.publish(live.chain.keys, 32, live.pages, broken)
    assert bench.pool.num_free == free
    bench.stop(live)
    assert bench.pool.num_free == bench.pool.num_blocks


def test_a_state_is_not_copied_when_it_is_there_or_does_not_fit() -> None:
    bench = Bench(num_blocks=8)
    live = bench.start(prompt(65))
    assert live is not None and bench.advance(live, 64)
    assert bench.publish(live)

    def never() -> torch.Tensor:
        raise AssertionError

    assert bench.cache.publish(live.chain.keys, 64, live.pages, never)
    rest = bench.pool.allocate(bench.pool.num_free) or []
    match = bench.cache.match(live.chain.keys, 64)
    assert not bench.cache.publish(live.chain.keys, 48, live.pages, never)
    assert bench.cache.metrics.refused == 1
    assert match.checkpoint is not None
    bench.cache.unpin(match.checkpoint)
    bench.pool.release(rest)


def test_the_publisher_may_write_on_in_the_page_it_shares() -> None:
    bench = Bench(page_size=64)
    live = bench.start(prompt(100))
    assert live is not None and bench.advance(live, 40) and bench.publish(live)
    other = bench.start([*prompt(32), *prompt(60, seed=5)])
    assert other is not None and other.position == 32
    assert bench.advance(live, 60) and bench.advance(other, 60)  # `start` below checks the rows below 32
    assert bench.run(prompt(40), at=[0]) == 32


def test_pinned_checkpoints_stay() -> None:
    bench = Bench(num_blocks=16)
    bench.run(prompt(40))
    match = bench.cache.match(bench.chain(prompt(40)).keys, 39)
    assert match.checkpoint is not None
    assert not bench.cache.make_room(16)
    bench.cache.clear()
    bench.check(match.checkpoint, prompt(40))
    bench.cache.unpin(match.checkpoint)
    assert bench.cache.make_room(16)
    with pytest.raises(EngineError, match="more often than matched"):
        bench.cache.unpin(match.checkpoint)
    with pytest.raises(EngineError, match="was evicted"):
        bench.cache.state(match.checkpoint)


def test_nothing_is_evicted_for_room_that_cannot_be_made() -> None:
    bench = Bench(num_blocks=16)
    bench.run(prompt(40))
    held = bench.pool.allocate(4) or []
    assert not bench.cache.make_room(13)
    assert bench.cache.metrics.checkpoints == 1
    bench.pool.release(held)
    assert bench.cache.make_room(16)


@pytest.mark.parametrize("uses, expected", [(2, [32, 48, 592]), (4, [32, 592, 48])])
def test_the_deeper_and_the_more_used_survive(uses: int, expected: list[int]) -> None:
    bench = Bench(num_blocks=200, page_size=64)
    bench.run(prompt(40, seed=1))
    bench.run(prompt(600, seed=2))
    for _ in range(uses):
        bench.run(prompt(50, seed=3), at=[48])
    order = []
    while left := bench.cache.checkpoints:
        assert bench.cache.make_room(bench.pool.num_free + 1)
        gone = set(left) - set(bench.cache.checkpoints)
        order += [checkpoint.position for checkpoint in gone]
    assert order == expected


def test_what_is_never_used_again_gives_way_in_the_end() -> None:
    bench = Bench(num_blocks=40, page_size=64)
    bench.run(prompt(600, seed=1))
    for seed in range(2, 60):
        bench.run(prompt(120, seed=seed))
    assert bench.run(prompt(600, seed=1)) == 0


def test_a_rung_between_two_others_saves_what_is_between_them() -> None:
    bench = Bench(num_blocks=200)
    bench.run(prompt(400), at=[160, 384])
    bench.run(prompt(400), at=[384])
    deep = next(c for c in bench.cache.checkpoints if c.position == 384)
    assert deep.saved_tokens == 224 and deep.parent is not None and deep.parent.position == 160
    live = bench.start([*prompt(320), *prompt(100, seed=4)])
    assert live is not None and bench.advance(live, 160) and live.position == 320 and bench.publish(live)
    assert deep.saved_tokens == 64 and deep.parent.position == 320
    bench.stop(live)
    middle = deep.parent
    bench.cache._evict(middle)
    assert deep.saved_tokens == 224 and middle not in bench.cache.checkpoints


def test_settings_that_make_no_sense_are_refused() -> None:
    pool, arena = BlockPool(4), Arena(4, 64)
    with pytest.raises(ConfigError, match="multiple of 16"):
        PrefixCache(8, 16, pool, arena, 100)
    with pytest.raises(ConfigError, match="state_bytes 0"):
        PrefixCache(16, 16, pool, arena, 0)
    with pytest.raises(ConfigError, match="arena of 5"):
        PrefixCache(16, 16, pool, Arena(5, 64), 100)


def test_sightings_are_bounded_and_forget_the_deepest_of_the_oldest() -> None:
    bench = Bench()
    cache = PrefixCache(16, 16, bench.pool, bench.arena, 700, max_sightings=10)
    old, new = bench.chain(prompt(128)).keys, bench.chain(prompt(96, seed=1)).keys
    cache.sighted(old)
    cache.sighted(new)
    assert cache.metrics.sightings == 10
    assert cache.match(old, 128).matched_tokens == 64
    assert cache.match(new, 96).matched_tokens == 96


def test_true_state_tells_prefixes_apart() -> None:
    assert not torch.equal(true_state([1, 2], 50), true_state([2, 1], 50))
    assert not torch.equal(true_state([1, 2], 50), true_state([1, 2], 50, b"salt"))
