"""Random weights: determined by seed and name alone, in the stated regime, equal on disk and in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from openk3.checkpoint.loader import load_model
from openk3.checkpoint.random_init import RandomSource, init_parameters, random_tensor
from openk3.checkpoint.writer import write_checkpoint
from openk3.model.catalogue import TensorSpec, catalogue
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset

CONFIG = preset("prop8")
SPECS = {spec.parameter: spec for spec in catalogue(CONFIG, vision=False)}

PINNED_DT_BIAS = [-0.7946844100952148, 0.7236785888671875, 1.9557318687438965]
PINNED_PACKED = [6, 32, 88, 201]


def draw(suffix: str, *, layer: int = 1, seed: int = 0, expert: int = 0) -> torch.Tensor:
    return random_tensor(SPECS[f"model.layers.{layer}.{suffix}"], expert, CONFIG, seed)


@pytest.mark.parametrize("experts", ["packed", "plain"])
@pytest.mark.parametrize("name", ["one", "mini4", "mtp5"])
def test_memory_and_disk_agree(tmp_path: Path, name: str, experts: str) -> None:
    config = preset(name)
    write_checkpoint(tmp_path, config, RandomSource(config, 11))
    loaded = load_model(tmp_path, dtype=torch.float32, experts=experts).state_dict()
    model = K3ForCausalLM(config, dtype=torch.float32, experts=experts)
    init_parameters(model, 11)
    assert all(torch.equal(tensor, loaded[key]) for key, tensor in model.state_dict().items())


def test_depends_on_seed_and_name_only() -> None:
    assert torch.equal(draw("self_attn.q_proj.weight"), draw("self_attn.q_proj.weight"))
    assert not torch.equal(draw("self_attn.q_proj.weight"), draw("self_attn.k_proj.weight"))
    assert not torch.equal(draw("self_attn.q_proj.weight"), draw("self_attn.q_proj.weight", seed=1))
    packed = "block_sparse_moe.experts.w1_packed"
    assert not torch.equal(draw(packed, expert=0), draw(packed, expert=1))


def test_numbers_are_pinned() -> None:
    """A change here changes every model that ``openk3 init`` has written with a known seed."""
    assert draw("self_attn.dt_bias")[:3].tolist() == pytest.approx(PINNED_DT_BIAS, abs=0)
    assert draw("block_sparse_moe.experts.w1_packed")[0, :4].tolist() == PINNED_PACKED


def test_regime() -> None:
    assert draw("self_attn.q_proj.weight").float().std().item() == pytest.approx(192**-0.5, rel=0.05)
    assert draw("self_attention_res_proj.weight").float().std().item() == pytest.approx(0.1, rel=0.2)
    assert draw("self_attn.q_conv1d.weight").std().item() == pytest.approx(0.5, rel=0.1)
    for suffix, low, high in (
        ("input_layernorm.weight", 0.9, 1.1),
        ("self_attn.o_norm.weight", 0.9, 1.1),
        ("mlp_res_norm.weight", 0.9, 1.1),
        ("self_attn.dt_bias", -4.0, 2.0),
        ("block_sparse_moe.gate.e_score_correction_bias", -0.1, 0.1),
    ):
        tensor = draw(suffix).float()
        rounding = 0.004  # of the bounds to BF16
        assert low - rounding <= tensor.min() < tensor.mean() < tensor.max() <= high + rounding, suffix
    a_log = draw("self_attn.A_log")
    assert -0.5 <= a_log[:6].min() <= a_log[:6].max() <= 1.0 and not a_log[6:].any()


def test_wide_matrices_use_the_configured_deviation() -> None:
    wide = TensorSpec("x", (64, 7168), "BF16", "lm_head.weight", "head", None)
    assert random_tensor(wide, 0, preset("k3"), 0).float().std().item() == pytest.approx(0.02, rel=0.02)


def test_expert_bytes_cover_all_codes_and_the_stated_scales() -> None:
    codes = torch.cat([draw("block_sparse_moe.experts.w1_packed", expert=e).flatten() for e in range(4)])
    assert set((codes & 15).tolist()) == set((codes >> 4).tolist()) == set(range(16))
    scales = torch.cat([draw("block_sparse_moe.experts.w2_scale", expert=e).flatten() for e in range(4)])
    assert set(scales.tolist()) == set(range(118, 127))


def test_float32_tensors_are_not_bfloat16_in_disguise() -> None:
    values = draw("self_attn.dt_bias")
    assert not torch.equal(values, values.bfloat16().float())


def test_large_tensors_are_drawn_in_pieces_without_seams() -> None:
    large = TensorSpec("x", (3000, 2000), "BF16", "lm_head.weight", "head", None)
    tensor = random_tensor(large, 0, CONFIG, 0).float()
    assert tensor.std().item() == pytest.approx(2000**-0.5, rel=0.01)
    assert len(tensor.flatten()[:: 1 << 12].unique()) > 500
