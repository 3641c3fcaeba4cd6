"""Headers of a checkpoint's files: ``model.safetensors.index.json`` and the JSON header of each shard.

Unusual: parsed by hand and without torch, because a damaged file must give one line that names file and tensor, and
because the headers of 1.5 TB have to be read in seconds.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from openk3.errors import CheckpointError, TensorError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
# the format's own bound: a longer header is damage, not data
MAX_HEADER_BYTES = 100_000_000
_MAX_RANK = 16
_MAX_FILE_NAME_BYTES = 255
STORED_ITEM_SIZE = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its file's header describes it; ``begin`` and ``end`` count from the start of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes that the header reserves for it."""
        return self.end - self.begin


@dataclass(frozen=True)
class ShardHeader:
    """The header of one shard; ``data_start`` is where the tensors' bytes begin in the file."""

    path: Path
    file_size: int
    data_start: int
    tensors: Mapping[str, StoredTensor]


@dataclass(frozen=True)
class Index:
    """Which file holds which tensor; ``total_size`` is what the file claims, if it does."""

    folder: Path
    weight_map: Mapping[str, str]
    total_size: int | None

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Shard file names, sorted."""
        return tuple(sorted(set(self.weight_map.values())))


def read_index(folder: Path) -> Index:
    """Read the index of a checkpoint folder, or make one for a lone ``model.safetensors``.

    Raises:
        CheckpointError: no index, unreadable JSON, or entries that are not tensor name to file name.
        TensorError: the index names a tensor twice.
    """
    path = folder / INDEX_FILE
    if not os.path.lexists(path):
        return _index_of_single(folder)
    raw = _load_json(path, _read_bytes(path), "index")
    weights, metadata = raw.get("weight_map"), raw.get("metadata", {})
    if not isinstance(weights, dict) or not weights:
        raise CheckpointError(f"{path}: weight_map is missing or empty, expected tensor names to file names")
    for name, file in weights.items():
        _require_printable(path, name)
        if not isinstance(file, str) or not _is_file_name(file):
            raise TensorError(f"{path}: {name}: its file is {file!r:.80}, expected the name of a .safetensors file")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None and not _is_count(total):
        raise CheckpointError(f"{path}: metadata.total_size is {total!r:.80}, expected a number of bytes")
    return Index(folder, weights, total)


def read_header(path: Path) -> ShardHeader:
    """Read a shard's header and require a sound layout of its data; raise `CheckpointError` with the first fault."""
    header = parse_header(path)
    for fault in layout_faults(header):
        raise fault
    return header


def parse_header(path: Path) -> ShardHeader:
    """Read a shard's header without judging where its tensors lie.

    Raises:
        CheckpointError: not a file in the safetensors format.
        TensorError: an entry that cannot be understood, or two of the same name.
    """
    _require_regular(path)
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            length = _header_length(path, file.read(8), file_size)
            text = file.read(length)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: not a safetensors file: its header starts with {text[:8]!r}, expected '{{'")
    raw = _load_json(path, text, "header")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is {metadata!r:.80}, expected an object of texts")
    tensors = {name: _entry(path, name, entry) for name, entry in raw.items()}
    return ShardHeader(path, file_size, 8 + length, tensors)


def layout_faults(header: ShardHeader) -> Iterator[CheckpointError]:
    """Yield what is wrong with the places of a shard's tensors: sizes, overlaps, holes, and the end of the file."""
    end, previous = 0, ""
    ordered = sorted(header.tensors.values(), key=lambda tensor: (tensor.begin, tensor.end))
    for tensor in ordered:
        where = f"{header.path}: {tensor.name}: "
        size = prod(tensor.shape) * STORED_ITEM_SIZE[tensor.dtype]
        if tensor.nbytes != size:
            yield TensorError(
                f"{where}{tensor.dtype} {list(tensor.shape)} takes {size} bytes, but its offsets span {tensor.nbytes}"
            )
        if tensor.begin < end:
            yield TensorError(f"{where}its bytes start at {tensor.begin}, inside {previous}, which ends at {end}")
        elif tensor.begin > end:
            yield TensorError(f"{where}its bytes start at {tensor.begin}, leaving a hole after {end}")
        if tensor.end > end:
            end, previous = tensor.end, tensor.name
    yield from _end_fault(header, ordered, end)


def _end_fault(header: ShardHeader, ordered: list[StoredTensor], end: int) -> Iterator[CheckpointError]:
    size = header.file_size - header.data_start
    cut = [tensor for tensor in ordered if tensor.end > size]
    if cut:
        others = f" (and {len(cut) - 1} more behind it)" if len(cut) > 1 else ""
        yield TensorError(
            f"{header.path}: {cut[0].name}: truncated: it ends at byte {cut[0].end} of the data, but the "
            f"file holds {size}{others}"
        )
    elif size > end:
        yield CheckpointError(f"{header.path}: {size - end} bytes follow the last tensor, expected the end of file")


def _header_length(path: Path, prefix: bytes, file_size: int) -> int:
    if len(prefix) < 8:
        raise CheckpointError(f"{path}: not a safetensors file: {file_size} bytes, expected at least 8")
    length = int(struct.unpack("<Q", prefix)[0])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: not a safetensors file: its header would be {length} bytes, the format allows {MAX_HEADER_BYTES}"
        )
    if length + 8 > file_size:
        raise CheckpointError(f"{path}: truncated: its header claims {length} bytes, but the file has {file_size}")
    return length


def _entry(path: Path, name: str, entry: Any) -> StoredTensor:
    _require_printable(path, name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise TensorError(f"{path}: {name}: its header entry is {entry!r:.80}, expected dtype, shape, data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORED_ITEM_SIZE:
        raise TensorError(f"{path}: {name}: its dtype is {dtype!r:.40}, expected one of {', '.join(STORED_ITEM_SIZE)}")
    if not _are_counts(shape) or len(shape) > _MAX_RANK:
        raise TensorError(f"{path}: {name}: its shape is {shape!r:.80}, expected at most {_MAX_RANK} sizes below 2^63")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise TensorError(f"{path}: {name}: its data_offsets are {offsets!r:.80}, expected [begin, end]")
    return StoredTensor(name, dtype, tuple(shape), offsets[0], offsets[1])


def _index_of_single(folder: Path) -> Index:
    path = folder / SINGLE_FILE
    if path.is_file():
        return Index(folder, dict.fromkeys(parse_header(path).tensors, SINGLE_FILE), None)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    shards = sum(name.endswith(".safetensors") for name in os.listdir(folder))
    found = f"{shards} .safetensors files but no index" if shards else "no weights"
    raise CheckpointError(
        f"{folder}: {found}, expected {INDEX_FILE}",
        hint="the copy or the write was interrupted; the index is written last" if shards else None,
    )


def _load_json(path: Path, text: bytes, what: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            _name_duplicate(path, pairs, what)
        return entries

    try:
        raw = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its {what} is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: its {what} is a {type(raw).__name__}, expected an object")
    return raw


def _name_duplicate(path: Path, pairs: list[tuple[str, Any]], what: str) -> NoReturn:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise TensorError(f"{path}: {name}: the {what} names it twice")
        seen.add(name)
    raise AssertionError("no duplicate")


def _is_file_name(text: str) -> bool:
    fits = text.isprintable() and len(text.encode()) <= _MAX_FILE_NAME_BYTES
    return fits and text.endswith(".safetensors") and Path(text).name == text


def _require_printable(path: Path, name: str) -> None:
    if not name.isprintable() or not name:
        raise TensorError(f"{path}: {name!r:.80} is not a name of a tensor: it is empty or has control characters")


def _require_regular(path: Path) -> None:
    """Refuse pipes and devices, whose opening would wait and whose reading might never end."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: not a regular file")


def _read_bytes(path: Path) -> bytes:
    _require_regular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(_is_count(value) for value in values)
