"""Which form of KDA runs: sequences of one new token take the recurrence, longer ones the chunk form.

Unusual: the choice is made per sequence, never per batch, so that a sequence's numbers do not depend on its company.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from openk3.ops.kda.chunk import kda_chunk
from openk3.ops.kda.reference import kda_recurrent
from openk3.ops.packed import PackedSequences

KDAForm = Literal["auto", "recurrent", "chunk"]


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
    results = []
    for sequences, run in ((single, kda_recurrent), (longer, kda_chunk)):
        part, tokens = packed.subset(sequences)
        part_state = None if state is None else state[sequences]
        out, new_state = run(*(x.index_select(0, tokens) for x in inputs), part, part_state)
        results.append((tokens, out, torch.tensor(sequences, device=q.device), new_state))
    tokens, outs, sequences, states = (torch.cat(parts) for parts in zip(*results, strict=True))
    return (
        torch.empty_like(outs).index_copy(0, tokens, outs),
        torch.empty_like(states).index_copy(0, sequences, states),
    )
