"""One forward pass's surroundings: how tokens are packed, where states are, who wants to see intermediate values.

Unusual: this is an argument, never a global, so that two models or two threads cannot disturb each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from openk3.errors import ConfigError
from openk3.model.config import MoEConfig
from openk3.model.state import BatchState
from openk3.ops.packed import PackedSequences

Observer = Callable[[str, Tensor], None]


def ignore(name: str, value: Tensor) -> None:
    """Observe nothing."""


@dataclass(frozen=True)
class ForwardBatch:
    """What every layer is handed beside its input.

    ``observe`` is called with ``layer{i}.name`` and intermediate tensors [N, ...]; ``imposed_experts`` replaces a
    layer's choice of experts by [N, k], for comparing implementations whose rounding would route differently.
    """

    packed: PackedSequences
    state: BatchState
    observe: Observer = ignore
    imposed_experts: Mapping[int, Tensor] = field(default_factory=dict)

    def observe_layer(self, layer: int, **values: Tensor) -> None:
        """Show a layer's intermediate values [N, ...] by name."""
        for name, value in values.items():
            self.observe(f"layer{layer}.{name}", value)


def check_ids(input_ids: Tensor, num_tokens: int, vocab_size: int) -> None:
    """Raise `ConfigError` unless ``input_ids`` are ``num_tokens`` whole numbers below ``vocab_size``."""
    if input_ids.shape != (num_tokens,) or input_ids.is_floating_point():
        found = f"{input_ids.dtype} of shape {list(input_ids.shape)}"
        raise ConfigError(f"input_ids is {found}, expected int64 of shape [{num_tokens}] (the sum of the lengths)")
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= vocab_size:
        raise ConfigError(f"token id {low if low < 0 else high} is not below vocab_size ({vocab_size})")


def check_imposed(imposed: Mapping[int, Tensor], num_tokens: int, moe: MoEConfig) -> None:
    """Raise `ConfigError` unless every layer's imposed experts are [num_tokens, k] expert numbers."""
    for layer, experts in imposed.items():
        expected = (num_tokens, moe.num_experts_per_token)
        if tuple(experts.shape) != expected or experts.is_floating_point():
            found = f"{experts.dtype} of shape {list(experts.shape)}"
            raise ConfigError(f"imposed experts of layer {layer} are {found}, expected integers of {list(expected)}")
        if int(experts.min()) < 0 or int(experts.max()) >= moe.num_experts:
            raise ConfigError(f"imposed experts of layer {layer} are not all below num_experts ({moe.num_experts})")
