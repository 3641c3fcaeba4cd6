"""One checkpoint as a file: a header that says whose it is, then the state and the latents since its parent.

Unusual: written beside its name, synchronised, renamed: under its name a file is never half made. Header, state and
latents have a checksum each (which covers the header), so that each can be read and trusted alone.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

_MAGIC = b"OK3PFX1\n"
TEMPORARY = ".tmp"
"""Suffix of a file that is being written."""

_DIGEST_BYTES = 16
_MAX_HEADER = 1 << 16
_KEY_BYTES = 16


class DamagedRecordError(Exception):
    """A file that is not a whole record of this cache; never leaves this package."""


@dataclass(frozen=True)
class RecordHeader:
    """What a file says about itself: rows are latents of tokens ``parent_position`` to ``position`` - 1."""

    fingerprint: str
    key: bytes
    position: int
    parent: bytes | None
    parent_position: int
    state_bytes: int
    row_bytes: int

    @property
    def rows_shape(self) -> tuple[int, int]:
        """Shape [tokens, bytes] of the latents."""
        return self.position - self.parent_position, self.row_bytes

    @cached_property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        tokens, width = self.rows_shape
        return len(self.encode()) + self.state_bytes + tokens * width + 2 * _DIGEST_BYTES

    def encode(self) -> bytes:
        """Return the file's beginning, its own checksum included."""
        fields = {**asdict(self), "key": self.key.hex(), "parent": self.parent.hex() if self.parent else None}
        text = json.dumps(fields, sort_keys=True).encode()
        start = _MAGIC + len(text).to_bytes(4, "little") + text
        return start + _digest(start)


@dataclass(frozen=True)
class Record:
    """A header with its state [state_bytes] and rows [tokens, row_bytes], uint8 on the CPU."""

    header: RecordHeader
    state: Tensor
    rows: Tensor


def write_record(path: Path, record: Record) -> None:
    """Write the file so that a crash at any time leaves either all of it or nothing under ``path``; raises OSError."""
    temporary = path.with_suffix(TEMPORARY)
    try:
        with temporary.open("wb") as file:
            start = record.header.encode()
            file.write(start)
            for part in (record.state, record.rows):
                content = _bytes(part)
                file.write(content)
                file.write(_digest(start, content))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read_header(path: Path) -> RecordHeader:
    """Read and check the header and the file's size; raises DamagedRecordError or OSError."""
    with path.open("rb") as file:
        return _header(file)


def read_record(path: Path, *, with_state: bool = True) -> Record:
    """Read and check a file, its state left out (and empty) unless ``with_state``; DamagedRecordError or OSError."""
    with path.open("rb") as file:
        header = _header(file)
        start = header.encode()
        if with_state:
            state = _read_part(file, start, header.state_bytes)
        else:
            state = torch.empty(0, dtype=torch.uint8)
            file.seek(header.state_bytes + _DIGEST_BYTES, os.SEEK_CUR)
        tokens, width = header.rows_shape
        return Record(header, state, _read_part(file, start, tokens * width).view(tokens, width))


def _read_part(file: BinaryIO, start: bytes, size: int) -> Tensor:
    part = torch.empty(size, dtype=torch.uint8)
    if file.readinto(_bytes(part)) != size:  # type: ignore[attr-defined]
        raise DamagedRecordError("the file is too short")
    if file.read(_DIGEST_BYTES) != _digest(start, _bytes(part)):
        raise DamagedRecordError("a checksum of the contents is wrong")
    return part


def _bytes(part: Tensor) -> memoryview:
    return part.contiguous().view(-1).numpy().data


def _header(file: BinaryIO) -> RecordHeader:
    prefix = file.read(len(_MAGIC) + 4)
    length = int.from_bytes(prefix[len(_MAGIC) :], "little")
    if not prefix.startswith(_MAGIC) or len(prefix) < len(_MAGIC) + 4 or length > _MAX_HEADER:
        raise DamagedRecordError("the file does not begin as a record does")
    text = file.read(length)
    if file.read(_DIGEST_BYTES) != _digest(prefix, text):
        raise DamagedRecordError("the checksum of the header is wrong")
    header = _parse(text)
    if header.encode()[: len(prefix) + length] != prefix + text:
        raise DamagedRecordError("the header is not written as this version writes it")
    if os.fstat(file.fileno()).st_size != header.file_bytes:
        raise DamagedRecordError("the file is not as long as its header says")
    return header


def _parse(text: bytes) -> RecordHeader:
    try:
        fields = json.loads(text)
        parent = fields.pop("parent")
        key = bytes.fromhex(fields.pop("key"))
        header = RecordHeader(key=key, parent=bytes.fromhex(parent) if parent else None, **fields)
        sizes = (header.parent_position, header.state_bytes, header.row_bytes, header.position - header.parent_position)
        sound = min(sizes) >= 0 and len(key) == _KEY_BYTES
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedRecordError(f"the header cannot be read: {error}") from None
    if not sound or (header.parent is None) != (header.parent_position == 0):
        raise DamagedRecordError("the header contradicts itself")
    return header


def _digest(*parts: bytes | memoryview) -> bytes:
    hash_ = blake2b(digest_size=_DIGEST_BYTES, person=b"openk3-record")
    for part in parts:
        hash_.update(part)
    return hash_.digest()


def _sync_folder(folder: Path) -> None:
    """Make the new name durable; a file system that cannot is no reason to lose the file."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
