"""How a model computes, as opposed to what it is: which form of each operation, which activations are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from openk3.errors import ConfigError
from openk3.ops.kda.dispatch import KDAForm

MLAForm = Literal["auto", "blocks", "expanded", "absorbed"]
AttnResForm = Literal["plain", "two_phase"]
ExpertActivations = Literal["native", "mxfp8-ceil", "mxfp8-floor"]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Choices that change rounding or speed, never the equation.

    The defaults give the same bits however a text is split and packed. ``mla`` "auto" is "blocks" where latents are
    cached and "expanded" where nothing is kept, as in training.
    ``expert_activations`` rounds what enters the routed experts to MXFP8; the published checkpoint asks for none.
    """

    kda: KDAForm = "chunk"
    mla: MLAForm = "auto"
    attn_res: AttnResForm = "plain"
    expert_activations: ExpertActivations = "native"

    def __post_init__(self) -> None:
        choices = {"kda": KDAForm, "mla": MLAForm, "attn_res": AttnResForm, "expert_activations": ExpertActivations}
        for name, literal in choices.items():
            value, allowed = getattr(self, name), get_args(literal)
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
