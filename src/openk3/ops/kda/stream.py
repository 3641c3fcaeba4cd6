"""KDA that goes on from the middle of a chunk: chunks begin at multiples of 16 tokens from the sequence's start.

Unusual: what is carried is the state at the last such multiple and the rows since, and those rows are run again with
the new ones. So every split of a sequence, down to single tokens, gives the same bits, a checkpoint is at most 15
tokens behind, and taking tokens back is dropping rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from openk3.errors import ConfigError
from openk3.ops.kda.chunk import CHUNK_SIZE, kda_chunk, run_chunks
from openk3.ops.packed import ChunkPlan, PackedSequences
from openk3.ops.precision import wide_dtype

MAX_OPEN = CHUNK_SIZE - 1


class StreamStep(NamedTuple):
    """Result of one pass over N new tokens."""

    output: Tensor  # [N, H, V]
    state: Tensor  # [B, H, K, V] at each sequence's last multiple of 16
    rows: Tensor  # [N, H, 2K + V + 1] k | v | log_decay | beta of the new tokens


def kda_stream(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    packed: PackedSequences,
    state: Tensor,
    opened: Tensor,
    num_open: Sequence[int],
) -> StreamStep:
    """Run the gated delta rule over new tokens; inputs as `kda_recurrent`.

    ``state`` [B, H, K, V]; ``opened`` [B, 15, H, 2K + V + 1]: rows of the unfinished chunks, of which the first
    ``num_open`` (one number per sequence) count and the others are never read.
    """
    plan = resume(packed, num_open)
    dtype = wide_dtype(q.dtype)
    rows = torch.cat([k, v, log_decay, beta[..., None]], dim=-1).to(dtype)
    zero = rows.new_zeros(1, *rows.shape[1:])
    chunked = torch.cat([rows, opened.flatten(0, 1), zero]).index_select(0, plan.source)
    widths = [k.shape[-1], v.shape[-1], k.shape[-1], 1]
    k, v, log_decay, last = chunked.unflatten(0, (-1, CHUNK_SIZE)).split(widths, dim=-1)
    q = torch.cat([q.to(dtype), zero[..., : q.shape[-1]]]).index_select(0, plan.query_source)
    q = q.unflatten(0, (-1, CHUNK_SIZE))
    ordered = state.index_select(0, plan.chunks.order)
    output, new_state = run_chunks(q, k, v, log_decay, last[..., 0], ordered, plan.chunks, plan.whole)
    return StreamStep(output.flatten(0, 1).index_select(0, plan.new_rows), new_state, rows)


@dataclass(frozen=True)
class ResumePlan:
    """Where the rows of the chunks come from; rows are numbered: new tokens, opened rows of each sequence, a zero."""

    chunks: ChunkPlan  # of the sequences with their open rows in front
    source: Tensor  # [chunks * 16] int64 row number
    query_source: Tensor  # [chunks * 16] int64, with 0 to N - 1 the new tokens and N a zero
    new_rows: Tensor  # [N] int64 place of each new token among the chunks' rows
    whole: Tensor  # [chunks] bool: complete


def resume(packed: PackedSequences, num_open: Sequence[int]) -> ResumePlan:
    """Return the plan for new tokens ``packed`` behind ``num_open`` open rows each, made once per pass."""
    key = ("resume", tuple(num_open))
    return packed.remember(key, lambda: _plan(packed, key[1]))


def _plan(packed: PackedSequences, num_open: tuple[int, ...]) -> ResumePlan:
    if len(num_open) != len(packed) or not all(0 <= n <= MAX_OPEN for n in num_open):
        raise ConfigError(f"open rows are {num_open[:8]}, expected {len(packed)} numbers from 0 to {MAX_OPEN}")
    num_new, opens = packed.num_tokens, torch.tensor(num_open)
    extended = PackedSequences([n + c for n, c in zip(packed.lengths, num_open, strict=True)])
    chunks = extended.chunks(CHUNK_SIZE)
    sequence = extended.sequence_of_token
    offset = torch.arange(extended.num_tokens) - torch.tensor(extended.starts)[sequence]
    is_new = offset >= opens[sequence]
    new = torch.tensor(packed.starts)[sequence] + offset - opens[sequence]
    old = num_new + sequence * MAX_OPEN + offset
    zero = torch.tensor([num_new + len(packed) * MAX_OPEN])
    source = torch.cat([torch.where(is_new, new, old), zero])[chunks.tokens.flatten()]
    whole = (chunks.tokens[:, -1] < extended.num_tokens).to(packed.device)
    return ResumePlan(
        chunks=chunks.to(packed.device),
        source=source.to(packed.device),
        query_source=source.clamp(max=num_new).to(packed.device),
        new_rows=chunks.positions[is_new].to(packed.device),
        whole=whole,
    )


def settle(state: Tensor, opened: Tensor) -> Tensor:
    """Return one sequence's state [H, K, V] after its ``opened`` rows [c, H, 2K + V + 1] as well."""
    if not len(opened):
        return state
    key, value = state.shape[-2:]
    k, v, log_decay, beta = opened.split([key, value, key, 1], dim=-1)
    return kda_chunk(k, k, v, log_decay, beta[..., 0], PackedSequences([len(opened)], state.device), state[None])[1][0]
