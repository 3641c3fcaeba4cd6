"""Fresh weights to train from: every layer starts near unit scale, and the first loss is that of a uniform guess.

Unusual: residual queries start at zero, so that each layer first reads the plain mean of what came before; decay
biases start so that heads remember for about 2 to 200 tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from openk3.errors import TrainingError
from openk3.model.model import K3ForCausalLM

_EMBEDDING_STD = 0.4
_TIME_STEPS = (1e-3, 1e-1)
_ONES = ("norm.weight", "layernorm.weight", "res_norm.weight")
_ZEROS = ("res_proj.weight", "A_log", "e_score_correction_bias")
_RESIDUAL_OUTPUTS = ("o_proj.weight", "down_proj.weight", "routed_expert_up_proj.weight")


@torch.no_grad()
def init_for_training(model: K3ForCausalLM, seed: int) -> None:
    """Fill ``model`` in place; the numbers depend on the seed and on the order of its parameters.

    Raises:
        TrainingError: a parameter was left with a value that is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _fill(name, tensor, model.config.num_hidden_layers, model.config.initializer_range, generator)
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"{name} is not finite after initialisation")


def _fill(name: str, tensor: Tensor, num_layers: int, head_std: float, generator: torch.Generator) -> None:
    if name.endswith(_ZEROS):
        tensor.zero_()
    elif name.endswith("dt_bias"):
        low, high = (math.log(step) for step in _TIME_STEPS)
        step = tensor.uniform_(low, high, generator=generator).exp_().clamp_(min=1e-4)
        step.add_(torch.log(-torch.expm1(-step)))  # the inverse of softplus
    elif name.endswith(_ONES):
        tensor.fill_(1.0)
    elif name.endswith("conv1d.weight"):
        bound = tensor.shape[-1] ** -0.5
        tensor.uniform_(-bound, bound, generator=generator)
    else:
        tensor.normal_(0.0, _std(name, tensor, num_layers, head_std), generator=generator)


def _std(name: str, tensor: Tensor, num_layers: int, head_std: float) -> float:
    if name.endswith("embed_tokens.weight"):
        return _EMBEDDING_STD
    if name.endswith("lm_head.weight"):
        return head_std
    fan_in = float(tensor.shape[-1]) ** -0.5
    return fan_in * (2 * num_layers) ** -0.5 if name.endswith(_RESIDUAL_OUTPUTS) else fan_in
