"""Rewrites a checkpoint with its routed experts in another format, shard by shard, one tensor in memory.

Unusual: MXFP4 to BF16 is exact; BF16 to MXFP4 measures what it loses; going there and back changes no value (scale
bytes may differ), so a model trained on the 4-bit grid survives both directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch

from openk3.checkpoint.index import read_index
from openk3.checkpoint.inventory import Inventory
from openk3.checkpoint.progress import Progress
from openk3.checkpoint.reader import ShardReader
from openk3.checkpoint.shards import ShardPlan
from openk3.checkpoint.verify import Report, verify_headers
from openk3.checkpoint.writer import Named, write_checkpoint
from openk3.errors import CheckpointError, ConfigError, NumericsError
from openk3.model.catalogue import TensorSpec, expand
from openk3.model.published import load_config
from openk3.ops.mxfp4.reference import pack, unpack

StoredExperts = Literal["mxfp4", "bf16"]


@dataclass
class QuantizationError:
    """Sums over quantised matrices, of squared errors and of squared values; and the worst matrix."""

    squared_error: float = 0.0
    squared_value: float = 0.0
    worst: float = 0.0
    worst_name: str = ""

    @property
    def relative(self) -> float:
        """Root of the mean squared error relative to the values' own."""
        return math.sqrt(self.squared_error / self.squared_value) if self.squared_value else 0.0

    def add(self, name: str, exact: torch.Tensor, rounded: torch.Tensor) -> None:
        """Count one matrix."""
        error = (rounded - exact).square().sum(dtype=torch.float64).item()
        value = exact.square().sum(dtype=torch.float64).item()
        self.squared_error += error
        self.squared_value += value
        relative = math.sqrt(error / value) if value else 0.0
        if relative >= self.worst:
            self.worst, self.worst_name = relative, name


def convert_experts(
    source: Path,
    target: Path,
    experts: StoredExperts,
    *,
    companions: Mapping[str, Path] = MappingProxyType({}),
    progress: Progress | None = None,
) -> QuantizationError | None:
    """Write the checkpoint ``source`` to the folder ``target`` with its experts as ``experts``.

    ``companions`` are copied as they are, before the target counts as a checkpoint.

    Returns what BF16 to MXFP4 lost, None for the exact direction.

    Raises:
        ConfigError: the experts are in that format already, or do not divide into its blocks.
        CheckpointError: ``source`` is not sound, or ``target`` holds weights.
        NumericsError: a weight is NaN, infinite, or beyond the range of BF16.
    """
    config = load_config(source)
    quantized = experts == "mxfp4"
    if config.quantized_experts == quantized:
        raise ConfigError(f"{source}: its experts are stored as {experts} already")
    _require_sound(verify_headers(source))
    stream = _Converted(source)
    target_config = replace(config, quantized_experts=quantized)
    write_checkpoint(target, target_config, stream, vision=stream.has_vision, companions=companions, progress=progress)
    return stream.error if quantized else None


def _require_sound(report: Report) -> None:
    if not report.ok:
        raise CheckpointError(report.problems[0], hint="`openk3 verify` lists everything that is wrong")
    if report.variants:
        raise CheckpointError(
            f"{report.folder}: {report.variants[0]}",
            hint="tensors are copied as they are, so they have to be as published; load and save the model first",
        )


class _Converted:
    """Gives the tensors of the target's shards, reading the source's as they are asked for."""

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self._shards = {file: ShardReader(folder / file) for file in index.files}
        self._file_of = index.weight_map
        self._latest = ""
        self._packed: tuple[torch.Tensor, torch.Tensor] = (torch.empty(0), torch.empty(0))
        self.has_vision = Inventory(load_config(folder), index.weight_map).has_vision
        self.error = QuantizationError()

    def __call__(self, plan: ShardPlan) -> Iterator[Named]:
        """Yield the tensors of one shard of the target."""
        for name, spec, _ in expand(list(plan.specs)):
            if spec.per_expert:
                yield name, self._expert(name, spec)
            else:
                with self._shard(name).lend(name) as view:
                    yield name, view

    def _shard(self, name: str) -> ShardReader:
        return self._shards[self._file_of[name]]

    def _expert(self, name: str, spec: TensorSpec) -> torch.Tensor:
        if spec.dtype == "BF16":
            return self._expand(name)
        stored, part = name.rsplit("_", 1)
        if self._latest != stored:
            self._latest, self._packed = stored, self._quantize(stored)
        return self._packed[0 if part == "packed" else 1]

    def _expand(self, name: str) -> torch.Tensor:
        packed, scale = name + "_packed", name + "_scale"
        with self._shard(packed).lend(packed) as codes, self._shard(scale).lend(scale) as scales:
            values = unpack(codes, scales, torch.bfloat16)
        if not values.isfinite().all():
            raise NumericsError(
                f"{name}: a value is NaN or beyond the range of BF16",
                hint="`openk3 verify --deep` says which scale bytes are not plausible",
            )
        return values

    def _quantize(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        with self._shard(name).lend(name) as view:
            exact = view.float()
        packed, scale = pack(exact)
        if (scale == 255).any():
            raise NumericsError(f"{name}: a value is NaN or infinite, which MXFP4 cannot hold")
        self.error.add(name, exact, unpack(packed, scale))
        return packed, scale
