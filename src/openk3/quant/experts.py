"""Where the routed experts' matrices live: as plain tensors, or packed as MXFP4 and expanded one expert at a time.

Unusual: the matrices of all experts of a layer are stacked, although the checkpoint names each expert's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from openk3.ops.mxfp4.reference import unpack

ExpertFormat = Literal["plain", "packed"]
MATRICES = ("w1", "w3", "w2")  # gate, up, down


class ExpertMatrices(NamedTuple):
    """One expert: ``w1`` (gate) and ``w3`` (up) [F, L], ``w2`` (down) [L, F]."""

    w1: Tensor
    w3: Tensor
    w2: Tensor


def matrix_shape(name: str, latent_size: int, intermediate_size: int) -> tuple[int, int]:
    """Return [rows, columns] of expert matrix ``name``."""
    return (latent_size, intermediate_size) if name == "w2" else (intermediate_size, latent_size)


class PlainExperts(nn.Module):
    """Experts as parameters ``w1`` ``w3`` [E, F, L] and ``w2`` [E, L, F].

    ``quantizer``, if set, is applied to each stack before use: fake quantisation while training.
    """

    def __init__(self, num_experts: int, latent_size: int, intermediate_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.quantizer: Callable[[Tensor], Tensor] | None = None
        for name in MATRICES:
            shape = matrix_shape(name, latent_size, intermediate_size)
            setattr(self, name, nn.Parameter(torch.empty(num_experts, *shape, dtype=dtype)))

    def opened(self, dtype: torch.dtype) -> Callable[[int], ExpertMatrices]:
        """Return a function from expert number to its matrices in ``dtype``, to be used within one forward pass."""
        stacks = (getattr(self, name) for name in MATRICES)
        # one unbind per stack: indexing each expert would give every one of them a gradient the size of the stack
        lists = [(self.quantizer(w) if self.quantizer else w).to(dtype).unbind(0) for w in stacks]
        return lambda expert: ExpertMatrices(*(matrices[expert] for matrices in lists))


class PackedExperts(nn.Module):
    """Experts as MXFP4 buffers ``w1_packed`` [E, F, L/2] and ``w1_scale`` [E, F, L/32] uint8, and so for w3 and w2."""

    def __init__(self, num_experts: int, latent_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        for name in MATRICES:
            rows, columns = matrix_shape(name, latent_size, intermediate_size)
            for part, width in (("packed", columns // 2), ("scale", columns // 32)):
                self.register_buffer(f"{name}_{part}", torch.empty(num_experts, rows, width, dtype=torch.uint8))

    def opened(self, dtype: torch.dtype) -> Callable[[int], ExpertMatrices]:
        """Return a function from expert number to its matrices, expanded to ``dtype`` at each call."""

        def matrices(expert: int) -> ExpertMatrices:
            parts = ((getattr(self, f"{name}_packed"), getattr(self, f"{name}_scale")) for name in MATRICES)
            return ExpertMatrices(*(unpack(packed[expert], scale[expert], dtype) for packed, scale in parts))

        return matrices


def make_experts(
    format: ExpertFormat, num_experts: int, latent_size: int, intermediate_size: int, dtype: torch.dtype
) -> PlainExperts | PackedExperts:
    """Build empty storage for a layer's routed experts."""
    if format == "packed":
        return PackedExperts(num_experts, latent_size, intermediate_size)
    return PlainExperts(num_experts, latent_size, intermediate_size, dtype)
