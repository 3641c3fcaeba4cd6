"""How far a run may be from a recorded one: limits stored beside the record, or derived from its measured noise.

Unusual: ``limits.json`` maps a quantity (``logits``, ``logits_f64``, ``kda_o``, …, or ``trace`` for all other traces)
to ``{"max": …, "median": …}``. Without it, limits follow from ``measured.json``, which holds the differences that the
reference shows between its own equivalent forms:

- logits: maximum 6 times, median 4.5 times the largest measured over all forms and lengths, at least 1e-3 and 3e-5;
- traces: 6 times the largest measured at that length, in two classes (read-outs, states, gates and weights of order
  0.1 to 1, at least 2e-5; and all others, at least 3e-4), because a single tensor's noise is a poor sample;
- a float64 evaluation: four times the rounding of the record itself to float32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openk3.errors import CheckpointError

LOGITS_FACTOR, MEDIAN_FACTOR, TRACE_FACTOR, ROUNDING_FACTOR = 6.0, 4.5, 6.0, 4.0
BF16_RMS_FACTOR = 1.5
# measured noise is a sample: with less than this allowed, another right machine could be beyond the limit
LOGITS_FLOOR, MEDIAN_FLOOR = 1e-3, 3e-5
_CLASS_FLOORS = {"small": 2e-5, "trace": 3e-4}
_SMALL = frozenset({"kda_o", "kda_state_vk", "kda_beta", "router_weights"})


@dataclass(frozen=True)
class Limit:
    """Largest allowed maximum and median of absolute differences; an infinite one does not limit."""

    largest: float
    median: float = math.inf


class Limits:
    """Limits by quantity and length; ``source`` says where they come from."""

    def __init__(self, source: str, by_quantity: Mapping[tuple[str, str], Limit], default: Limit | None = None) -> None:
        self.source, self._by_quantity, self._default = source, dict(by_quantity), default

    def of(self, quantity: str, length: str = "") -> Limit:
        """Return the limit of ``quantity`` (as ``logits`` or ``kda_o``) for prompts of ``length``."""
        kind = "logits" if quantity.startswith("logits") else "small" if quantity in _SMALL else "trace"
        fallback = "logits" if kind == "logits" else "trace"
        for key in ((quantity, ""), (kind, length), (kind, ""), (fallback, "")):
            if key in self._by_quantity:
                return self._by_quantity[key]
        if self._default is None:
            raise CheckpointError(f"no limit for {quantity} in {self.source}", hint="give one with --limit")
        return self._default


def find_limits(golden: Path, limit: float | None) -> Limits:
    """Return the limits of a record: ``limit`` if given, else ``limits.json`` or ``measured.json`` beside it.

    Raises:
        CheckpointError: there is none, or a file that cannot be understood.
    """
    if limit is not None:
        return Limits("--limit", {}, Limit(limit))
    for name, read in (("limits.json", _stored), ("measured.json", _derived)):
        path = golden.with_name(name)
        if path.is_file():
            try:
                return Limits(str(path), dict(read(json.loads(path.read_text(encoding="utf-8")))))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"{path}: not limits in a known form: {error!r:.120}",
                    hint="give one limit for everything with --limit",
                ) from None
    raise CheckpointError(f"{golden}: no limits.json or measured.json lies beside it", hint="give a limit with --limit")


def _stored(raw: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[tuple[str, str], Limit]]:
    for quantity, limit in raw.items():
        if not set(limit) <= {"max", "median"}:
            raise ValueError(f"{quantity} has {sorted(limit)}, expected max and median")
        yield (quantity, ""), Limit(float(limit["max"]), float(limit.get("median", math.inf)))


def _derived(raw: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Limit]]:
    pairs = [pair for lengths in raw["logits_maxabs_and_median_difference"].values() for pair in lengths.values()]
    largest = max(LOGITS_FLOOR, LOGITS_FACTOR * max(pair[0] for pair in pairs))
    yield ("logits", ""), Limit(largest, max(MEDIAN_FLOOR, MEDIAN_FACTOR * max(pair[1] for pair in pairs)))
    if "logit_absmax" in raw:
        half_ulp = math.ldexp(1.0, math.frexp(raw["logit_absmax"])[1] - 25)
        yield ("logits_f64", ""), Limit(ROUNDING_FACTOR * half_ulp)
    overall: dict[str, float] = {}
    for length, tensors in raw.get("trace_maxabs", {}).items():
        for kind, noise in _class_noise(tensors).items():
            overall[kind] = max(overall.get(kind, 0.0), noise)
            yield (kind, length), _class_limit(kind, noise)
    for kind, noise in overall.items():
        yield (kind, ""), _class_limit(kind, noise)


def _class_limit(kind: str, noise: float) -> Limit:
    return Limit(max(_CLASS_FLOORS[kind], TRACE_FACTOR * noise))


def _class_noise(tensors: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    noise: dict[str, float] = {}
    for name, measured in tensors.items():
        kind = "small" if name in _SMALL else "trace"
        noise[kind] = max(noise.get(kind, 0.0), measured["rec_vs_fp64"], measured["chunk_vs_rec"])
    return noise
