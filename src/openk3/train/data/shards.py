"""Tokenised documents on disk: one flat array of ids, one of loss weights, and the documents' ends, all memory-mapped.

Unusual: ids are uint16 whenever the vocabulary allows it, and a folder without ``shard.json`` counts as not written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openk3.errors import TrainingError

_MANIFEST = "shard.json"
_UINT16_IDS = 1 << 16
_ANEW = "the shard is damaged; delete the folder to make it anew"


@dataclass(frozen=True)
class Document:
    """Ids [n] of one document, and which of them are to be predicted, bool [n]."""

    ids: NDArray[np.integer]
    trained: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def piece(self, start: int, length: int) -> Document:
        """Return at most ``length`` tokens from ``start``."""
        return Document(self.ids[start : start + length], self.trained[start : start + length])


class TokenShard:
    """A folder of tokenised documents, read without loading it."""

    def __init__(self, folder: Path) -> None:
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TrainingError(
                f"{folder}: not a token shard ({_MANIFEST} is missing)",
                hint='for plain text use format = "text" or "jsonl"',
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise TrainingError(f"{folder / _MANIFEST}: cannot be read: {error}", hint=_ANEW) from None
        try:
            self.vocab_size, self.source = int(manifest["vocab_size"]), str(manifest["source"])
            self._ends = np.load(folder / "ends.npy", mmap_mode="r")
            self._ids = np.memmap(folder / "ids.bin", dtype=_dtype(self.vocab_size), mode="r")
            self._trained = np.memmap(folder / "trained.bin", dtype=np.bool_, mode="r")
        except (OSError, ValueError, KeyError, TypeError, OverflowError, EOFError) as error:
            raise TrainingError(f"{folder}: not a whole token shard: {error!r:.200}", hint=_ANEW) from None
        if not _rises(self._ends):
            raise TrainingError(f"{folder}: ends.npy does not hold the rising ends of documents", hint=_ANEW)
        if len(self._ids) != self._ends[-1] or len(self._trained) != self._ends[-1]:
            raise TrainingError(
                f"{folder}: {len(self._ids)} ids and {len(self._trained)} loss marks, expected {self._ends[-1]}",
                hint=_ANEW,
            )

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents together."""
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Document:
        start, end = int(self._ends[index - 1]) if index else 0, int(self._ends[index])
        ids = self._ids[start:end]
        if (largest := int(ids.max())) >= self.vocab_size:  # judged here, as a shard is read bit by bit
            raise TrainingError(f"{self.source}: document {index} holds id {largest}, of {self.vocab_size}", hint=_ANEW)
        return Document(ids, self._trained[start:end])


def is_shard(folder: Path, source: str) -> bool:
    """Whether ``folder`` holds a whole shard that was made from ``source`` (any text that identifies the input)."""
    try:
        return (folder / _MANIFEST).is_file() and TokenShard(folder).source == source
    except TrainingError:
        return False  # a damaged one counts as not written


def write_shard(folder: Path, documents: Iterable[Document], *, vocab_size: int, source: str) -> TokenShard:
    """Write ``documents`` to ``folder``, replacing what is there; the folder appears whole or not at all.

    Raises:
        TrainingError: there is no document, or an id is not below ``vocab_size``.
    """
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    ends = _write_arrays(part, documents, vocab_size)
    if not ends:
        raise TrainingError(
            f"{source}: no documents", hint="the file is empty, or every document is shorter than 2 tokens"
        )
    np.save(part / "ends.npy", np.array(ends, dtype=np.int64))
    manifest = {"vocab_size": vocab_size, "source": source, "documents": len(ends), "tokens": ends[-1]}
    (part / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)
    return TokenShard(folder)


def _write_arrays(folder: Path, documents: Iterable[Document], vocab_size: int) -> list[int]:
    ends, end = [], 0
    with (folder / "ids.bin").open("wb") as ids, (folder / "trained.bin").open("wb") as trained:
        for document in documents:
            if len(document) < 2:
                continue  # nothing to predict
            if int(document.ids.max()) >= vocab_size:
                raise TrainingError(f"token id {int(document.ids.max())} is not below vocab_size ({vocab_size})")
            ids.write(document.ids.astype(_dtype(vocab_size)).tobytes())
            trained.write(document.trained.astype(np.bool_).tobytes())
            end += len(document)
            ends.append(end)
    return ends


def _rises(ends: NDArray[np.generic]) -> bool:
    return ends.ndim == 1 and ends.dtype == np.int64 and len(ends) > 0 and bool((np.diff(ends, prepend=0) > 0).all())


def _dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if vocab_size <= _UINT16_IDS else np.uint32
