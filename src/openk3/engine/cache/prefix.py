"""The exact prefix cache: where a prompt can be resumed from, and what is kept to make that possible.

Unusual: latents alone save nothing, because a recurrent layer cannot skip tokens. So only whole checkpoints are reused,
state and latents of one position, and pages of latents live as long as a checkpoint or a running sequence holds them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from openk3.engine.cache.arena import Arena, PageRows
from openk3.engine.cache.blocks import BlockPool
from openk3.engine.cache.checkpoint import Checkpoint, attach, detach
from openk3.engine.cache.disk import DiskTier
from openk3.engine.cache.eviction import GreedyDual
from openk3.engine.cache.identity import check_unit
from openk3.engine.cache.metrics import CacheMetrics, DiskMetrics
from openk3.engine.cache.record import Record
from openk3.errors import ConfigError, EngineError

DEFAULT_MAX_SIGHTINGS = 1 << 18
SIGHTING_BYTES = 150
"""About what one name of a computed unit takes."""


@dataclass(frozen=True)
class Match:
    """What is known of a prompt: ``matched_tokens`` were computed before; ``checkpoint`` is pinned, to resume from."""

    matched_tokens: int
    checkpoint: Checkpoint | None

    @property
    def resumed_tokens(self) -> int:
        """Tokens that need not be computed again."""
        return self.checkpoint.position if self.checkpoint else 0


class PrefixCache:
    """Checkpoints over ``arena`` and ``pool``; used from one thread only.

    Identity ``unit`` and ``page_size`` are in tokens and independent of each other. ``state_bytes`` is the size of one
    sequence's state. ``latents`` [blocks, layers, page_size, width] is the arena seen as pages; only ``disk`` needs it.
    At most ``max_sightings`` names of computed units are remembered, `SIGHTING_BYTES` each.
    """

    def __init__(
        self,
        unit: int,
        page_size: int,
        pool: BlockPool,
        arena: Arena,
        state_bytes: int,
        *,
        latents: Tensor | None = None,
        disk: DiskTier | None = None,
        max_sightings: int = DEFAULT_MAX_SIGHTINGS,
    ) -> None:
        if page_size < 1 or state_bytes < 1 or max_sightings < 1:
            raise ConfigError(
                f"page_size {page_size}, state_bytes {state_bytes}, max_sightings {max_sightings}: "
                "expected at least 1 of each"
            )
        if pool.num_blocks != arena.num_blocks:
            raise ConfigError(
                f"a pool of {pool.num_blocks} blocks for an arena of {arena.num_blocks}, expected as many"
            )
        if disk is not None and (latents is None or latents.shape[2] != page_size):
            raise ConfigError("a cache on disk needs the arena's view as pages of page_size tokens (latents)")
        self.unit, self.page_size, self.state_bytes = check_unit(unit), page_size, state_bytes
        self._pool, self._arena, self._disk = pool, arena, disk
        self._tier = (disk, PageRows(latents)) if disk is not None and latents is not None else None
        self._by_key: dict[bytes, Checkpoint] = {}
        self._roots: set[Checkpoint] = set()
        self._pinned: set[Checkpoint] = set()
        self._holders = np.zeros(pool.num_blocks, dtype=np.int64)  # of each block, checkpoints only
        self._ranking = GreedyDual(self._blocks_alone)
        self._sightings: OrderedDict[bytes, None] = OrderedDict()
        self._max_sightings = max_sightings
        self._counts = CacheMetrics()

    @property
    def metrics(self) -> CacheMetrics:
        """Counts so far and what is held."""
        return replace(
            self._counts,
            checkpoints=len(self._by_key),
            checkpoint_bytes=int(np.count_nonzero(self._holders)) * self._arena.block_bytes,
            sightings=len(self._sightings),
            disk=self._disk.metrics if self._disk else DiskMetrics(),
        )

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints in memory, to look at."""
        return list(self._by_key.values())

    def match(self, keys: Sequence[bytes], limit_tokens: int, *, count: bool = True) -> Match:
        """Find the longest prefix computed before and the deepest checkpoint within it, which is pinned until `unpin`.

        Neither reaches beyond ``limit_tokens``: give the prompt's length less one, so that a token is left to compute.
        ``count=False`` leaves the metrics alone, for a prompt that is looked up again.
        """
        units = min(len(keys), max(0, limit_tokens) // self.unit)
        matched = next((n for n in range(units, 0, -1) if self._known(keys[n - 1])), 0)
        checkpoint = self._deepest(keys, matched)
        if checkpoint is not None:
            self._use(checkpoint)
        match = Match(matched * self.unit, checkpoint)
        if count:
            self._count_lookup(match, max(0, limit_tokens))
        return match

    def unpin(self, checkpoint: Checkpoint) -> None:
        """Let it be evicted again, once for each `match` that returned it; EngineError if it is not pinned."""
        if not checkpoint.pins:
            raise EngineError(f"the checkpoint at token {checkpoint.position} was unpinned more often than matched")
        checkpoint.pins -= 1
        if not checkpoint.pins:
            self._pinned.remove(checkpoint)

    def state(self, checkpoint: Checkpoint) -> Tensor:
        """Return a copy of its state, [state_bytes] uint8; EngineError if it is not in the cache any more."""
        if self._by_key.get(checkpoint.key) is not checkpoint:
            raise EngineError(f"the checkpoint at token {checkpoint.position} was evicted; read it while it is pinned")
        return self._arena.read_bytes(checkpoint.state_blocks, self.state_bytes)

    def fork_position(self, match: Match) -> int | None:
        """Return where a second request has now been seen to share a prefix without a checkpoint, None if nowhere."""
        return match.matched_tokens if match.matched_tokens > match.resumed_tokens else None

    def sighted(self, keys: Sequence[bytes], start: int = 0) -> None:
        """Note that these units have been computed; the first ``start`` of them were noted before."""
        for key in reversed(keys[start:]):  # the deepest is forgotten first
            self._sightings[key] = None
            self._sightings.move_to_end(key)
        while len(self._sightings) > self._max_sightings:
            self._sightings.popitem(last=False)

    def publish(self, keys: Sequence[bytes], position: int, pages: Sequence[int], state: Callable[[], Tensor]) -> bool:
        """Keep the state at ``position`` and hold the pages below it; False, and nothing changed, if there is no room.

        ``pages`` are the sequence's blocks in order, held by the caller, with rows 0 to ``position`` - 1 written.
        ``state`` is called only if the checkpoint is new and fits, and returns [state_bytes] uint8.

        Raises:
            EngineError: ``position`` ends no named unit, pages are too few or free, or the state's size is wrong.
        """
        units, num_pages = self._checked(keys, position, pages)
        checkpoint = self._by_key.get(keys[units - 1])
        if checkpoint is not None:
            self._ranking.used(checkpoint)
        else:
            blocks = self._store(pages[:num_pages], state)
            if blocks is None:
                self._count(refused=1)
                return False
            checkpoint = self._insert(keys[:units], blocks, pages[:num_pages])
            self._count(published=1)
        self._save(keys[:units], checkpoint)
        return True

    def make_room(self, num_blocks: int) -> bool:
        """Evict the cheapest checkpoints until ``num_blocks`` blocks are free; evicts none if that cannot succeed."""
        if self._pool.num_free >= num_blocks:
            return True
        if self._pool.num_free + self._evictable() < num_blocks:
            return False
        while self._pool.num_free < num_blocks:
            victim = self._ranking.cheapest()
            if victim is None:
                return False
            self._evict(victim)
        return True

    def clear(self) -> None:
        """Forget every checkpoint in memory that is not pinned, and all sightings; files stay."""
        for checkpoint in [c for c in self._by_key.values() if not c.pins]:
            self._evict(checkpoint)
        self._sightings.clear()

    def _known(self, key: bytes) -> bool:
        return key in self._sightings or key in self._by_key or (self._disk is not None and key in self._disk)

    def _deepest(self, keys: Sequence[bytes], units: int) -> Checkpoint | None:
        for n in range(units, 0, -1):
            if (checkpoint := self._by_key.get(keys[n - 1])) is not None:
                if self._disk is not None:
                    self._disk.touch(checkpoint.key)
                return checkpoint
            if self._tier is not None and keys[n - 1] in self._tier[0]:
                loaded = self._load(self._tier, keys[:n])
                if loaded is not None:
                    return loaded
        return None

    def _use(self, checkpoint: Checkpoint) -> None:
        self._pin(checkpoint)
        checkpoint.hits += 1
        self._ranking.used(checkpoint)

    def _pin(self, checkpoint: Checkpoint) -> None:
        checkpoint.pins += 1
        self._pinned.add(checkpoint)

    def _checked(self, keys: Sequence[bytes], position: int, pages: Sequence[int]) -> tuple[int, int]:
        units, needed = position // self.unit, -(-position // self.page_size)
        if position < 1 or position % self.unit or units > len(keys):
            raise EngineError(
                f"a checkpoint at token {position}, expected a multiple of {self.unit} "
                f"up to {len(keys) * self.unit}, where the named units end"
            )
        if needed > len(pages):
            raise EngineError(f"{len(pages)} pages for {position} tokens, expected at least {needed}")
        if len(set(pages[:needed])) < needed:
            raise EngineError(f"the first {needed} pages of a sequence name a block twice")
        return units, needed

    def _store(self, pages: Sequence[int], state: Callable[[], Tensor]) -> list[int] | None:
        """Hold ``pages`` and return the blocks of a copy of the state, or hold nothing and return None."""
        self._pool.retain(pages)  # before anything is evicted: then none of them can be handed out as a state's block
        blocks = None
        try:
            blocks = self._take(self._arena.num_blocks_for(self.state_bytes))
            if blocks is not None:
                flat = state()
                if flat.numel() != self.state_bytes:
                    raise EngineError(f"a state of {flat.numel()} bytes, expected {self.state_bytes}")
                self._arena.write_bytes(blocks, flat)
        except BaseException:
            self._pool.release([*pages, *(blocks or ())])
            raise
        if blocks is None:
            self._pool.release(pages)
        return blocks

    def _take(self, num_blocks: int) -> list[int] | None:
        return self._pool.allocate(num_blocks) if self.make_room(num_blocks) else None

    def _parent(self, keys: Sequence[bytes], units: int) -> Checkpoint | None:
        """Return the deepest checkpoint in memory within the first ``units`` units."""
        found = (self._by_key.get(keys[n - 1]) for n in range(units, 0, -1))
        return next((checkpoint for checkpoint in found if checkpoint is not None), None)

    def _insert(self, keys: Sequence[bytes], state_blocks: list[int], pages: Sequence[int]) -> Checkpoint:
        """Add a checkpoint that takes over one holder of each of its blocks."""
        parent = self._parent(keys, len(keys) - 1)
        segment = list(keys[parent.position // self.unit if parent else 0 :])
        index = np.asarray(pages, dtype=np.int64)
        checkpoint = Checkpoint(keys[-1], len(keys) * self.unit, state_blocks, index, segment)
        attach(checkpoint, parent, parent.children if parent else self._roots)
        self._by_key[checkpoint.key] = checkpoint
        self._holders[state_blocks] += 1
        self._holders[index] += 1
        self._ranking.used(checkpoint)
        for neighbour in (*checkpoint.children, *([parent] if parent else ())):
            self._ranking.rescore(neighbour)
        return checkpoint

    def _evict(self, checkpoint: Checkpoint) -> None:
        parent, children = checkpoint.parent, checkpoint.children
        self._ranking.remove(checkpoint)
        del self._by_key[checkpoint.key]
        detach(checkpoint, parent.children if parent else self._roots)
        self._holders[checkpoint.state_blocks] -= 1
        self._holders[checkpoint.page_index] -= 1
        self._pool.release(checkpoint.state_blocks)
        self._pool.release(checkpoint.page_index)
        for neighbour in (*children, *([parent] if parent else ())):
            self._ranking.rescore(neighbour)
        self._count(evictions=1)

    def _blocks_alone(self, checkpoint: Checkpoint) -> int:
        """Return how many blocks no other checkpoint holds; running sequences come and go and are not looked at."""
        shared = np.count_nonzero(self._holders[checkpoint.page_index] > 1)
        return len(checkpoint.state_blocks) + len(checkpoint.page_index) - int(shared)

    def _evictable(self) -> int:
        """Return how many blocks evicting everything not pinned would free."""
        only_ours = (self._pool.counts == self._holders) & (self._holders > 0)
        for checkpoint in self._pinned:
            only_ours[checkpoint.state_blocks] = False
            only_ours[checkpoint.page_index] = False
        return int(np.count_nonzero(only_ours))

    def _save(self, keys: Sequence[bytes], checkpoint: Checkpoint) -> None:
        if self._tier is None or checkpoint.key in self._tier[0]:
            return
        disk, rows = self._tier
        units = disk.parent_of(keys, len(keys) - 1)
        parent = (keys[units - 1], units * self.unit) if units else None

        def contents() -> tuple[Tensor, Tensor]:
            latents = rows.read(checkpoint.pages, units * self.unit, checkpoint.position)
            return self.state(checkpoint).cpu(), latents.cpu()

        disk.save(checkpoint.key, checkpoint.position, parent, (self.state_bytes, rows.row_bytes), contents)

    def _load(self, tier: tuple[DiskTier, PageRows], keys: Sequence[bytes]) -> Checkpoint | None:
        """Bring a checkpoint back from its files, all or nothing; pages below the one in memory are shared."""
        disk, rows = tier
        base = self._parent(keys, len(keys) - 1)
        if base is not None:
            self._pin(base)
        try:
            if not self.make_room(sum(self._restored_blocks(len(keys), base))):
                return None
            records = disk.load(keys[-1], base.position if base else 0)
            if records is None:
                return None
            if not self._fits(records, rows):
                disk.discard(keys[-1], "its sizes are not this model's")
                return None
            return self._restore(keys, records, rows, base)
        finally:
            if base is not None:
                self.unpin(base)

    def _restored_blocks(self, units: int, base: Checkpoint | None) -> tuple[int, int]:
        """Return how many blocks of state and of pages a checkpoint needs beyond the full pages of ``base``."""
        shared = base.position // self.page_size if base else 0
        return self._arena.num_blocks_for(self.state_bytes), -(-units * self.unit // self.page_size) - shared

    def _fits(self, records: Sequence[Record], rows: PageRows) -> bool:
        sizes = {(record.header.state_bytes, record.header.row_bytes) for record in records}
        return sizes == {(self.state_bytes, rows.row_bytes)}

    def _restore(
        self, keys: Sequence[bytes], records: Sequence[Record], rows: PageRows, base: Checkpoint | None
    ) -> Checkpoint | None:
        start = base.position if base else 0
        num_state, num_pages = self._restored_blocks(len(keys), base)
        blocks = self._take(num_state + num_pages)
        if blocks is None:
            return None
        shared = base.pages[: start // self.page_size] if base else []
        self._pool.retain(shared)
        pages = shared + blocks[num_state:]
        self._arena.clear(pages[-1:])  # beyond the position somebody else's rows would be left
        first = len(shared) * self.page_size
        if base is not None and start > first:
            rows.write(pages, first, rows.read(base.pages, first, start))
        for record in records:
            low = max(start, record.header.parent_position)
            rows.write(pages, low, record.rows[low - record.header.parent_position :])
        self._arena.write_bytes(blocks[:num_state], records[-1].state)
        return self._insert(keys, blocks[:num_state], pages)

    def _count_lookup(self, match: Match, limit_tokens: int) -> None:
        self._count(
            lookups=1,
            hits=int(match.checkpoint is not None),
            lookup_tokens=limit_tokens,
            hit_tokens=match.resumed_tokens,
            granularity_tokens=match.matched_tokens - match.resumed_tokens,
        )

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()})
