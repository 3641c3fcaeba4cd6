"""How fast the plain PyTorch model reads, writes and learns, beside what the machine could do.

Unusual: each figure stands beside a limit measured in the same run: matrix products of the model's own width for
reading and learning, memory traffic for writing. Run from the repository root: ``python -m benchmarks.model_speed``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.result import write_result
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.resolve import resolve_model
from openk3.model.accounting import account
from openk3.model.model import K3ForCausalLM
from openk3.train.loss import next_token_loss

PROMPT = 512
STEPS = 64
REPEATS = 5
TRAINING_DOCUMENTS = [128] * 24


def median_seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of ``run``, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def flops_per_second(rows: int, width: int) -> float:
    """Measure float32 products [rows, width] x [width, width], as most of the model's are."""
    x, w = torch.randn(rows, width), torch.randn(width, width)
    repeats = 50
    return 2 * rows * width**2 * repeats / median_seconds(lambda: [x @ w for _ in range(repeats)])


def bytes_per_second() -> float:
    """Measure how fast a buffer larger than the caches is read."""
    buffer = torch.ones(64 * 2**20)
    return buffer.numel() * 4 / median_seconds(buffer.sum)


@torch.inference_mode()
def read(model: K3ForCausalLM, ids: torch.Tensor) -> float:
    """Return prompt tokens per second of one fresh sequence."""
    return len(ids) / median_seconds(lambda: model(ids, [len(ids)], [model.new_state()], last_only=True))


@torch.inference_mode()
def write(model: K3ForCausalLM, ids: torch.Tensor) -> float:
    """Return generated tokens per second of one sequence that has read ``ids``."""
    start = model.new_state()
    model(ids, [len(ids)], [start])

    def steps() -> None:
        state, token = start.clone(), ids[-1:]
        for _ in range(STEPS):
            token = model(token, [1], [state], last_only=True)[0].argmax(keepdim=True)

    return STEPS / median_seconds(steps)


def learn(model: K3ForCausalLM) -> float:
    """Return training tokens per second: forward and backward over packed documents, no optimiser."""
    ids = torch.randint(model.config.vocab_size, (sum(TRAINING_DOCUMENTS),))

    def step() -> None:
        total, count = next_token_loss(model.hidden(ids, TRAINING_DOCUMENTS), model.lm_head.weight, ids)
        (total / count).backward()
        model.zero_grad(set_to_none=True)

    return len(ids) / median_seconds(step)


def main() -> None:
    """Measure the bundled model in float32 and write the result."""
    torch.manual_seed(0)
    model = load_model(resolve_model("nano"), dtype=torch.float32, experts="plain")
    sizes = account(model.config, vision=False)
    peak, traffic = flops_per_second(PROMPT, model.config.hidden_size), bytes_per_second()
    ids = torch.randint(model.config.vocab_size, (PROMPT,))
    reading, writing, learning = read(model, ids), write(model, ids), learn(model)
    flops, active_bytes = sizes.flops.per_token, 4 * sizes.active_parameters
    figures = {
        "model": "nano",
        "dtype": "float32",
        "threads": torch.get_num_threads(),
        "flops_per_token": flops,
        "read_tokens_per_second": round(reading),
        "read_share_of_matrix_peak": round(reading * flops / peak, 3),
        "write_tokens_per_second": round(writing),
        "write_share_of_memory_peak": round(writing * active_bytes / traffic, 3),
        "learn_tokens_per_second": round(learning),
        "learn_share_of_matrix_peak": round(3 * learning * flops / peak, 3),
        "matrix_peak_flops": round(peak),
        "memory_peak_bytes_per_second": round(traffic),
    }
    write_result("model_speed", "reading a prompt, writing one sequence, learning from packed documents", figures)


if __name__ == "__main__":
    main()
