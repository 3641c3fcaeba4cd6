"""What a checkpoint holds against what its configuration asks for: every tensor once, and nothing else.

Unusual: the vision part may be absent as a whole (a text-only checkpoint), and MTP layers may carry copies of embedding
and head that the backbone already has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from openk3.checkpoint.names import VISION_ROOTS, Slot, to_name, to_slot
from openk3.errors import TensorError
from openk3.model.catalogue import TensorSpec, catalogue, mtp_copies
from openk3.model.config import K3Config


class Match(NamedTuple):
    """The spec that a stored tensor answers to, its expert's number, and whether it is a copy of a backbone tensor."""

    spec: TensorSpec
    expert: int
    is_copy: bool


class Inventory:
    """Ticks off the tensors of one checkpoint; ``names`` (of the index) decide whether a vision part is expected."""

    def __init__(self, config: K3Config, names: Iterable[str]) -> None:
        self.has_vision = any(name.startswith(VISION_ROOTS) for name in names)
        specs = catalogue(config, vision=self.has_vision)
        self._config = config
        self._specs = {spec.parameter: spec for spec in specs}
        self._copies = mtp_copies(config)
        self._seen: dict[str, set[int]] = {spec.parameter: set() for spec in specs}
        self.copies: set[str] = set()

    def match(self, name: str) -> Match:
        """Tick off ``name``; raise `TensorError` if nothing asks for it, or if it was there before."""
        if name in self._copies:
            if name in self.copies:
                raise TensorError(f"{name}: a second tensor of this name")
            self.copies.add(name)
            return Match(replace(self._copies[name], name=name), 0, True)
        parameter, expert = to_slot(name)
        spec = self._specs.get(parameter)
        if spec is None or (expert or 0) >= spec.experts:
            raise TensorError(f"{name}: not expected: {self._reason(spec, expert)}")
        if (expert or 0) in self._seen[parameter]:
            raise TensorError(f"{name}: a second tensor of this name")
        self._seen[parameter].add(expert or 0)
        return Match(spec, expert or 0, False)

    def missing(self) -> Iterator[str]:
        """Yield the names that are asked for and were not ticked off."""
        for spec in self._specs.values():
            seen = self._seen[spec.parameter]
            if len(seen) < spec.experts:
                yield from (
                    to_name(Slot(spec.parameter, expert if spec.per_expert else None))
                    for expert in range(spec.experts)
                    if expert not in seen
                )

    def _reason(self, spec: TensorSpec | None, expert: int | None) -> str:
        if spec is not None:
            return f"expert {expert} of a model with {spec.experts}"
        stored = "MXFP4" if self._config.quantized_experts else "unquantised"
        return (
            f"no tensor of this model has this name (experts {stored} by its config.json)"
            if expert is not None
            else ("no tensor of this model has this name")
        )
