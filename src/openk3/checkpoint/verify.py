"""Is a checkpoint whole and well-formed? Judged from the index and the shards' headers alone, without torch.

Unusual: every fault becomes one line that names file and tensor, and all faults are collected, not just the first; a
shard that is missing or unreadable is one fault, not one for each of its thousands of tensors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from openk3.checkpoint.index import Index, ShardHeader, StoredTensor, layout_faults, parse_header, read_index
from openk3.checkpoint.inventory import Inventory
from openk3.checkpoint.progress import Progress
from openk3.checkpoint.variants import variant
from openk3.errors import CheckpointError, ConfigError, TensorError
from openk3.model.config import K3Config
from openk3.model.published import load_config

_NUMBERED = re.compile(r".*-(\d+)-of-(\d+)\.safetensors")


@dataclass
class Report:
    """What was found: ``problems`` (one line each; none means sound), remarks, and how much was looked at.

    ``variants`` are those remarks that tell of tensors stored otherwise than published, but readable all the same.
    """

    folder: Path
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    files: int = 0
    tensors: int = 0
    nbytes: int = 0
    sound_files: list[str] = field(default_factory=list)
    config: K3Config | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_headers(folder: Path, *, progress: Progress | None = None) -> Report:
    """Check names, shapes, dtypes, places and sizes of all tensors; ``progress`` hears each file."""
    report = Report(folder)
    try:
        report.config = load_config(folder)
        index = read_index(folder)
    except (ConfigError, CheckpointError) as error:
        report.problems.append(error.message)
        return report
    _Headers(report, report.config, index).run(progress)
    return report


class _Headers:
    """One pass over the shards of a checkpoint whose configuration and index could be read."""

    def __init__(self, report: Report, config: K3Config, index: Index) -> None:
        self._report, self._config, self._index = report, config, index
        self._inventory = Inventory(config, index.weight_map)
        self._held: set[str] = set()
        self._absent: list[str] = []
        self._variants: dict[str, list[str]] = defaultdict(list)
        self._indexed: dict[str, list[str]] = defaultdict(list)
        for name, file in index.weight_map.items():
            self._indexed[file].append(name)

    def run(self, progress: Progress | None) -> None:
        complete = True
        for file in self._index.files:
            header = self._parse(file)
            complete &= header is not None
            if header is not None:
                self._check(file, header)
            if progress is not None:
                progress(file, 1)
        self._tick_off([name for name in self._absent if name not in self._held])
        for name in self._inventory.missing():
            self._problem(f"{self._report.folder}: {name}: missing from every shard and from the index")
        if complete:
            self._check_total()
        self._check_file_names()
        self._remark()

    def _problem(self, text: str) -> None:
        self._report.problems.append(text)

    def _parse(self, file: str) -> ShardHeader | None:
        path = self._report.folder / file
        try:
            return parse_header(path)
        except CheckpointError as error:
            names = self._indexed[file]
            missing = "" if path.exists() else f"; the index places {len(names)} tensors in it, first {min(names)}"
            self._problem(error.message + missing)
            self._absent += names
            return None

    def _tick_off(self, names: list[str]) -> None:
        """Count tensors as seen whose absence is already reported with the file that should hold them."""
        for name in names:
            try:
                self._inventory.match(name)
            except TensorError as error:
                self._problem(f"{self._report.folder}: {error.message}")

    def _check(self, file: str, header: ShardHeader) -> None:
        report, before = self._report, len(self._report.problems)
        report.problems += [fault.message for fault in layout_faults(header)]
        for stored in header.tensors.values():
            for fault in self._faults(file, stored):
                self._problem(f"{header.path}: {stored.name}: {fault}")
        absent = [name for name in self._indexed[file] if name not in header.tensors]
        for name in absent:
            self._problem(f"{header.path}: {name}: the index places it here, but the shard does not hold it")
        self._absent += absent  # which another shard may hold
        self._held |= header.tensors.keys()
        report.files += 1
        report.tensors += len(header.tensors)
        report.nbytes += sum(stored.nbytes for stored in header.tensors.values())
        if len(report.problems) == before:
            report.sound_files.append(file)

    def _faults(self, file: str, stored: StoredTensor) -> list[str]:
        faults = []
        place = self._index.weight_map.get(stored.name)
        if place != file:
            faults.append("the index does not name it" if place is None else f"the index places it in {place}")
        try:
            spec = self._inventory.match(stored.name).spec
        except TensorError as error:
            return [*faults, error.message.removeprefix(f"{stored.name}: ")]
        if deviation := variant(stored, spec, self._config):
            self._variants[deviation].append(stored.name)
            return faults
        if stored.dtype != spec.dtype:
            faults.append(f"dtype is {stored.dtype}, expected {spec.dtype}")
        if stored.shape != spec.shape:
            faults.append(f"shape is {list(stored.shape)}, expected {list(spec.shape)}")
        return faults

    def _check_total(self) -> None:
        claimed, found = self._index.total_size, self._report.nbytes
        if claimed is not None and claimed != found:
            self._problem(
                f"{self._report.folder}: the index claims {claimed} bytes of tensors, the shards hold {found}"
            )

    def _check_file_names(self) -> None:
        matches = [match for file in self._index.files if (match := _NUMBERED.fullmatch(file))]
        for total in sorted({int(match[2]) for match in matches}):
            numbers = {int(match[1]) for match in matches if int(match[2]) == total}
            for number in sorted(set(range(1, total + 1)) - numbers)[:8]:
                self._problem(f"{self._report.folder}: shard {number} of {total} is not named by the index")
        for path in sorted(self._report.folder.iterdir()):
            if path.name.endswith((".safetensors", ".partial")) and path.name not in self._index.files:
                self._problem(f"{path}: not named by the index")

    def _remark(self) -> None:
        if self._config.vision is not None and not self._inventory.has_vision:
            self._report.notes.append("text only: the configuration has a vision part, the files hold none of it")
        for deviation, names in self._variants.items():
            self._report.variants.append(f"stored as {deviation}: {len(names)} tensors, first {names[0]}")
        self._report.notes += self._report.variants
        for name in sorted(self._inventory.copies):
            self._report.notes.append(f"{name}: a copy of a tensor that is shared with the backbone")
