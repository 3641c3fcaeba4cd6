"""Which form of KDA runs: chunks, or the recurrence that defines them.

Unusual: the chunk form serves single tokens as well, so that reading and writing a text give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from openk3.ops.kda.chunk import kda_chunk
from openk3.ops.kda.reference import kda_recurrent
from openk3.ops.kda.stream import StreamStep, kda_stream
from openk3.ops.packed import PackedSequences

KDAForm = Literal["chunk", "recurrent"]


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    packed: PackedSequences,
    form: KDAForm = "chunk",
) -> Tensor:
    """Run the gated delta rule over whole sequences of which nothing is kept: the read-out [N, H, V]."""
    run = kda_chunk if form == "chunk" else kda_recurrent
    return run(q, k, v, log_decay, beta, packed)[0]


def kda_continue(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    packed: PackedSequences,
    state: Tensor,
    opened: Tensor,
    num_open: Sequence[int],
    form: KDAForm = "chunk",
) -> StreamStep:
    """Continue sequences; arguments and results as `kda_stream`.

    The recurrence leaves no row open: its state is the one after the last token.
    """
    if form == "chunk":
        return kda_stream(q, k, v, log_decay, beta, packed, state, opened, num_open)
    output, new_state = kda_recurrent(q, k, v, log_decay, beta, packed, state)
    return StreamStep(output, new_state, opened.new_empty(packed.num_tokens, *opened.shape[2:]))
