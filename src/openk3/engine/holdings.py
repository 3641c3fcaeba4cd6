"""What running sequences hold, a state slot and pages of latents each, and how they begin from a checkpoint.

Unusual: full pages below a checkpoint are shared, never written again; the rows of a page that it fills in part are
copied. All pages of a prompt are taken when it is admitted, so a prompt that was begun is not stopped by later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from openk3.engine.cache.arena import Arena, PageRows
from openk3.engine.cache.blocks import BlockPool
from openk3.engine.cache.checkpoint import Checkpoint
from openk3.engine.cache.placement import planned_positions
from openk3.engine.cache.prefix import Match, PrefixCache
from openk3.engine.config import EngineConfig
from openk3.engine.sequence import EngineSequence
from openk3.engine.slots import StateSlots, last_chunk_start

_NOTHING = Match(0, None)


class Holdings:
    """Hands slots, pages and checkpoints to sequences; a sequence holds either a slot and pages, or nothing."""

    def __init__(
        self, config: EngineConfig, slots: StateSlots, pool: BlockPool, arena: Arena, rows: PageRows, cache: PrefixCache
    ) -> None:
        self.config, self.slots, self.pool, self.cache = config, slots, pool, cache
        self._arena, self._rows = arena, rows

    @property
    def max_tokens(self) -> int:
        """Most tokens that one sequence alone can hold."""
        return self.pool.num_blocks * self.config.page_size

    def admit(self, sequence: EngineSequence, spare_pages: int) -> bool:
        """Give it a slot at the deepest checkpoint and pages for its tokens; False, and nothing taken, without room.

        ``spare_pages`` have to be left for those who run already.
        """
        if not self.slots.num_free:
            return False
        match = self._match(sequence)
        try:
            begun = self._begin(sequence, match, spare_pages)
        finally:
            if match.checkpoint is not None:
                self.cache.unpin(match.checkpoint)
        # A checkpoint that is resumed from takes room beside the sequence: when alone, it must not stand in the way.
        is_alone = self.slots.num_free == self.slots.num_slots
        return begun or (is_alone and match.checkpoint is not None and self._begin(sequence, _NOTHING, spare_pages))

    def grow(self, sequence: EngineSequence, num_tokens: int) -> bool:
        """Give it pages for ``num_tokens`` tokens in all; False, and nothing taken, without room."""
        missing = self._pages_for(num_tokens) - len(sequence.pages)
        if missing <= 0:
            return True
        pages = self._take(missing)
        if pages is None:
            return False
        sequence.pages += pages
        return True

    def could_hold(self, sequence: EngineSequence, beside: Sequence[EngineSequence]) -> bool:
        """Tell whether there may be room for a sequence's tokens beside some that run, and with nobody else."""
        taken = len({page for other in beside for page in other.pages})
        return self._pages_for(len(sequence.tokens) + 1) + len(beside) <= self.pool.num_blocks - taken

    def release(self, sequence: EngineSequence) -> None:
        """Take everything back; it would begin at its first token again."""
        if sequence.slot is not None:
            self.slots.give_back(sequence.slot)
        self.pool.release(sequence.pages)
        sequence.slot, sequence.pages, sequence.position = None, [], 0

    def note_computed(self, sequence: EngineSequence) -> None:
        """Tell the cache which units were computed, and keep the checkpoint that was due here."""
        if not self.config.prefix_cache:
            return
        units = sequence.position // self.config.identity_unit
        if units > sequence.num_sighted:
            self.cache.sighted(sequence.chain.keys[:units], sequence.num_sighted)
            sequence.num_sighted = units
        while sequence.stops and sequence.stops[0] <= sequence.position:
            position = sequence.stops.pop(0)
            if position == last_chunk_start(sequence.position):
                self.publish(sequence)

    def publish(self, sequence: EngineSequence) -> None:
        """Keep the state at the sequence's last whole chunk, if it has a name and is sound."""
        slot, position = sequence.slot, last_chunk_start(sequence.position)
        if slot is None or not self.config.prefix_cache or position == 0 or position % self.config.identity_unit:
            return
        if self.slots.is_finite(slot):
            self.cache.publish(sequence.chain.keys, position, sequence.pages, lambda: self.slots.checkpoint(slot))

    def _match(self, sequence: EngineSequence) -> Match:
        if not self.config.prefix_cache:
            return _NOTHING
        first = sequence.admitted is None
        return self.cache.match(sequence.chain.keys, len(sequence.tokens) - 1, count=first)

    def _begin(self, sequence: EngineSequence, match: Match, spare_pages: int) -> bool:
        resumed = match.resumed_tokens
        shared = match.checkpoint.pages[: resumed // self.config.page_size] if match.checkpoint else []
        fresh = self._pages_for(len(sequence.tokens) + 1) - len(shared)
        if not self.cache.make_room(fresh + spare_pages):
            return False
        own = self.pool.allocate(fresh)
        if own is None:
            return False
        self.pool.retain(shared)
        sequence.pages, sequence.position = [*shared, *own], resumed
        sequence.slot = self.slots.take()
        if match.checkpoint is not None:
            self._restore(sequence, match.checkpoint, len(shared))
        self._plan(sequence, match)
        return True

    def _restore(self, sequence: EngineSequence, checkpoint: Checkpoint, num_shared: int) -> None:
        assert sequence.slot is not None
        self.slots.restore(sequence.slot, self.cache.state(checkpoint))
        first = num_shared * self.config.page_size
        if first < checkpoint.position:
            rows = self._rows.read(checkpoint.pages, first, checkpoint.position)
            self._rows.write(sequence.pages, first, rows)

    def _plan(self, sequence: EngineSequence, match: Match) -> None:
        first = sequence.admitted is None
        if first:
            sequence.matched_tokens, sequence.cached_tokens = match.matched_tokens, match.resumed_tokens
            sequence.stream.cached_tokens = match.resumed_tokens
        sequence.num_sighted = max(sequence.num_sighted, match.resumed_tokens // self.config.identity_unit)
        sequence.stops = []
        if self.config.prefix_cache:
            sequence.stops = planned_positions(
                match.resumed_tokens,
                sequence.num_prompt,
                self.config.identity_unit,
                fork=self.cache.fork_position(match) if first else None,  # later, it would be this one's own trace
                ladder=self.config.ladder,
            )

    def _take(self, num_pages: int) -> list[int] | None:
        return self.pool.allocate(num_pages) if self.cache.make_room(num_pages) else None

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.page_size)
