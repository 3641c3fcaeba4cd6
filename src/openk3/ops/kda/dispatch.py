"""Which form of KDA runs: sequences of one new token take the recurrence, longer ones the chunk form.

Unusual: the choice is made per sequence, never per batch, so that a sequence's numbers do not depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from openk3.ops.kda.chunk import kda_chunk
from openk3.ops.kda.reference import kda_recurrent
from openk3.ops.packed import PackedSequences

KDAForm = Literal["auto", "recurrent", "chunk"]
Form = Callable[..., tuple[Tensor, Tensor]]


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    packed: PackedSequences,
    state: Tensor | None = None,
    form: KDAForm = "auto",
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over a packed batch; arguments and results as `kda_recurrent`."""
    inputs = (q, k, v, log_decay, beta)
    single = [i for i, length in enumerate(packed.lengths) if length == 1]
    if form == "recurrent" or (form == "auto" and len(single) == len(packed)):
        return kda_recurrent(*inputs, packed, state)
    if form == "chunk" or not single:
        return kda_chunk(*inputs, packed, state)
    longer = [i for i, length in enumerate(packed.lengths) if length > 1]
    parts = [
        _run_alone(run, inputs, packed, state, chosen) for run, chosen in ((kda_recurrent, single), (kda_chunk, longer))
    ]
    tokens, outputs, sequences, states = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return (
        torch.empty_like(outputs).index_copy(0, tokens, outputs),
        torch.empty_like(states).index_copy(0, sequences, states),
    )


def _run_alone(
    run: Form, inputs: tuple[Tensor, ...], packed: PackedSequences, state: Tensor | None, chosen: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run some sequences by one form: indices of their tokens, outputs, their numbers, new states."""
    part, tokens = packed.subset(chosen)
    sequences = torch.tensor(chosen, device=tokens.device)
    q, k, v, log_decay, beta = (x.index_select(0, tokens) for x in inputs)
    part_state = None if state is None else state.index_select(0, sequences)
    output, new_state = run(q, k, v, log_decay, beta, part, part_state)
    return tokens, output, sequences, new_state
