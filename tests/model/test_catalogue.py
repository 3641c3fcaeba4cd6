"""The catalogue against the published checkpoint's census, and the presets against the golden sets' headers."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path

import pytest

from openk3.errors import ConfigError
from openk3.model.catalogue import catalogue, expand, mtp_copies
from openk3.model.presets import PRESETS, preset
from openk3.model.published import config_from_dict, config_to_dict, load_config

K3 = preset("k3")


def test_published_model_has_497220_tensors_of_the_known_dtypes() -> None:
    specs = catalogue(K3, vision=True)
    assert sum(spec.experts for spec in specs) == 497_220
    census = Counter()
    for spec in specs:
        census[spec.dtype] += spec.experts
    assert census == {"F32": 506, "U8": 494_592, "BF16": 2_122}


def test_names_are_unique_and_parameters_follow_them() -> None:
    specs = catalogue(K3, vision=True)
    names = {name for name, _, _ in expand(specs)}
    assert len(names) == 497_220
    text = [spec for spec in specs if not spec.per_expert and spec.name.startswith("language_model.")]
    assert all(spec.name == "language_model." + spec.parameter for spec in text)


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("language_model.model.layers.0.self_attn.A_log", (128,), "F32"),
        ("language_model.model.layers.5.self_attn.q_conv1d.weight", (12288, 1, 4), "F32"),
        ("language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight", (576, 7168), "BF16"),
        ("language_model.model.layers.92.self_attn.kv_b_proj.weight", (24576, 512), "BF16"),
        ("language_model.model.layers.0.mlp.gate_proj.weight", (33792, 7168), "BF16"),
        ("language_model.model.layers.1.block_sparse_moe.experts.895.w2.weight_packed", (3584, 1536), "U8"),
        ("language_model.model.layers.92.block_sparse_moe.experts.0.w1.weight_scale", (3072, 112), "U8"),
        ("language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias", (896,), "F32"),
        ("vision_tower.encoder.blocks.26.wqkv.weight", (4608, 1024), "BF16"),
        ("mm_projector.proj.2.weight", (7168, 4096), "BF16"),
    ],
)
def test_published_shapes(name: str, shape: tuple[int, ...], dtype: str) -> None:
    found = [(spec.shape, spec.dtype) for each, spec, _ in expand(catalogue(K3, vision=True)) if each == name]
    assert found == [(shape, dtype)]


def test_tensors_of_one_expert_are_neighbours() -> None:
    names = [name for name, spec, _ in expand(catalogue(preset("mini4"), vision=False)) if spec.per_expert]
    first = [name.rsplit("experts.", 1)[1] for name in names[:7]]
    assert first == [
        "0.w1.weight_packed",
        "0.w1.weight_scale",
        "0.w2.weight_packed",
        "0.w2.weight_scale",
        "0.w3.weight_packed",
        "0.w3.weight_scale",
        "1.w1.weight_packed",
    ]


def test_mtp_layer_has_its_own_tensors_and_no_residual_mix() -> None:
    config = preset("mtp5")
    names = [spec.name for spec in catalogue(config, vision=False) if spec.layer == 4]
    assert "language_model.model.layers.4.eh_proj.weight" in names
    assert not [name for name in names if "_res_" in name]
    assert "language_model.model.layers.4.self_attn.kv_b_proj.weight" in names
    assert set(mtp_copies(config)) == {
        "language_model.model.layers.4.embed_tokens.weight",
        "language_model.model.layers.4.shared_head.head.weight",
    }


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_the_published_file_format(name: str) -> None:
    assert config_from_dict(json.loads(json.dumps(config_to_dict(preset(name))))) == preset(name)


def test_presets_keep_the_ids_of_the_stored_sets() -> None:
    mini = preset("mini4")
    assert (mini.bos_token_id, mini.eos_token_id, mini.pad_token_id, mini.media_placeholder_token_id) == (
        240,
        242,
        255,
        253,
    )
    assert (K3.bos_token_id, K3.eos_token_id, K3.pad_token_id, K3.media_placeholder_token_id) == (
        163584,
        163586,
        163839,
        163605,
    )


def test_unknown_preset_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="mini4") as raised:
        preset("mini")
    assert raised.value.hint == "did you mean `mini4`?"


@pytest.mark.parametrize("name", ["mini4", "k128"])
def test_stored_checkpoints_hold_exactly_the_catalogue(shared: Path, name: str) -> None:
    folder = shared / "golden" / name / "checkpoint"
    stored = {}
    for shard in folder.glob("*.safetensors"):
        with shard.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        stored |= {
            key: (tuple(entry["shape"]), entry["dtype"]) for key, entry in header.items() if key != "__metadata__"
        }
    listed = {key: (spec.shape, spec.dtype) for key, spec, _ in expand(catalogue(load_config(folder), vision=False))}
    assert listed == stored
