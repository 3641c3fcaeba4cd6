"""Writing a checkpoint shard by shard, one tensor in memory at a time.

Unusual: every file appears under its name only when it is whole, and the index, without which nothing reads as a
checkpoint, appears last; so an interrupted write can never pass for a finished one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO

import torch

from openk3.checkpoint.index import INDEX_FILE, SINGLE_FILE
from openk3.checkpoint.progress import Progress
from openk3.checkpoint.reader import DTYPES
from openk3.checkpoint.shards import ShardPlan, plan_shards
from openk3.errors import CapacityError, CheckpointError, ConfigError, TensorError
from openk3.model.catalogue import TensorSpec, expand
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.model.published import config_to_dict
from openk3.ops.mxfp4.reference import pack

_HEADER_ALIGNMENT = 64
_WRITE_BYTES = 1 << 26

Named = tuple[str, torch.Tensor]
Source = Callable[[ShardPlan], Iterable[Named]]


class ShardWriter:
    """One safetensors file whose tensors are known beforehand and come one by one, in that order.

    Use as a context manager: leaving it normally gives the file its name, leaving it by an error removes it.
    """

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        self._path, self._temporary = path, path.with_name(f".{path.name}.partial")
        self._expected = expand(list(specs))
        self._file: BinaryIO = self._temporary.open("wb")
        self._file.write(header_bytes(specs))

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Append the next tensor; raise `TensorError` if it is not the one that the header announced."""
        expected, spec, _ = next(self._expected, ("the end of the shard", None, 0))
        if spec is None or name != expected:
            raise TensorError(f"{self._path}: {name}: written out of order, expected {expected}")
        if tuple(tensor.shape) != spec.shape or tensor.dtype != DTYPES[spec.dtype]:
            raise TensorError(
                f"{self._path}: {name}: {tensor.dtype} {list(tensor.shape)} is to be written, "
                f"expected {spec.dtype} {list(spec.shape)}"
            )
        data = tensor.detach().cpu().contiguous().view(torch.uint8).flatten()
        for start in range(0, len(data), _WRITE_BYTES):
            self._file.write(data[start : start + _WRITE_BYTES].numpy().data)

    def _finish(self) -> None:
        missing = next(self._expected, None)
        if missing is not None:
            raise TensorError(f"{self._path}: {missing[0]}: announced but not written")
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._temporary, self._path)


def write_checkpoint(
    folder: Path,
    config: K3Config,
    source: Source,
    *,
    vision: bool = False,
    companions: Mapping[str, Path] = MappingProxyType({}),
    progress: Progress | None = None,
) -> None:
    """Write shards, ``config.json`` and index into ``folder``, which may exist but holds no weights.

    ``source`` gives the tensors of a shard in its order. ``companions`` are other files that belong to the model, by
    name, such as its vocabulary, copied before the index, because without them it is not whole. ``progress`` hears
    each shard's name and bytes when written.

    Raises:
        CheckpointError: the folder already holds weights, cannot be written to, or is being written to.
        CapacityError: the disk is too small, or full.
    """
    plans = plan_shards(config, vision=vision)
    make_folder(folder)
    try:
        with only_writer(folder):
            require_no_weights(folder)
            require_space(folder, sum(plan.nbytes for plan in plans))
            for plan in plans:
                with ShardWriter(folder / plan.file, plan.specs) as writer:
                    for name, tensor in source(plan):
                        writer.write(name, tensor)
                if progress is not None:
                    progress(plan.file, plan.nbytes)
            for name, path in companions.items():
                _copy(path, folder / name)
            _write_json(folder / "config.json", config_to_dict(config))
            _sync(folder)
            _write_json(folder / INDEX_FILE, index_content(plans))
    except OSError as error:
        kind = CapacityError if error.errno == errno.ENOSPC else CheckpointError
        raise kind(
            f"{folder}: the write stopped: {error.strerror}",
            hint="what is there has no index and so does not count as a checkpoint; delete it",
        ) from None


def save_model(
    model: K3ForCausalLM,
    folder: str | Path,
    *,
    companions: Mapping[str, Path] = MappingProxyType({}),
    progress: Progress | None = None,
) -> None:
    """Write ``model`` in the published layout, as `write_checkpoint` does; experts MXFP4 if the configuration says so.

    Plain experts are quantised by the ``ceil`` rule of `openk3.ops.mxfp4`, exactly where representable.

    Raises:
        CheckpointError: the folder already holds weights.
        ConfigError: the experts are packed but the configuration says they are stored unquantised.
    """
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    source = ModuleSource(tensors, model.config)
    write_checkpoint(Path(folder), model.config, source, companions=companions, progress=progress)


class ModuleSource:
    """Gives a module's tensors as the file stores them: padded, in stored dtypes, experts one by one."""

    def __init__(self, tensors: dict[str, torch.Tensor], config: K3Config) -> None:
        self._tensors, self._config = tensors, config
        self._latest: tuple[str, int] | None = None
        self._packed: tuple[torch.Tensor, torch.Tensor] = (torch.empty(0), torch.empty(0))
        if not config.quantized_experts and any(name.endswith("_packed") for name in tensors):
            raise ConfigError(
                "the model's experts are packed, but its configuration stores them unquantised",
                hint="load it with experts='plain'",
            )

    def __call__(self, plan: ShardPlan) -> Iterator[Named]:
        """Yield the tensors of one shard."""
        for name, spec, expert in expand(list(plan.specs)):
            yield name, self._stored(spec, expert)

    def _stored(self, spec: TensorSpec, expert: int) -> torch.Tensor:
        if spec.parameter not in self._tensors and spec.dtype == "U8":
            return self._quantized(spec, expert)
        tensor = self._tensors[spec.parameter].detach()
        if spec.per_expert:
            tensor = tensor[expert]
        if spec.parameter.endswith(".A_log"):
            tensor = torch.nn.functional.pad(tensor, (0, spec.shape[0] - tensor.shape[0]))
        return tensor.to(DTYPES[spec.dtype])

    def _quantized(self, spec: TensorSpec, expert: int) -> torch.Tensor:
        stack, part = spec.parameter.rsplit("_", 1)
        if self._latest != (stack, expert):
            self._latest, self._packed = (stack, expert), pack(self._tensors[stack][expert].detach())
        return self._packed[0 if part == "packed" else 1]


def make_folder(folder: Path) -> None:
    """Make ``folder`` if needed; raise `CheckpointError` if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made a folder to write to: {error.strerror}") from None


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to ``folder`` within; raise `CheckpointError` if one does already.

    The lock is the folder's own, so it ends with the process, however that ends, and leaves nothing behind.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CheckpointError(
            f"{folder}: another process is writing to it", hint="wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def require_no_weights(folder: Path) -> None:
    """Raise `CheckpointError` if ``folder`` holds weights, whole or not."""
    held = sorted(path.name for path in folder.iterdir() if _is_weights(path))
    if held:
        raise CheckpointError(
            f"{folder}: already holds weights ({held[0]})", hint="choose another folder, or delete it"
        )


def remove_weights(folder: Path) -> None:
    """Delete the weights in ``folder``, the index first, so that the rest at no time looks whole."""
    with only_writer(folder):
        held = [path for path in folder.iterdir() if _is_weights(path)]
        for path in sorted(held, key=lambda path: path.name != INDEX_FILE):
            path.unlink()


def require_space(folder: Path, nbytes: int) -> None:
    """Raise `CapacityError` if the disk of ``folder`` (or of its nearest existing parent) has less than ``nbytes``."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < nbytes:
        raise CapacityError(f"{folder}: the checkpoint needs {nbytes:,} bytes, but the disk has {free:,} free")


def _is_weights(path: Path) -> bool:
    return path.name in (INDEX_FILE, SINGLE_FILE) or path.name.endswith((".safetensors", ".safetensors.partial"))


def header_bytes(specs: Sequence[TensorSpec]) -> bytes:
    """Return the start of a shard that holds ``specs`` in order: length, JSON, and padding to 64 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, spec, _ in expand(list(specs)):
        entries[name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [end, end + spec.nbytes]}
        end += spec.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def index_content(plans: Sequence[ShardPlan]) -> dict[str, object]:
    """Return what the index of these shards says."""
    weight_map = {name: plan.file for plan in plans for name, _, _ in expand(list(plan.specs))}
    return {
        "metadata": {"total_size": sum(plan.nbytes for plan in plans)},
        "weight_map": dict(sorted(weight_map.items())),
    }


def _sync(folder: Path) -> None:
    """Make the names in ``folder`` durable, so that no crash can leave an index without the files it names."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _write_json(path: Path, content: object) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
