"""What a stored tensor may be instead of what is published, without meaning anything else.

Unusual: other writers store ``A_log`` as [1, 1, H, 1] and without padding, drop the middle axis of the convolutions'
[P, 1, taps], and keep in 16 bits what is published in 32; all of that can be read.
"""

from __future__ import annotations

from math import prod

from openk3.checkpoint.index import StoredTensor
from openk3.model.catalogue import TensorSpec
from openk3.model.config import K3Config


def variant(stored: StoredTensor, spec: TensorSpec, config: K3Config) -> str | None:
    """Describe how ``stored`` differs from ``spec``; None if it does not, or if it cannot be read as that tensor."""
    differences = []
    if stored.dtype != spec.dtype:
        if spec.dtype != "F32" or stored.dtype not in ("F16", "BF16"):
            return None
        differences.append(f"{stored.dtype} instead of {spec.dtype}")
    if stored.shape != spec.shape:
        if not _same_values(stored.shape, spec, config.kda.num_heads):
            return None
        differences.append(f"{list(stored.shape)} instead of {list(spec.shape)}")
    return " and ".join(differences) or None


def _same_values(shape: tuple[int, ...], spec: TensorSpec, heads: int) -> bool:
    if spec.parameter.endswith(".A_log"):
        return bool(shape) and prod(shape) == max(shape) >= heads
    return spec.parameter.endswith("_conv1d.weight") and shape == (spec.shape[0], *spec.shape[2:])
