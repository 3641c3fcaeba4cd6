"""Who is computed in the next step: everybody who writes, then as much of the prompts as the token budget leaves.

Unusual: of several prompts the shortest goes first, but the oldest always gets a part of the budget; and a request
waits while another one is computing the beginning that both share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from openk3.engine.cache.identity import CHUNK
from openk3.engine.cache.placement import last_boundary
from openk3.engine.config import EngineConfig
from openk3.engine.holdings import Holdings
from openk3.engine.sequence import EngineSequence, common_units
from openk3.protocol.request import Priority

# The oldest prompt's part of what writing leaves of the budget.
_OLDEST_SHARE = 4
# How many waiting requests are looked at in a step, when the first ones wait for a shared beginning.
_LOOK_AHEAD = 64


@dataclass(frozen=True)
class StepRow:
    """``ids`` of a sequence that a step computes from its position on; the last ``drafted`` of them are guesses."""

    sequence: EngineSequence
    ids: Sequence[int]
    drafted: int

    @property
    def num_known(self) -> int:
        """How many of the ids are the sequence's own."""
        return len(self.ids) - self.drafted

    @property
    def num_logits(self) -> int:
        """How many of the last ids are followed by a token that is wanted."""
        return 1 + self.drafted if self.num_known == self.sequence.num_missing else 0

    def num_right(self, chosen: Sequence[int]) -> int:
        """Return how many drafts are the tokens that were ``chosen`` at their places."""
        return sum(draft == token for draft, token in zip(self.ids[self.num_known :], chosen, strict=False))


class Scheduler:
    """Waiting and running sequences; ``on_release`` hears of those that lose what they hold."""

    def __init__(
        self, config: EngineConfig, holdings: Holdings, on_release: Callable[[EngineSequence], None] = lambda _: None
    ) -> None:
        self.running: list[EngineSequence] = []
        self.preemptions = 0
        self._config, self._holdings, self._on_release = config, holdings, on_release
        self._queues: dict[Priority, deque[EngineSequence]] = {"interactive": deque(), "batch": deque()}

    @property
    def waiting(self) -> Iterator[EngineSequence]:
        """Those that hold nothing, in the order in which they are to be admitted."""
        return chain(self._queues["interactive"], self._queues["batch"])

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return sum(len(queue) for queue in self._queues.values())

    def add(self, sequence: EngineSequence) -> None:
        """Let a new sequence wait."""
        self._queues[sequence.request.priority].append(sequence)

    def remove(self, sequence: EngineSequence) -> None:
        """Forget a sequence and free what it holds."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self._queues[sequence.request.priority].remove(sequence)

    def admit(self, now: float) -> None:
        """Let waiting sequences run, as many as find room; those who can wait are set aside for those who cannot."""
        for sequence in list(islice(self.waiting, _LOOK_AHEAD)):
            if self._is_worth_waiting(sequence):
                continue
            while not self._admits(sequence):
                victim = self._lowest()
                if victim is None or sequence.is_batch or not victim.is_batch or not self._could_admit(sequence):
                    return
                self.preempt(victim)
            self._queues[sequence.request.priority].remove(sequence)
            sequence.admitted = now if sequence.admitted is None else sequence.admitted
            self.running.append(sequence)

    def plan(self) -> list[StepRow]:
        """Return the rows of the next step, having made room for them."""
        ranked = sorted(self.running, key=lambda sequence: sequence.is_batch)
        writing = [sequence for sequence in ranked if sequence.is_writing]
        reading = [sequence for sequence in ranked if not sequence.is_writing]
        rows, budget = [], self._config.token_budget
        for sequence in writing:
            sequence.drafts = sequence.drafts[: max(0, budget - 1)]
            if sequence.drafts and not self._holdings.grow(sequence, sequence.position + 1 + len(sequence.drafts)):
                sequence.drafts = []  # they are not worth setting anybody aside
            row = StepRow(sequence, [sequence.tokens[-1], *sequence.drafts], len(sequence.drafts))
            if self._fits(sequence, row):
                rows.append(row)
                budget -= len(row.ids)
        for sequence, count in self._portions(reading, max(budget, CHUNK)):
            row = StepRow(sequence, sequence.tokens[sequence.position : sequence.position + count], 0)
            if self._fits(sequence, row):
                rows.append(row)
        return [row for row in rows if row.sequence.slot is not None]

    def preempt(self, sequence: EngineSequence) -> None:
        """Take what a sequence holds; its state stays as a checkpoint while there is room, and it goes on later."""
        self._holdings.publish(sequence)
        self.running.remove(sequence)
        self._release(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        self._queues[sequence.request.priority].appendleft(sequence)

    def _release(self, sequence: EngineSequence) -> None:
        sequence.drafts = []
        self._on_release(sequence)
        self._holdings.release(sequence)

    def _admits(self, sequence: EngineSequence) -> bool:
        return len(self.running) < self._config.max_running and self._holdings.admit(sequence, len(self.running))

    def _could_admit(self, sequence: EngineSequence) -> bool:
        """Tell whether setting all aside that can wait would make room."""
        kept = [other for other in self.running if not other.is_batch]
        return self._holdings.could_hold(sequence, kept)

    def _fits(self, sequence: EngineSequence, row: StepRow) -> bool:
        """Make room for a row by setting others aside, or the sequence itself if it is the last in rank."""
        while sequence.slot is not None:
            if self._holdings.grow(sequence, sequence.position + len(row.ids)):
                return True
            victim = self._lowest()
            assert victim is not None
            self.preempt(victim)
        return False

    def _lowest(self) -> EngineSequence | None:
        """Return the running sequence that yields first: one that can wait, the one that came last."""
        ranked = sorted(self.running, key=lambda sequence: sequence.is_batch)
        return ranked[-1] if ranked else None

    def _portions(self, reading: Sequence[EngineSequence], budget: int) -> Iterator[tuple[EngineSequence, int]]:
        """Divide ``budget`` tokens: a part to the first, the rest to the shortest, interactive ones before others."""
        if not reading:
            return
        oldest = reading[0]
        promised = max(CHUNK, budget // _OLDEST_SHARE) if len(reading) > 1 else budget
        granted = {oldest: min(promised, oldest.num_missing, budget)}
        left = budget - granted[oldest]
        for sequence in sorted(reading, key=lambda sequence: (sequence.is_batch, sequence.num_missing)):
            more = min(left, sequence.num_missing - granted.get(sequence, 0))
            granted[sequence] = granted.get(sequence, 0) + more
            left -= more
        for sequence in reading:
            if granted[sequence]:
                yield sequence, self._cut(sequence, granted[sequence])

    @staticmethod
    def _cut(sequence: EngineSequence, count: int) -> int:
        """End a portion where a checkpoint is due: a slot has the state of its last whole chunk only."""
        stop = next((stop for stop in sequence.stops if stop > sequence.position), None)
        if stop is not None and sequence.position + count >= stop + CHUNK:
            return stop - sequence.position
        return count

    def _is_worth_waiting(self, sequence: EngineSequence) -> bool:
        """Tell whether somebody is about to compute what this one begins with, and ask for a checkpoint there."""
        if not self._config.prefix_cache:
            return False
        unit = self._config.identity_unit
        for other in self.running:
            if other.is_writing or other.is_batch > sequence.is_batch:
                continue
            shared = common_units(sequence.chain.keys, other.chain.keys) * unit
            shared = min(shared, last_boundary(len(sequence.tokens), unit), last_boundary(len(other.tokens), unit))
            if shared > other.position:
                if shared not in other.stops:
                    other.stops = sorted([*other.stops, shared])
                return True
        return False
