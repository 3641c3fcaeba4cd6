"""One forward pass's surroundings: how tokens are packed, where states are, who wants to see intermediate values.

Unusual: this is an argument, never a global, so that two models or two threads cannot disturb each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

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
