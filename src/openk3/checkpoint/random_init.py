"""Random weights in a regime where mistakes show: norms near one, mixes far from uniform, all sixteen 4-bit codes.

Unusual: each tensor's numbers follow from the seed and its own name alone, so any tensor can be made without the
others, in any order, and the same ones are written to disk and filled into a module.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
import torch

from openk3.checkpoint.reader import DTYPES
from openk3.checkpoint.shards import ShardPlan
from openk3.model.catalogue import TensorSpec, catalogue, expand
from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.ops.mxfp4.reference import unpack

SCALE_BYTES = (118, 126)
# values drawn at once: bounds memory for the largest tensors, and is part of what the numbers are
_CHUNK = 1 << 22


def random_tensor(spec: TensorSpec, expert: int, config: K3Config, seed: int) -> torch.Tensor:
    """Return the tensor of ``spec`` (and ``expert``) as a file stores it; depends on ``seed`` and its name only."""
    name = spec.name_of(expert)
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    if spec.dtype == "U8":
        low, high = SCALE_BYTES if spec.parameter.endswith("_scale") else (0, 255)
        return torch.from_numpy(rng.integers(low, high, size=spec.shape, dtype=np.uint8, endpoint=True))
    tensor = torch.empty(math.prod(spec.shape), dtype=DTYPES[spec.dtype])
    for start in range(0, len(tensor), _CHUNK):
        part = tensor[start : start + _CHUNK]
        part.copy_(torch.from_numpy(_draw(rng, len(part), spec, config)))
    if spec.parameter.endswith(".A_log"):
        tensor[config.kda.num_heads :] = 0.0
    return tensor.view(spec.shape)


class RandomSource:
    """Gives `openk3.checkpoint.writer.write_checkpoint` random tensors."""

    def __init__(self, config: K3Config, seed: int) -> None:
        self._config, self._seed = config, seed

    def __call__(self, plan: ShardPlan) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of one shard."""
        for name, spec, expert in expand(list(plan.specs)):
            yield name, random_tensor(spec, expert, self._config, self._seed)


@torch.no_grad()
def init_parameters(model: K3ForCausalLM, seed: int) -> None:
    """Fill ``model`` with the numbers that ``openk3 init --seed`` writes, in place; packed or plain experts alike."""
    config = model.config
    targets = dict(model.named_parameters()) | dict(model.named_buffers())
    specs = {spec.parameter: spec for spec in catalogue(config, vision=False)}
    for parameter, target in targets.items():
        if parameter in specs and not specs[parameter].per_expert:
            drawn = random_tensor(specs[parameter], 0, config, seed)
            target.copy_(drawn[: len(target)])
            continue
        for expert in range(len(target)):
            target[expert].copy_(_expert(specs, parameter, expert, config, seed, target.dtype))


def _expert(
    specs: dict[str, TensorSpec], stack: str, expert: int, config: K3Config, seed: int, dtype: torch.dtype
) -> torch.Tensor:
    if stack in specs:
        return random_tensor(specs[stack], expert, config, seed)
    packed, scale = (random_tensor(specs[stack + part], expert, config, seed) for part in ("_packed", "_scale"))
    return unpack(packed, scale, dtype)


def _draw(rng: np.random.Generator, count: int, spec: TensorSpec, config: K3Config) -> np.ndarray:
    low, high = _range(spec.parameter)
    if high > low:
        return rng.random(count, dtype=np.float32) * np.float32(high - low) + np.float32(low)
    return rng.standard_normal(count, dtype=np.float32) * np.float32(_deviation(spec, config))


def _range(parameter: str) -> tuple[float, float]:
    """Return the bounds of tensors that are drawn uniformly, or an empty range for the others."""
    if parameter.endswith(".A_log"):
        return -0.5, 1.0
    if parameter.endswith(".dt_bias"):
        return -4.0, 2.0
    if parameter.endswith(".e_score_correction_bias"):
        return -0.1, 0.1
    if "norm" in parameter.rsplit(".", 2)[-2]:
        return 0.9, 1.1
    return 0.0, 0.0


def _deviation(spec: TensorSpec, config: K3Config) -> float:
    if spec.parameter.endswith("_res_proj.weight"):
        return 0.1
    if spec.parameter.endswith("_conv1d.weight"):
        return 0.5
    fan_in = math.prod(spec.shape[1:])
    # the configured deviation lets signals die out in tiny widths
    return max(config.initializer_range, 1.0 / math.sqrt(fan_in))
