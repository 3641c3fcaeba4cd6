"""Tensors of a shard straight from the mapped file: nothing is read before it is used, nothing stays mapped in after.

Unusual: a lent tensor is a view of the file's pages, which are given back when the loan ends; so reading a whole shard
never keeps more than one of its tensors in memory.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch

from openk3.checkpoint.index import ShardHeader, StoredTensor, read_header
from openk3.errors import CheckpointError, TensorError

DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "U8": torch.uint8,
    "F16": torch.float16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
# touching a page maps in its neighbours too, which may belong to tensors given back before
_WINDOW = 1 << 21
# named by the module from Python 3.13 on
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class ShardReader:
    """One open shard, unmapped when it and every view of it are gone; raises `CheckpointError` if it is not sound."""

    def __init__(self, path: Path) -> None:
        self.header: ShardHeader = read_header(path)
        self._map = _map_file(path)

    def stored(self, name: str) -> StoredTensor:
        """Return the header's entry of tensor ``name``; raise `TensorError` if the shard does not hold it."""
        try:
            return self.header.tensors[name]
        except KeyError:
            raise TensorError(f"{self.header.path}: {name}: the shard does not hold it") from None

    @contextmanager
    def lend(self, name: str) -> Iterator[torch.Tensor]:
        """Lend tensor ``name`` as a view of the file, not to be written to nor kept after the loan."""
        stored = self.stored(name)
        try:
            yield self._view(stored)
        finally:
            self._release(stored)

    def copy(self, name: str) -> torch.Tensor:
        """Return tensor ``name`` in memory of its own."""
        with self.lend(name) as view:
            return view.clone()

    def _view(self, stored: StoredTensor) -> torch.Tensor:
        if stored.dtype not in DTYPES:
            raise TensorError(f"{self.header.path}: {stored.name}: dtype {stored.dtype} has no place in a model")
        dtype, count = DTYPES[stored.dtype], prod(stored.shape)
        if count == 0:
            return torch.empty(stored.shape, dtype=dtype)
        begin = self.header.data_start + stored.begin
        if begin % dtype.itemsize:  # allowed by the format, not by the processor's vector units
            raw = torch.frombuffer(self._map, dtype=torch.uint8, count=stored.nbytes, offset=begin)
            return raw.clone().view(dtype).view(stored.shape)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=begin).view(stored.shape)

    def _release(self, stored: StoredTensor) -> None:
        begin = max(0, self.header.data_start + stored.begin - _WINDOW) // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(self.header.data_start + stored.end + _WINDOW, self.header.file_size)
        if end > begin and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _map_file(path: Path) -> mmap.mmap:
    """Map privately and writable: torch takes no read-only buffer. Nothing is written, so no memory is reserved."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(
                file.fileno(), 0, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be mapped into memory: {error.strerror}") from None
