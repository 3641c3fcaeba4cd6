"""Muon against PyTorch's own, its blocks, and who optimises what."""

from __future__ import annotations

import pytest
import torch

from openk3.model.config import K3Config
from openk3.model.model import K3ForCausalLM
from openk3.train.config import OptimConfig
from openk3.train.init import init_for_training
from openk3.train.optim import Muon, assign, build_optimizers, orthogonalize


def moved(start: torch.Tensor, gradients: list[torch.Tensor], blocks: int) -> torch.Tensor:
    parameter = torch.nn.Parameter(start.clone())
    optimizer = Muon([{"params": [parameter], "blocks": blocks}], lr=0.01, weight_decay=0.1)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.fixture
def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(24, 16, generator=generator) for _ in range(3)]


def test_one_block_is_pytorchs_muon(gradients: list[torch.Tensor]) -> None:
    start = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
    theirs = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for gradient in gradients:
        theirs.grad = gradient.clone()
        optimizer.step()
    # theirs iterates in bfloat16: about a hundredth of an update of 0.01 * 0.2 * sqrt(24)
    torch.testing.assert_close(moved(start, gradients, 1), theirs.detach(), atol=3e-4, rtol=0)
    assert (theirs.detach() - start).abs().max() > 3e-3


def test_blocks_are_separate_matrices(gradients: list[torch.Tensor]) -> None:
    start = torch.zeros(24, 16)
    together = moved(start, gradients, 3)
    for rows in (slice(0, 8), slice(8, 16), slice(16, 24)):
        alone = moved(start[rows], [gradient[rows] for gradient in gradients], 1)
        torch.testing.assert_close(together[rows], alone, atol=1e-6, rtol=0)
    assert (together - moved(start, gradients, 1)).abs().max() > 1e-3


def test_a_stack_is_the_same_as_its_matrices(gradients: list[torch.Tensor]) -> None:
    start = torch.zeros(2, 12, 16)
    stacked = moved(start, [gradient.view(2, 12, 16) for gradient in gradients], 2)
    torch.testing.assert_close(stacked.view(24, 16), moved(start.view(24, 16), gradients, 2))


def test_an_expert_without_tokens_stays_where_it_is(gradients: list[torch.Tensor]) -> None:
    start = torch.ones(2, 12, 16)
    silent = [gradient.view(2, 12, 16).clone() for gradient in gradients]
    for gradient in silent[1:]:
        gradient[1] = 0
    both, after_one = moved(start, silent, 2), moved(start, silent[:1], 2)
    assert torch.equal(both[1], after_one[1])
    assert not torch.equal(both[0], after_one[0])


def test_orthogonalized_singular_values_are_near_one() -> None:
    for shape in ((3, 20, 12), (3, 12, 20)):
        matrices = torch.randn(*shape, generator=torch.Generator().manual_seed(2))
        values = torch.linalg.svdvals(orthogonalize(matrices))
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_every_parameter_has_one_optimizer(tiny: K3Config) -> None:
    model = K3ForCausalLM(tiny, dtype=torch.float32)
    optimizers = build_optimizers(model, tiny, OptimConfig())
    owned = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(owned) == sorted(id(parameter) for parameter in model.parameters())


def test_assignment_by_name(tiny: K3Config) -> None:
    model = K3ForCausalLM(tiny, dtype=torch.float32)
    init_for_training(model, 0)
    chosen = {name: assign(name, parameter, tiny) for name, parameter in model.named_parameters()}
    layer = "model.layers.{}.{}.weight"
    assert chosen[layer.format(0, "self_attn.q_proj")].blocks == tiny.kda.num_heads
    assert chosen[layer.format(0, "self_attn.o_proj")].blocks == 1
    assert chosen[layer.format(1, "self_attn.q_b_proj")].blocks == tiny.mla.num_heads
    assert chosen[layer.format(1, "self_attn.q_a_proj")].blocks == 1
    assert chosen["model.layers.1.block_sparse_moe.experts.w1"].blocks == tiny.moe.num_experts
    assert chosen[layer.format(1, "block_sparse_moe.gate")].muon
    for name in ("self_attn.q_conv1d", "self_attention_res_proj", "input_layernorm"):
        assert not chosen[layer.format(0, name)].muon
        assert not chosen[layer.format(0, name)].decay
    assert chosen["lm_head.weight"].decay
    assert not chosen["lm_head.weight"].muon
    assert not any("e_score_correction_bias" in name for name in chosen)
