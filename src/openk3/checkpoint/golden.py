"""Runs a model on recorded inputs and compares everything recorded that it knows.

Unusual: the same prompt is run whole, token by token and in random pieces, because those are different code with one
right answer; bfloat16 is judged with the recorded choice of experts imposed, since another choice is another sum.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from openk3.checkpoint.golden_limits import BF16_RMS_FACTOR, Limit, Limits
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.progress import Progress
from openk3.checkpoint.reader import ShardReader
from openk3.errors import CheckpointError
from openk3.model.model import K3ForCausalLM
from openk3.model.state import SequenceState

_EXACT = ("router_experts",)
_TRACE = re.compile(r"trace\.len(?P<length>\d+)\.(?P<name>.+)")
_LAYER_NAME = re.compile(r"layer(\d+)\.(.+)")
_LONGEST_STEPPED = 1024


@dataclass(frozen=True)
class Check:
    """One comparison: what, computed how, largest and median difference, and the limit of each."""

    name: str
    how: str
    passed: bool
    largest: float
    median: float
    limit: float
    median_limit: float
    detail: str = ""


@dataclass
class GoldenReport:
    """All comparisons of one record, and the recorded names that nothing was compared with."""

    limits: str
    checks: list[Check] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything compared was within its limit."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; limits that do not limit, and differences that are NaN, are null."""

        def plain(check: Check) -> dict[str, Any]:
            return {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in asdict(check).items()
            }

        return {
            "ok": self.ok,
            "limits": self.limits,
            "not_checked": self.not_checked,
            "checks": [plain(check) for check in self.checks],
        }


def run_golden(folder: Path, golden: Path, limits: Limits, *, progress: Progress | None = None) -> GoldenReport:
    """Compare the model in ``folder`` with the record ``golden``; ``progress`` hears each comparison.

    Raises:
        CheckpointError: the model or the record cannot be read, or nothing of the record is known.
    """
    record = Record(golden)
    report = GoldenReport(limits.source)
    stages = (
        (torch.float32, _float32_checks, ""),
        (torch.float64, _float64_checks, "logits_f64"),
        (torch.bfloat16, _bfloat16_checks, "bf16_forced.logits"),
    )
    for dtype, stage, needs in stages:
        if needs and not record.lengths(needs):
            continue
        model = load_model(folder, dtype=dtype)
        with torch.inference_mode():
            for check in stage(model, record, limits):
                report.checks.append(check)
                if progress is not None:
                    progress(f"{check.name} {check.how}", 1)
    report.not_checked = sorted(record.names - record.used)
    if not report.checks:
        raise CheckpointError(
            f"{golden}: none of its {len(record.names)} tensors could be compared",
            hint="expected input_ids.len* with logits.len* or trace.len*, or greedy.*",
        )
    return report


def count_comparisons(golden: Path) -> int:
    """Return how many comparisons `run_golden` plans; fewer are made if a trace is not one that the model shows.

    Raises:
        CheckpointError: the record cannot be read.
    """
    record = Record(golden)
    count = sum(name.startswith("greedy.") and not name.endswith(".prompt") for name in record.names)
    count += len(record.lengths("logits_f64")) + len(record.lengths("bf16_forced.logits"))
    for length in record.lengths("input_ids"):
        ways = 3 if int(length) <= _LONGEST_STEPPED else 2
        count += len(record.traces(length)) + ways * (f"logits.len{length}" in record)
    return count


class Record:
    """The recorded tensors; remembers which were asked for."""

    def __init__(self, path: Path) -> None:
        self._reader = ShardReader(path)
        self.names = set(self._reader.header.tensors)
        self.used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> torch.Tensor:
        self.used.add(name)
        return self._reader.copy(name)

    def lengths(self, kind: str) -> list[str]:
        """Return the lengths for which ``kind`` and the inputs it belongs to are recorded, ascending."""
        found = (name.removeprefix(f"{kind}.len") for name in self.names if name.startswith(f"{kind}.len"))
        return sorted((n for n in found if n.isdecimal() and f"input_ids.len{n}" in self.names), key=int)

    def traces(self, length: str) -> dict[str, str]:
        """Map what the model calls a value to its recorded name, for prompts of ``length``."""
        matches = ((name, _TRACE.fullmatch(name)) for name in sorted(self.names))
        return {match["name"]: name for name, match in matches if match and match["length"] == length}


def compare(name: str, how: str, actual: torch.Tensor, recorded: torch.Tensor, limit: Limit) -> Check:
    """Compare float tensors by their absolute difference, in float64."""
    if actual.shape != recorded.shape:
        return _wrong_shape(name, how, actual, recorded, limit)
    difference = (actual.double() - recorded.double()).abs()
    same = torch.eq(actual.double(), recorded.double())  # equal infinities differ by NaN
    difference = torch.where(same, 0.0, difference).flatten()
    largest, median = (difference.max().item(), difference.median().item()) if len(difference) else (0.0, 0.0)
    return Check(
        name, how, largest <= limit.largest and median <= limit.median, largest, median, limit.largest, limit.median
    )


def compare_exactly(name: str, how: str, actual: torch.Tensor, recorded: torch.Tensor) -> Check:
    """Compare integers, along the last axis as sets if they are chosen experts; the difference is a count."""
    if actual.shape != recorded.shape:
        return _wrong_shape(name, how, actual, recorded, Limit(0.0))
    wrong = actual.long() != recorded.long()
    count = int(wrong.sum())
    detail = f"{count} of {wrong.numel()} differ, first at {wrong.nonzero()[0].tolist()}" if count else "identical"
    return Check(name, how, not count, float(count), 0.0, 0.0, math.inf, detail)


def _wrong_shape(name: str, how: str, actual: torch.Tensor, recorded: torch.Tensor, limit: Limit) -> Check:
    detail = f"shape is {list(actual.shape)}, recorded is {list(recorded.shape)}"
    return Check(name, how, False, math.nan, math.nan, limit.largest, limit.median, detail)


def _float32_checks(model: K3ForCausalLM, record: Record, limits: Limits) -> Iterator[Check]:
    for length in record.lengths("input_ids"):
        ids = record[f"input_ids.len{length}"].long()
        seen, logits = _observed_run(model, ids)
        name = f"logits.len{length}"
        if name in record:
            yield compare(name, "prefill", logits, record[name], limits.of("logits"))
            yield from _pieces_checks(model, ids, name, record[name], limits.of("logits"))
        yield from _trace_checks(seen, record, length, limits)
    yield from _greedy_checks(model, record, limits)


def _pieces_checks(
    model: K3ForCausalLM, ids: torch.Tensor, name: str, recorded: torch.Tensor, limit: Limit
) -> Iterator[Check]:
    ways = {"random split": _random_pieces(len(ids))}
    if len(ids) <= _LONGEST_STEPPED:
        ways["step by step"] = [1] * len(ids)
    for how, pieces in ways.items():
        state = model.new_state()
        logits = torch.cat([model(part, [len(part)], [state]) for part in ids.split(pieces)])
        yield compare(name, how, logits, recorded, limit)


def _random_pieces(total: int) -> list[int]:
    """Cut ``total`` into random positive pieces, the same ones each time."""
    rng, pieces = random.Random(total), []
    while total:
        pieces.append(rng.randint(1, min(total, 24)))
        total -= pieces[-1]
    return pieces


def _observed_run(model: K3ForCausalLM, ids: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Run a prompt whole; return what the layers showed, with the states after it under the record's names."""
    seen: dict[str, torch.Tensor] = {}
    state = model.new_state()
    logits = model(ids, [len(ids)], [state], observe=seen.__setitem__)
    seen.update(_state_values(state))
    return seen, logits


def _state_values(state: SequenceState) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield states in the reference's layouts: recurrent [H, V, K], convolution inputs [channel, token]."""
    for layer, kda in state.kda.items():
        yield f"layer{layer}.kda_state_vk", state.settled(layer).transpose(-1, -2)
        for stream, inputs in zip("qkv", kda.conv.T.chunk(3), strict=True):
            yield f"layer{layer}.conv_state_{stream}", inputs
    for layer, cache in state.mla.items():
        yield f"layer{layer}.mla_cache", cache.entries


def _trace_checks(seen: dict[str, torch.Tensor], record: Record, length: str, limits: Limits) -> Iterator[Check]:
    for value, name in record.traces(length).items():
        if value not in seen:
            continue
        actual, recorded = seen[value], record[name]
        quantity = value.rsplit(".", 1)[-1]
        if quantity.startswith("conv_state_"):  # the reference keeps one input more than the convolution needs
            recorded = recorded[:, -actual.shape[-1] :]
        if quantity in _EXACT:
            yield compare_exactly(name, "prefill", actual.sort(-1).values, recorded.sort(-1).values)
        else:
            yield compare(name, "prefill", actual, recorded, limits.of(quantity, length))


def _greedy_checks(model: K3ForCausalLM, record: Record, limits: Limits) -> Iterator[Check]:
    numbers = [name.split(".")[1] for name in record.names if re.fullmatch(r"greedy\.\d+\.prompt", name)]
    for number in sorted(numbers, key=int):
        tokens_name, logits_name = f"greedy.{number}.tokens", f"greedy.{number}.logits"
        if tokens_name not in record:
            continue
        expected = record[tokens_name]
        tokens, logits = _continue(model, record[f"greedy.{number}.prompt"].long(), len(expected))
        yield compare_exactly(tokens_name, "greedy", tokens, expected)
        if logits_name in record:
            yield compare(logits_name, "greedy", logits, record[logits_name], limits.of("logits"))


def _continue(model: K3ForCausalLM, prompt: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``count`` greedy tokens and the logits that each was taken from; no token stops it."""
    state, ids, rows = model.new_state(), prompt, []
    for _ in range(count):
        rows.append(model(ids, [len(ids)], [state], last_only=True)[0])
        ids = rows[-1].argmax().view(1)
    logits = torch.stack(rows)
    return logits.argmax(-1), logits


def _float64_checks(model: K3ForCausalLM, record: Record, limits: Limits) -> Iterator[Check]:
    model.double()  # also the parameters that are float32 in a model of any dtype, or their exponentials are rounded
    for length in record.lengths("logits_f64"):
        ids = record[f"input_ids.len{length}"].long()
        logits = model(ids, [len(ids)])
        name = f"logits_f64.len{length}"
        yield compare(name, "float64", logits, record[name], limits.of("logits_f64"))


def _bfloat16_checks(model: K3ForCausalLM, record: Record, limits: Limits) -> Iterator[Check]:
    for length in record.lengths("bf16_forced.logits"):
        name, exact_name = f"bf16_forced.logits.len{length}", f"logits.len{length}"
        if exact_name not in record:
            continue
        experts = _recorded_experts(record, length)
        if any(model.config.is_moe(layer) and layer not in experts for layer in range(model.config.num_hidden_layers)):
            continue
        ids, exact = record[f"input_ids.len{length}"].long(), record[exact_name]
        logits = model(ids, [len(ids)], imposed_experts=experts)
        allowed = BF16_RMS_FACTOR * _rms(record[name].double() - exact.double())
        difference = logits.double() - exact.double()
        found = _rms(difference)
        yield Check(
            name,
            "bfloat16, experts imposed",
            found <= allowed,
            found,
            difference.abs().median().item(),
            allowed,
            math.inf,
            "root mean square to the float32 logits",
        )


def _recorded_experts(record: Record, length: str) -> dict[int, torch.Tensor]:
    found = ((_LAYER_NAME.fullmatch(value), name) for value, name in record.traces(length).items())
    return {int(match[1]): record[name].long() for match, name in found if match and match[2] == "router_experts"}


def _rms(difference: torch.Tensor) -> float:
    return difference.square().mean().sqrt().item()
