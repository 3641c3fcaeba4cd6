"""What it costs that a row's result does not depend on the rows beside it: padded products against plain ones.

Unusual: the same model takes turns with the padding and without it, in one process, on the same states. Run from the
repository root: ``python -m benchmarks.engine_row_independence``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.engine_runs import conditions, model_of, random_ids
from benchmarks.result import write_result
from openk3.model.model import K3ForCausalLM
from openk3.ops import row_independent

REPEATS = {"nano": 40, "mid": 12}
CASES = ((1, 1), (2, 1), (8, 1), (16, 1), (32, 1), (1, 5), (1, 128))
SHAPES = ((512, 1024), (1024, 1024), (4096, 1024), (768, 512), (32_768, 1024))
ROWS = (1, 2, 8, 16, 128)


def plain_batched(x: Tensor, right: Tensor) -> Tensor:
    """Return ``x @ right``."""
    return x @ right


def plain_elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``function(x)``."""
    return function(x)


PLAIN = {
    "linear": F.linear,
    "batched_rows": plain_batched,
    "elementwise": plain_elementwise,
    "rows_in_whole_vectors": lambda width: 1,
}


@contextmanager
def without_padding() -> Iterator[None]:
    """Put the plain forms in the place of the padded ones wherever they are used."""
    replaced = [
        (module, name, getattr(row_independent, name))
        for module in list(sys.modules.values())
        for name in PLAIN
        if getattr(module, name, None) is getattr(row_independent, name)
    ]
    for module, name, _ in replaced:
        setattr(module, name, PLAIN[name])
    try:
        yield
    finally:
        for module, name, padded in replaced:
            setattr(module, name, padded)


def seconds(run: Callable[[], object]) -> float:
    """Time one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compared(run: Callable[[], object], repeats: int) -> dict[str, float]:
    """Time ``run`` with padding and without in turns; return the medians and the extra time, as parts of the plain."""
    pairs = []
    for number in range(repeats + 1):
        first = seconds(run) if number % 2 else None
        with without_padding():
            plain = seconds(run)
        pairs.append((seconds(run) if first is None else first, plain))
    timed = pairs[1:]  # the first one is for warming up
    padded, plain = (statistics.median(times) for times in zip(*timed, strict=True))
    extra = statistics.median(one / other for one, other in timed) - 1
    return {"padded_ms": round(1000 * padded, 3), "plain_ms": round(1000 * plain, 3), "extra": round(extra, 4)}


@torch.inference_mode()
def measure(name: str) -> list[dict[str, Any]]:
    """Compare whole passes of one model: sequences, and new tokens of each behind a prompt of 32."""
    model, found = model_of(name), []
    for count, length in CASES:
        found.append(
            {"sequences": count, "tokens_each": length, **compared(pass_of(model, count, length), REPEATS[name])}
        )
    return found


def pass_of(model: K3ForCausalLM, count: int, length: int) -> Callable[[], object]:
    """Return a pass that can be repeated: states are marked and taken back."""
    states = [model.new_state() for _ in range(count)]
    model(torch.tensor(random_ids(model, 32 * count, 0)), [32] * count, states)
    ids = torch.tensor(random_ids(model, length * count, 1))

    def run() -> None:
        marks = [state.mark() for state in states]
        model(ids, [length] * count, states, last_only=True)
        for state, mark in zip(states, marks, strict=True):
            state.rewind(mark)

    return run


def ten_products(x: Tensor, weight: Tensor) -> None:
    """Multiply ten times, by the form that the name stands for now."""
    for _ in range(10):
        row_independent.linear(x, weight)


@torch.inference_mode()
def products(repeats: int) -> list[dict[str, Any]]:
    """Compare single bfloat16 products of mid's shapes."""
    found = []
    for out, width in SHAPES:
        weight = torch.randn(out, width).to(torch.bfloat16)
        for rows in ROWS:
            x = torch.randn(rows, width).to(torch.bfloat16)
            times = compared(partial(ten_products, x, weight), repeats)
            found.append({"out": out, "in": width, "rows": rows, "ten_products": times})
    return found


def main() -> None:
    """Measure and write the result."""
    figures: dict[str, Any] = {}
    for name in REPEATS:
        passes = measure(name)
        figures[name] = {**conditions(), "passes": passes}
    figures["products"] = products(20)
    write_result("engine_row_independence", "passes with row-independent forms and with plain ones, bfloat16", figures)


if __name__ == "__main__":
    main()
