"""Muon for matrices, AdamW for the rest, and which parameter is which.

Unusual: Muon orthogonalises blocks, not parameters: each head of q, k and v alone and each expert alone, all blocks of
one shape in one batched iteration. That is why ``torch.optim.Muon`` does not fit: it takes 2-D
parameters only, and would move an expert that saw no token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from openk3.model.config import K3Config
from openk3.train.config import OptimConfig

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_UPDATE_RMS = 0.2  # of a typical AdamW update, so that one learning rate serves both optimisers
_PER_HEAD_KDA = ("q_proj", "k_proj", "v_proj")
_PER_HEAD_MLA = ("q_b_proj", "kv_b_proj")


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Which optimiser a parameter goes to, in how many row blocks, and whether its weights decay."""

    muon: bool
    blocks: int = 1
    decay: bool = True


def assign(name: str, parameter: Tensor, config: K3Config) -> Assignment:
    """Decide for the parameter called ``name`` (Kimi K3 report, sections 2.5 and 3.3)."""
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return Assignment(muon=False)
    matrices = parameter.ndim == 3 and ".experts." in name
    if not matrices and (parameter.ndim != 2 or parameter.shape[0] == 1):
        return Assignment(muon=False, decay=False)  # norms, biases, decay rates, convolutions, residual queries
    return Assignment(muon=True, blocks=parameter.shape[0] if matrices else _num_heads(name, config))


def _num_heads(name: str, config: K3Config) -> int:
    parts = name.split(".")
    if "self_attn" not in parts:
        return 1
    layer, matrix = int(parts[parts.index("layers") + 1]), parts[-2]
    if layer in config.kda_layers:
        return config.kda.num_heads if matrix in _PER_HEAD_KDA else 1
    return config.mla.num_heads if matrix in _PER_HEAD_MLA else 1


def build_optimizers(model: nn.Module, config: K3Config, settings: OptimConfig) -> list[Optimizer]:
    """Return the optimisers that together own every parameter of ``model``, each exactly once."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    muon: dict[int, list[Tensor]] = {}
    adamw: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in named:
        chosen = assign(name, parameter, config)
        if chosen.muon and settings.kind == "muon":
            muon.setdefault(chosen.blocks, []).append(parameter)
        else:
            adamw[chosen.decay].append(parameter)
    groups = [
        {"params": params, "weight_decay": settings.weight_decay if decay else 0.0}
        for decay, params in adamw.items()
        if params
    ]
    optimizers: list[Optimizer] = [AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=1e-8)]
    if muon:
        blocks = [{"params": params, "blocks": count} for count, params in sorted(muon.items())]
        optimizers.append(
            Muon(blocks, lr=settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay)
        )
    return optimizers


def set_learning_rate(optimizers: Iterable[Optimizer], rate: float) -> None:
    """Set the learning rate of every group."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


class Muon(Optimizer):
    """Momentum, orthogonalised block by block (Kimi K3 report, section 2.5; Moonlight's update scale).

    Each group has ``blocks``: a 2-D parameter [r, c] is cut into that many blocks [r / blocks, c] along its rows; a
    3-D one is
    a stack of ``blocks`` matrices. A block whose gradient is all zero is left alone, momentum included.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "blocks": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        with torch.enable_grad():
            loss = closure() if closure else None
        pending: dict[tuple[int, int], list[_Blocks]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    blocks = self._accumulate(parameter, group)
                    pending.setdefault((blocks.weights.shape[1], blocks.weights.shape[2]), []).append(blocks)
        for same_shape in pending.values():
            _update(same_shape)
        return loss

    def _accumulate(self, parameter: Tensor, group: dict[str, Any]) -> _Blocks:
        """Add the gradient to the momentum and return what is to be orthogonalised."""
        momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        assert parameter.grad is not None
        weights, buffer, gradient = (_cut(x, group["blocks"]) for x in (parameter, momentum, parameter.grad))
        moved = gradient.abs().amax((1, 2)) > 0
        buffer[moved] = buffer[moved] * group["momentum"] + gradient[moved]
        direction = gradient + group["momentum"] * buffer
        return _Blocks(weights, direction, moved, group["lr"], group["weight_decay"])


@dataclass(frozen=True)
class _Blocks:
    """Blocks of one parameter, as a view of it, and their Nesterov direction, both [B, r, c]."""

    weights: Tensor
    direction: Tensor
    moved: Tensor  # bool [B]
    rate: float
    decay: float


def _cut(x: Tensor, blocks: int) -> Tensor:
    return x.view(blocks, -1, x.shape[-1])


def _update(same_shape: list[_Blocks]) -> None:
    """Orthogonalise the blocks of several parameters together and apply them."""
    directions = orthogonalize(torch.cat([blocks.direction[blocks.moved] for blocks in same_shape]))
    rows, columns = same_shape[0].weights.shape[1:]
    scale = _UPDATE_RMS * max(rows, columns) ** 0.5
    updates = directions.split([int(blocks.moved.sum()) for blocks in same_shape])
    for blocks, update in zip(same_shape, updates, strict=True):
        kept = blocks.weights[blocks.moved] * (1.0 - blocks.rate * blocks.decay)
        blocks.weights[blocks.moved] = kept - blocks.rate * scale * update


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of ``matrices`` [B, r, c] near 1 (roughly 0.7 to 1.2) by five Newton-Schulz steps."""
    a, b, c = _COEFFICIENTS
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.transpose(-2, -1)
    for _ in range(_ITERATIONS):
        gram = x @ x.transpose(-2, -1)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.transpose(-2, -1)
