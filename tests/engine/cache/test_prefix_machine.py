"""Random lives of sequences, checkpoints, pins and restarts against a model that knows every byte.

Unusual: contents are hashes of their prefix, so a wrong page, a wrong position or a half restore cannot go unseen.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openk3.engine.cache.checkpoint import Checkpoint
from tests.engine.cache.simulation import Bench, Live, prompt

# Few pieces, so that prompts share prefixes of many lengths.
pieces = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([3, 16, 20, 33])), min_size=1, max_size=5)
prompts = pieces.map(lambda parts: [token for seed, length in parts for token in prompt(length, seed)])
salts = st.sampled_from([b"", b"", b"other"])


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lives: list[Live] = []
        self.pins: list[tuple[Checkpoint, list[int], bytes]] = []
        self.prefixes: dict[bytes, tuple[list[int], bytes]] = {}  # of every name: its ids and salt
        self.folder: Path | None = None
        self.bench: Bench

    @initialize(
        unit=st.sampled_from([16, 32]),
        page_size=st.sampled_from([5, 16, 24, 64]),
        blocks=st.sampled_from([12, 40, 120]),
        state_bytes=st.sampled_from([1, 512, 700]),
        disk_bytes=st.sampled_from([0, 3_000, 30_000, 1_000_000]),
    )
    def build(self, unit: int, page_size: int, blocks: int, state_bytes: int, disk_bytes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="openk3-cache-")) if disk_bytes else None
        self.settings = {
            "num_blocks": blocks, "unit": unit, "page_size": page_size,
            "state_bytes": state_bytes, "folder": self.folder, "max_bytes": disk_bytes,
        }  # fmt: skip
        self.bench = Bench(**self.settings)  # type: ignore[arg-type]

    @precondition(lambda self: len(self.lives) < 6)
    @rule(ids=prompts, salt=salts)
    def start(self, ids: list[int], salt: bytes) -> None:
        keys, unit = self.bench.chain(ids, salt).keys, self.bench.unit
        for n, key in enumerate(keys, 1):
            self.prefixes[key] = ids[: n * unit], salt
        held = {checkpoint.key for checkpoint in self.bench.cache.checkpoints}
        usable = keys[: (len(ids) - 1) // unit]
        expected = max((n * unit for n, key in enumerate(usable, 1) if key in held), default=0)
        live = self.bench.start(ids, salt)
        if live is not None:
            assert live.position >= expected
            self.lives.append(live)

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), tokens=st.integers(1, 60))
    def advance(self, data: st.DataObject, tokens: int) -> None:
        live = data.draw(st.sampled_from(self.lives))
        if not self.bench.advance(live, tokens):
            self.bench.stop(live)  # as preemption does
            self.lives.remove(live)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.lives))
        at = live.position // self.bench.unit * self.bench.unit
        if at:
            kept = self.bench.publish(live, at)
            assert kept == (live.chain.keys[at // self.bench.unit - 1] in self.bench.cache._by_key)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.lives))
        self.bench.stop(live)
        self.lives.remove(live)

    @precondition(lambda self: len(self.pins) < 3)
    @rule(ids=prompts, salt=salts)
    def pin(self, ids: list[int], salt: bytes) -> None:
        match = self.bench.cache.match(self.bench.chain(ids, salt).keys, len(ids))
        if match.checkpoint is not None:
            self.pins.append((match.checkpoint, ids, salt))

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin = data.draw(st.sampled_from(self.pins))
        self.pins.remove(pin)
        self.bench.cache.unpin(pin[0])

    @rule(share=st.floats(0, 1))
    def make_room(self, share: float) -> None:
        wanted = int(share * self.bench.pool.num_blocks)
        before = set(self.bench.cache.checkpoints)
        held = {page for live in self.lives for page in live.pages}
        for checkpoint, _, _ in self.pins:
            held |= {*checkpoint.pages, *checkpoint.state_blocks}
        possible = wanted <= self.bench.pool.num_blocks - len(held)
        assert self.bench.cache.make_room(wanted) == possible
        if possible:
            assert self.bench.pool.num_free >= wanted
        else:
            assert set(self.bench.cache.checkpoints) == before

    @precondition(lambda self: self.folder)
    @rule()
    def flush(self) -> None:
        assert self.bench.disk is not None and self.bench.disk.flush(20)

    @precondition(lambda self: self.folder)
    @rule()
    def restart(self) -> None:
        self.lives, self.pins = [], []
        assert self.bench.disk is not None
        self.bench.disk.close()
        stored = self.bench.disk.metrics
        self.bench = Bench(**self.settings)  # type: ignore[arg-type]
        assert self.bench.disk is not None
        found = self.bench.disk.metrics
        assert (found.files, found.bytes, found.damaged) == (stored.files, stored.bytes, 0)

    @invariant()
    def every_block_has_exactly_its_holders(self) -> None:
        counts = [0] * self.bench.pool.num_blocks
        for live in self.lives:
            for page in live.pages:
                counts[page] += 1
        for checkpoint in self.bench.cache.checkpoints:
            for block in (*checkpoint.pages, *checkpoint.state_blocks):
                counts[block] += 1
        assert self.bench.pool.counts.tolist() == counts
        assert self.bench.pool.num_free == counts.count(0)

    @invariant()
    def every_checkpoint_holds_what_computing_would_give(self) -> None:
        for checkpoint in self.bench.cache.checkpoints:
            ids, salt = self.prefixes[checkpoint.key]
            assert len(ids) == checkpoint.position
            self.bench.check(checkpoint, ids, salt)
        for checkpoint, ids, salt in self.pins:
            self.bench.check(checkpoint, ids, salt)

    @invariant()
    def the_tree_is_that_of_the_prefixes(self) -> None:
        held = {checkpoint.key: checkpoint for checkpoint in self.bench.cache.checkpoints}
        for checkpoint in held.values():
            keys = self.bench.chain(*self.prefixes[checkpoint.key]).keys
            above = [held[key] for key in keys[:-1] if key in held]
            assert checkpoint.parent is (above[-1] if above else None)
            start = above[-1].position // self.bench.unit if above else 0
            assert checkpoint.segment == keys[start:]
            siblings = checkpoint.parent.children if checkpoint.parent else self.bench.cache._roots
            assert checkpoint in siblings

    @invariant()
    def the_disk_stays_within_its_limit(self) -> None:
        if self.bench.disk is not None:
            metrics = self.bench.disk.metrics
            assert metrics.bytes <= self.settings["max_bytes"] and metrics.damaged == 0

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for live in self.lives:
            self.bench.stop(live)
        for checkpoint, _, _ in self.pins:
            self.bench.cache.unpin(checkpoint)
        self.bench.cache.clear()
        assert self.bench.pool.num_free == self.bench.pool.num_blocks
        assert not self.bench.cache._roots
        if self.bench.disk is not None and self.folder is not None:
            self.bench.disk.close()
            shutil.rmtree(self.folder)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=120, stateful_step_count=40)
