"""Packed batches: whole documents one after another on one token axis, with their lengths and next-token targets.

Unusual: nothing is padded and no document is cut to fill a batch; the model resets its state at every boundary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openk3.train.data.mixture import Mixture
from openk3.train.data.shards import Document

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """One packed batch of N tokens in ``lengths`` documents; targets are `IGNORED` where nothing is to be predicted."""

    input_ids: Tensor  # [N] int64
    targets: Tensor  # [N] int64
    lengths: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents together (N)."""
        return len(self.input_ids)


def pack(documents: Sequence[Document]) -> Batch:
    """Lay ``documents`` one after another; a target never crosses a document's end."""
    ids = torch.from_numpy(np.concatenate([document.ids for document in documents]).astype(np.int64))
    trained = torch.from_numpy(np.concatenate([document.trained for document in documents]))
    lengths = tuple(len(document) for document in documents)
    targets = torch.full_like(ids, IGNORED)
    targets[:-1] = torch.where(trained[1:], ids[1:], IGNORED)
    targets[torch.tensor(lengths).cumsum(0) - 1] = IGNORED
    return Batch(ids, targets, lengths)


def next_batch(mixture: Mixture, max_tokens: int) -> Batch:
    """Take documents from ``mixture`` until the next one would exceed ``max_tokens``; at least one."""
    documents = [mixture.take()]
    room = max_tokens - len(documents[0])
    while len(mixture.peek()) <= room:
        documents.append(mixture.take())
        room -= len(documents[-1])
    return pack(documents)


def batches(documents: Iterator[Document], max_tokens: int) -> Iterator[Batch]:
    """Pack a finite stream of documents into batches of at most ``max_tokens``."""
    waiting: list[Document] = []
    size = 0
    for document in documents:
        if waiting and size + len(document) > max_tokens:
            yield pack(waiting)
            waiting, size = [], 0
        waiting.append(document)
        size += len(document)
    if waiting:
        yield pack(waiting)
