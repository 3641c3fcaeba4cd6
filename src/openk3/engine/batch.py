"""One step's batch over slots and pages: the `BatchState` that the layers read and write.

Unusual: nothing that a draft may have got wrong is written to a slot before it is known how many tokens count. Latents
are written at once, because a row beyond a sequence's end is never read and will be overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from openk3.engine.cache.identity import CHUNK
from openk3.engine.slots import StateSlots, last_chunk_start
from openk3.model.state import KDAState
from openk3.ops.packed import PackedSequences


@dataclass(frozen=True)
class BatchRow:
    """A sequence's part of a step: ``ids`` are read from ``position`` on; ``drafted`` of them may be taken back."""

    slot: int
    pages: Sequence[int]
    position: int
    ids: Sequence[int]
    drafted: int = 0


class PagedStates:
    """States of a step's rows; ``latents`` [blocks, layers, page_size, width], ``layers`` the MLA layers in order."""

    def __init__(
        self,
        rows: Sequence[BatchRow],
        packed: PackedSequences,
        slots: StateSlots,
        latents: Tensor,
        layers: Sequence[int],
    ) -> None:
        self._rows, self._packed, self._slots, self._latents = rows, packed, slots, latents
        self._latent_index = {layer: i for i, layer in enumerate(layers)}
        self._positions = [row.position for row in rows]
        self.num_open = [position % CHUNK for position in self._positions]
        self._slot_index = self._index([row.slot for row in rows])
        self._speculative = any(row.drafted for row in rows)
        self._deferred: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._page_indices: dict[tuple[tuple[int, ...], int], Tensor] = {}

    def read_kda(self, layer: int) -> KDAState:
        """Return copies of the slots' states, stacked."""
        i, slots = self._slots.index[layer], self._slots
        stacked = (t[i].index_select(0, self._slot_index) for t in (slots.recurrent, slots.opened, slots.conv))
        return KDAState(*stacked)

    def write_kda(self, layer: int, recurrent: Tensor, rows: Tensor, inputs: Tensor, packed: PackedSequences) -> None:
        """Store the new states, or hold them until `settle` if there are drafts."""
        if self._speculative:
            self._deferred[layer] = (recurrent, rows, inputs)
        else:
            self._store(layer, recurrent, rows, inputs, self._all_counted)

    def settle(self, counted: Sequence[int]) -> None:
        """Store what was held: of each row the first ``counted`` tokens."""
        plan = self._plan(counted)
        for layer, held in self._deferred.items():
            self._store(layer, *held, plan)
        self._deferred.clear()

    def num_cached(self, layer: int) -> Sequence[int]:
        """Return the rows' positions."""
        return self._positions

    def extend_latents(self, layer: int, entries: Tensor, packed: PackedSequences) -> None:
        """Write the new tokens' entries [N, width] into their pages."""
        blocks, places = self._new_places
        self._latents[:, self._latent_index[layer]].index_put_((blocks, places), entries)

    def latents(self, layer: int, sequences: Sequence[int], num_rows: int) -> Tensor:
        """Return copies of some rows' latents [n, num_rows, width], zero after each one's last."""
        key = (tuple(sequences), num_rows)
        if key not in self._page_indices:
            self._page_indices[key] = self._pages_of(sequences, num_rows)
        pages = self._latents[:, self._latent_index[layer]].index_select(0, self._page_indices[key])
        entries = pages.view(len(sequences), -1, pages.shape[-1])[:, :num_rows]
        for part, i in zip(entries, sequences, strict=True):
            part[self._positions[i] + len(self._rows[i].ids) :] = 0  # whatever memory held before is not ours
        return entries

    def _pages_of(self, sequences: Sequence[int], num_rows: int) -> Tensor:
        needed = -(-num_rows // self._latents.shape[2])
        table: list[int] = []
        for i in sequences:
            pages = self._rows[i].pages[:needed]
            table += [*pages, *([pages[0]] * (needed - len(pages)))]
        return self._index(table)

    @cached_property
    def _new_places(self) -> tuple[Tensor, Tensor]:
        """Blocks [N] and rows inside them [N] of the new tokens."""
        size = self._latents.shape[2]
        tokens = [(row, row.position + j) for row in self._rows for j in range(len(row.ids))]
        return (
            self._index([row.pages[at // size] for row, at in tokens]),
            self._index([at % size for _, at in tokens]),
        )

    @cached_property
    def _all_counted(self) -> _StorePlan:
        return self._plan(self._packed.lengths)

    def _plan(self, counted: Sequence[int]) -> _StorePlan:
        return _StorePlan.of(self._rows, self._packed, counted, self._slots.conv.shape[2], self._index)

    def _store(self, layer: int, recurrent: Tensor, rows: Tensor, inputs: Tensor, plan: _StorePlan) -> None:
        i, slots = self._slots.index[layer], self._slots
        before = slots.conv[i].index_select(0, self._slot_index).flatten(0, 1)
        history = torch.cat([before, inputs])
        slots.conv[i].index_copy_(0, self._slot_index, _gather(history, plan.tails))
        if plan.moved is not None:
            moved_slots = self._slot_index.index_select(0, plan.moved)
            slots.recurrent[i].index_copy_(0, moved_slots, recurrent.index_select(0, plan.moved))
            slots.chunk_conv[i].index_copy_(0, moved_slots, _gather(history, plan.chunk_tails))
        if plan.opened is not None:
            slots.opened[i].index_put_(plan.places, rows.index_select(0, plan.opened))

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._latents.device)


def _gather(rows: Tensor, index: Tensor) -> Tensor:
    """Return ``rows[index]`` of rows [M, ...] and index [a, b]: [a, b, ...]."""
    return rows.index_select(0, index.flatten()).unflatten(0, index.shape)


@dataclass(frozen=True)
class _StorePlan:
    """Which new rows go where, the same for every layer; None where there are none.

    ``tails`` and ``chunk_tails`` index the convolution inputs before the step (B times 3 rows) and of it.
    """

    tails: Tensor  # [B, 3]
    moved: Tensor | None  # [m] sequences that completed a chunk
    chunk_tails: Tensor  # [m, 3]
    opened: Tensor | None  # [n] new tokens of unfinished chunks
    places: tuple[Tensor, Tensor]  # their slots and rows in them, [n] each

    @classmethod
    def of(
        cls,
        rows: Sequence[BatchRow],
        packed: PackedSequences,
        counted: Sequence[int],
        taps: int,
        index: Callable[[Sequence[int]], Tensor],
    ) -> _StorePlan:
        """Plan for the first ``counted`` tokens of each row."""
        before = len(rows) * taps
        tails, moved, chunk_tails, opened, slots, places = [], [], [], [], [], []
        for i, (row, start, count) in enumerate(zip(rows, packed.starts, counted, strict=True)):
            end = row.position + count
            chunk = last_chunk_start(end)

            def tail(position: int, i: int = i, row: BatchRow = row, start: int = start) -> list[int]:
                offsets = range(position - taps - row.position, position - row.position)
                return [i * taps + taps + o if o < 0 else before + start + o for o in offsets]

            tails += tail(end)
            if chunk > row.position:
                moved.append(i)
                chunk_tails += tail(chunk)
            for at in range(max(chunk, row.position), end):
                opened.append(start + at - row.position)
                slots.append(row.slot)
                places.append(at - chunk)
        return cls(
            tails=index(tails).view(-1, taps),
            moved=index(moved) if moved else None,
            chunk_tails=index(chunk_tails).view(-1, taps),
            opened=index(opened) if opened else None,
            places=(index(slots), index(places)),
        )
