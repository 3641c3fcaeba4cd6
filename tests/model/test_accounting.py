"""Accounting against the published model's totals and the sizes of the test models."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from openk3.model.accounting import account, attn_res_reads
from openk3.model.presets import preset

K3 = preset("k3")
COST = account(K3)


def test_published_totals() -> None:
    assert COST.total.parameters == 2_779_931_837_184
    assert COST.total.bytes == 1_560_860_324_864
    assert COST.total.tensors == 497_220
    assert COST.text.parameters == 2_779_484_478_208
    assert COST.active_parameters == 104_189_614_848
    assert COST.bytes_read_per_token == 111_160_730_624 + 25_829_572_608


@pytest.mark.parametrize(
    ("group", "parameters"),
    [
        ("routed_experts", 2_722_740_830_208),
        ("kda", 30_607_048_704 + 11_040_000),
        ("mla", 5_572_706_304),
        ("shared_experts", 12_155_092_992),
        ("latent", 4_727_310_336),
        ("router", 590_872_576 + 82_432),
        ("dense", 726_663_168),
        ("attn_res", 2_680_832),
        ("norms", 1_340_416),
        ("vision_tower", 401_214_464),
        ("mm_projector", 46_144_512),
    ],
)
def test_published_groups(group: str, parameters: int) -> None:
    assert COST.groups[group].parameters == parameters


def test_published_state_and_cache() -> None:
    assert COST.recurrent_state_bytes == 434_110_464
    assert COST.conv_state_bytes == 15_261_696
    assert COST.state_bytes_per_sequence == 449_372_160
    assert COST.cache_bytes_per_token == 27_648


def test_published_flops() -> None:
    flops = COST.flops
    assert flops.linear_per_token == 2 * 104_184_266_752
    assert flops.kda_step_per_token == 7 * 96 * 128**2 * 69
    assert flops.decode_per_context_token == 5_013_504
    assert flops.prefill_per_query_key_pair == 1_474_560
    assert attn_res_reads(K3) == 1_002
    assert flops.per_token == flops.linear_per_token + flops.kda_step_per_token + 1_002 * 6 * 7168


def test_published_layer_kinds() -> None:
    kinds = {(layer.attention, layer.ffn): layer for layer in COST.layers}
    counts = {key: layer.count for key, layer in kinds.items()}
    assert counts == {("kda", "dense"): 1, ("kda", "moe"): 68, ("mla", "moe"): 24}
    assert kinds["kda", "dense"].size.bytes == 2_341_213_184
    assert kinds["kda", "moe"].size.bytes == 16_990_092_800
    assert kinds["mla", "moe"].size.bytes == 16_566_684_160
    assert kinds["kda", "moe"].macs_per_token == 443_727_872 + 718_405_632
    assert kinds["mla", "moe"].macs_per_token == 232_194_048 + 718_405_632


@pytest.mark.parametrize(
    ("name", "other", "routed"),
    [
        ("one", 69_776, 0),
        ("mini4", 169_184, 73_728),
        ("tail9", 336_840, 393_216),
        ("k128", 3_010_320, 1_769_472),
        ("route896", 249_304, 5_505_024),
        ("prop8", 3_470_752, 6_193_152),
    ],
)
def test_small_models(name: str, other: int, routed: int) -> None:
    cost = account(preset(name))
    experts = cost.groups["routed_experts"].parameters if "routed_experts" in cost.groups else 0
    assert (cost.total.parameters - experts, experts) == (other, routed)


def test_multi_token_prediction_is_counted_but_not_active() -> None:
    plain, with_mtp = account(preset("mini4")), account(preset("mtp5"))
    assert with_mtp.total.parameters > plain.total.parameters
    assert with_mtp.active_parameters == plain.active_parameters
    assert with_mtp.cache_bytes_per_token == plain.cache_bytes_per_token
    assert [layer.count for layer in with_mtp.layers if layer.mtp] == [1]


def test_text_only_leaves_the_vision_part_out() -> None:
    assert account(K3, vision=False).total == COST.text


def test_is_plain_data() -> None:
    data = json.loads(json.dumps(COST.to_dict()))
    assert data["total"]["bytes"] == 1_560_860_324_864
    assert data["flops"]["per_token"] == COST.flops.per_token


def test_is_instant_and_does_not_import_torch() -> None:
    start = time.perf_counter()
    account(K3)
    assert time.perf_counter() - start < 1.0
    code = "import sys, openk3.model.accounting, openk3.model.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
