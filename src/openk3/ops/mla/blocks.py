"""Latent attention over a cache in blocks of 128 keys, for many sequences at once, bit-equal however they are grouped.

Legend: n sequences of T new tokens each, S cached rows padded to whole blocks, H heads, R latent rank, w = R + p entry
width. Unusual: sums over keys run block by block from the first, so keys that a query does not see, and padding, add
exact zeros; neither the length of a prompt, nor its split, nor its company changes a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openk3.ops.packed import PackedSequences
from openk3.ops.precision import widen
from openk3.ops.row_independent import batched_rows

KEY_BLOCK = 128
# These bound the scores and the copied keys of one tile; rows do not interact, so results do not depend on them. One
# sequence, or a single row of queries, may be larger.
MOST_SCORES = 2**23
MOST_KEYS = 2**16


def whole_blocks(num_keys: int) -> int:
    """Round a number of keys up to whole blocks."""
    return -(-num_keys // KEY_BLOCK) * KEY_BLOCK


@dataclass(frozen=True)
class AttentionGroup:
    """Sequences of a packed batch with equally many new tokens, whose caches are about equally long."""

    sequences: tuple[int, ...]
    past: Tensor  # [n] int64: cached tokens before this pass
    tokens: Tensor  # [n * T] int64 rows of their new tokens
    num_new: int
    num_rows: int  # cached rows to read, in whole blocks


def attention_groups(packed: PackedSequences, past: Sequence[int]) -> list[AttentionGroup]:
    """Group a batch's sequences by new tokens and, within a factor of two, blocks of cache; made once per pass."""
    key = ("attention", tuple(past))
    return packed.remember(key, lambda: list(_groups(packed, past)))


def _groups(packed: PackedSequences, past: Sequence[int]) -> Iterator[AttentionGroup]:
    members: dict[tuple[int, int], list[int]] = {}
    for i, (length, cached) in enumerate(zip(packed.lengths, past, strict=True)):
        blocks = whole_blocks(cached + length) // KEY_BLOCK
        members.setdefault((length, blocks.bit_length()), []).append(i)
    for (length, _), alike in members.items():
        rows = max(whole_blocks(past[i] + length) for i in alike)
        together = max(1, MOST_KEYS // rows)
        for first in range(0, len(alike), together):
            sequences = alike[first : first + together]
            _, tokens = packed.subset(sequences)
            before = torch.tensor([past[i] for i in sequences], device=packed.device)
            yield AttentionGroup(tuple(sequences), before, tokens, length, rows)


def attend(query: Tensor, entries: Tensor, rank: int, past: Tensor, scale: float) -> Tensor:
    """Attend with queries in the latent space, [n, T, H, w] float32, over ``entries`` [n, S, w] (rows beyond: zeros).

    Token t of a sequence sees its first past + t + 1 entries. Returns [n, T, H, R] float32.
    """
    keys = widen(entries)
    num_new, heads = query.shape[1:3]
    tile = max(1, MOST_SCORES // (query.shape[0] * heads * keys.shape[1]))
    parts = []
    for first in range(0, num_new, tile):
        rows = query[:, first : first + tile]
        seen = past[:, None] + torch.arange(first + 1, first + rows.shape[1] + 1, device=query.device)  # [n, t]
        parts.append(_attend_tile(rows, keys[:, : whole_blocks(int(seen.max()))], rank, seen, scale))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _attend_tile(query: Tensor, keys: Tensor, rank: int, seen: Tensor, scale: float) -> Tensor:
    heads = query.shape[2]
    scores = batched_rows(query.flatten(1, 2), keys.transpose(1, 2)) * scale  # [n, t * H, S]
    unseen = torch.arange(keys.shape[1], device=keys.device) >= seen.repeat_interleave(heads, dim=1)[..., None]
    scores = scores.masked_fill(unseen, float("-inf"))
    weights = (scores - scores.amax(-1, keepdim=True)).exp().unflatten(-1, (-1, KEY_BLOCK))  # [n, t * H, blocks, 128]
    masses = weights.sum(-1)
    total = batched_rows(weights[:, :, 0], keys[:, :KEY_BLOCK, :rank])
    mass = masses[..., 0]
    for block in range(1, masses.shape[-1]):
        total = total + batched_rows(weights[:, :, block], keys[:, block * KEY_BLOCK : (block + 1) * KEY_BLOCK, :rank])
        mass = mass + masses[..., block]
    return (total / mass[..., None]).unflatten(1, (-1, heads))
