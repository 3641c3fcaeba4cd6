"""One forward pass over a step's rows, from token ids to the logits that are wanted.

Unusual: the only place of the engine that calls the model. What a draft may have got wrong is stored only by `settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openk3.engine.batch import BatchRow, PagedStates
from openk3.engine.scheduler import StepRow
from openk3.engine.slots import StateSlots
from openk3.model.batch import ForwardBatch
from openk3.model.model import K3ForCausalLM
from openk3.ops.packed import PackedSequences


@dataclass(frozen=True)
class StepResult:
    """``mix`` [N, d] of all tokens, row by row; ``logits`` [R, V] float32 of the wanted ones; ``states`` to settle."""

    mix: Tensor
    logits: Tensor
    packed: PackedSequences
    states: PagedStates

    def mix_of(self, row: int, count: int) -> Tensor:
        """Return the mixes [count, d] of a row's first tokens."""
        start = self.packed.starts[row]
        return self.mix[start : start + count]

    def sound_rows(self) -> list[bool]:
        """Tell for each row whether all its mixes are finite: every value of a layer reaches its token's mix."""
        sound = self.mix.isfinite().all(-1).tolist()
        ends = [*self.packed.starts[1:], len(sound)]
        return [all(sound[start:end]) for start, end in zip(self.packed.starts, ends, strict=True)]


class Runner:
    """A model over state slots and pages of latents [blocks, layers, page_size, width]."""

    def __init__(self, model: K3ForCausalLM, slots: StateSlots, latents: Tensor) -> None:
        self.model = model
        self._slots, self._latents = slots, latents
        self._device = model.lm_head.weight.device

    def run(self, rows: Sequence[StepRow]) -> StepResult:
        """Compute the rows; their states are stored, unless there are drafts, which `PagedStates.settle` ends."""
        packed = PackedSequences([len(row.ids) for row in rows], self._device)
        states = PagedStates(
            [self._batch_row(row) for row in rows], packed, self._slots, self._latents, self.model.config.mla_layers
        )
        ids = torch.tensor([token for row in rows for token in row.ids], dtype=torch.int64, device=self._device)
        wanted = [
            start + len(row.ids) - back
            for row, start in zip(rows, packed.starts, strict=True)
            for back in range(row.num_logits, 0, -1)
        ]
        with torch.inference_mode():
            mix = self.model.run(ids, ForwardBatch(packed, states))
            logits = self.model.head(mix.index_select(0, torch.tensor(wanted, dtype=torch.int64, device=self._device)))
        return StepResult(mix, logits, packed, states)

    @staticmethod
    def _batch_row(row: StepRow) -> BatchRow:
        sequence = row.sequence
        assert sequence.slot is not None
        return BatchRow(sequence.slot, sequence.pages, sequence.position, row.ids, row.drafted)
