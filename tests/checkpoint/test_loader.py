"""The loader: every byte in its place, names strict, older forms accepted, memory bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openk3.checkpoint.loader import load_model
from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.writer import write_checkpoint
from openk3.errors import CheckpointError, ConfigError, OpenK3Error, TensorError
from openk3.model.presets import preset
from openk3.ops.mxfp4.reference import unpack
from tests.checkpoint.conftest import edit_header, edit_index, poke, shard

LAYER0, LAYER1 = "language_model.model.layers.0.", "language_model.model.layers.1."


def rewrite(folder: Path, number: int, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of a shard, and make the index agree with it."""
    tensors = load_file(shard(folder, number))
    change(tensors)
    save_file(tensors, shard(folder, number))

    def place(index: dict[str, Any]) -> None:
        file = shard(folder, number).name
        kept = {name: other for name, other in index["weight_map"].items() if other != file}
        index["weight_map"] = kept | dict.fromkeys(tensors, file)

    edit_index(folder, place)


def test_every_tensor_is_in_its_place(pristine: Path) -> None:
    model = load_model(pristine, dtype=torch.float32, experts="packed")
    state = model.state_dict()
    stored = {name: tensor for n in range(1, 6) for name, tensor in load_file(shard(pristine, n)).items()}
    assert torch.equal(state["lm_head.weight"], stored["language_model.lm_head.weight"].float())
    assert torch.equal(state["model.layers.0.self_attn.A_log"], stored[LAYER0 + "self_attn.A_log"][:3])
    for expert in range(8):
        for matrix in ("w1", "w2", "w3"):
            for part in ("packed", "scale"):
                mine = state[f"model.layers.1.block_sparse_moe.experts.{matrix}_{part}"][expert]
                assert torch.equal(mine, stored[f"{LAYER1}block_sparse_moe.experts.{expert}.{matrix}.weight_{part}"])


def test_plain_experts_are_the_dequantised_ones(pristine: Path) -> None:
    packed = load_model(pristine).state_dict()
    plain = load_model(pristine, experts="plain").state_dict()
    for matrix in ("w1", "w2", "w3"):
        stack = f"model.layers.2.block_sparse_moe.experts.{matrix}"
        assert plain[stack].dtype == torch.bfloat16
        assert torch.equal(plain[stack], unpack(packed[stack + "_packed"], packed[stack + "_scale"], torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stored_float32_stays_float32_to_the_bit(pristine: Path, dtype: torch.dtype) -> None:
    model = load_model(pristine, dtype=dtype)
    stored = load_file(shard(pristine, 2))
    parameters = dict(model.named_parameters()) | dict(model.named_buffers())
    for suffix in (
        "self_attn.q_conv1d.weight",
        "self_attn.dt_bias",
        "self_attn.o_norm.weight",
        "block_sparse_moe.gate.e_score_correction_bias",
    ):
        mine = parameters["model.layers.1." + suffix]
        assert mine.dtype == torch.float32 and torch.equal(mine, stored[LAYER1 + suffix])
    assert model.dtype == dtype


def test_older_forms_of_a_log_and_convolutions(pristine: Path, checkpoint: Path) -> None:
    def old(tensors: dict[str, torch.Tensor]) -> None:
        a_log, conv = LAYER0 + "self_attn.A_log", LAYER0 + "self_attn.q_conv1d.weight"
        tensors[a_log] = tensors[a_log][:3].reshape(1, 1, 3, 1).clone()
        tensors[conv] = tensors[conv].squeeze(1).clone()

    rewrite(checkpoint, 1, old)
    expected = load_model(pristine).state_dict()
    for name, tensor in load_model(checkpoint).state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_nonzero_tail_of_a_log_is_refused(checkpoint: Path) -> None:
    poke(shard(checkpoint, 1), LAYER0 + "self_attn.A_log", 4 * 9, b"\x00\x00\x80\x3f")
    with pytest.raises(TensorError, match=r"layers.0.self_attn.A_log: the padding after its 3 heads is not zero"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(LAYER1 + "mlp_res_norm.weight"), "layers.1.mlp_res_norm.weight: missing from every shard"),
        (lambda t: t.update({LAYER1 + "extra.weight": torch.zeros(1)}), "extra.weight: not expected"),
        (lambda t: t.update({"something": torch.zeros(1)}), "something: not a name of the published layout"),
        (
            lambda t: t.update({LAYER1 + "block_sparse_moe.experts.8.w1.weight_scale": torch.zeros(1)}),
            "not expected: expert 8 of a model with 8",
        ),
        (lambda t: t.update({LAYER1 + "input_layernorm.weight": torch.ones(65).bfloat16()}), r"shape is \[65\]"),
        (lambda t: t.update({LAYER1 + "self_attn.A_log": torch.zeros(2)}), "expected at least 3 values"),
        (lambda t: t.update({LAYER1 + "self_attn.A_log": torch.zeros(4, 4)}), "expected at least 3 values"),
        (lambda t: t.update({LAYER1 + "input_layernorm.weight": torch.ones(64, dtype=torch.int32)}), "dtype is I32"),
        (
            lambda t: t.update({LAYER1 + "block_sparse_moe.experts.0.w1.weight_packed": torch.zeros(32, 16)}),
            "dtype is F32, expected U8",
        ),
        (
            lambda t: t.update({LAYER1 + "block_sparse_moe.experts.0.w1.weight": torch.zeros(32, 32)}),
            "experts MXFP4 by its config.json",
        ),
    ],
)
def test_wrong_tensors_fail_by_name(
    checkpoint: Path, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    rewrite(checkpoint, 2, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(checkpoint)


def test_wrong_expert_shapes_fail_when_expanding_too(checkpoint: Path) -> None:
    name = LAYER1 + "block_sparse_moe.experts.0.w1.weight_scale"
    rewrite(checkpoint, 2, lambda tensors: tensors.update({name: torch.full((16, 2), 120, dtype=torch.uint8)}))
    with pytest.raises(TensorError, match=r"expected \[32, 16\] and \[32, 1\]"):
        load_model(checkpoint, experts="plain")


def test_a_tensor_in_two_shards(checkpoint: Path) -> None:
    name = "language_model.model.norm.weight"
    tensors = load_file(shard(checkpoint, 1))
    save_file(tensors | {name: torch.ones(64).bfloat16()}, shard(checkpoint, 1))
    with pytest.raises(TensorError, match="norm.weight: a second tensor of this name"):
        load_model(checkpoint)


def test_mtp_copies_are_accepted_if_equal(tmp_path: Path) -> None:
    config = preset("mtp5")
    write_checkpoint(tmp_path, config, RandomSource(config, 2))
    last, mtp = sorted(tmp_path.glob("*.safetensors"))[-1], sorted(tmp_path.glob("*.safetensors"))[-2]
    tensors, copy = load_file(mtp), "language_model.model.layers.4.embed_tokens.weight"
    tensors[copy] = load_file(last)["language_model.model.embed_tokens.weight"].clone()
    save_file(tensors, mtp)
    edit_index(tmp_path, lambda index: index["weight_map"].update({copy: mtp.name}))
    load_model(tmp_path)
    poke(mtp, copy, 0, b"\x01")
    with pytest.raises(TensorError, match="embed_tokens.weight: differs from model.embed_tokens.weight"):
        load_model(tmp_path)


def test_vision_tensors_are_skipped(tmp_path: Path) -> None:
    from dataclasses import replace

    from openk3.model.config import VisionConfig

    small = VisionConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        qkv_hidden_size=32,
        init_pos_emb_height=2,
        init_pos_emb_width=2,
    )
    config = replace(preset("mini4"), vision=small)
    write_checkpoint(tmp_path, config, RandomSource(config, 2), vision=True)
    assert not [name for name in load_model(tmp_path).state_dict() if "vision" in name or "projector" in name]


def test_packed_experts_need_packed_files(tmp_path: Path) -> None:
    from dataclasses import replace

    config = replace(preset("mini4"), quantized_experts=False)
    write_checkpoint(tmp_path, config, RandomSource(config, 2))
    assert "model.layers.1.block_sparse_moe.experts.w1" in dict(load_model(tmp_path).named_parameters())
    with pytest.raises(ConfigError, match="stored unquantised"):
        load_model(tmp_path, experts="packed")


def test_progress_hears_each_shard(pristine: Path) -> None:
    heard: list[tuple[str, int]] = []
    load_model(pristine, progress=lambda file, nbytes: heard.append((file, nbytes)))
    assert heard == [(path.name, path.stat().st_size) for path in sorted(pristine.glob("*.safetensors"))]


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(OpenK3Error, match=r"config.json: no such file"):
        load_model(tmp_path)


def test_offsets_are_obeyed_whatever_the_order_of_names(pristine: Path, checkpoint: Path) -> None:
    def reverse(header: dict[str, Any]) -> None:
        entries = list(header.items())[::-1]
        header.clear()
        header.update(entries)

    edit_header(shard(checkpoint, 2), reverse)
    expected = load_model(pristine).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in load_model(checkpoint).state_dict().items())


MEMORY = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.verify import verify_headers
from openk3.checkpoint.contents import verify_contents

def status(key):
    line = next(line for line in open("/proc/self/status") if line.startswith(key))
    return int(line.split()[1]) * 1024

torch.ones(8).bfloat16().float()
before = status("VmRSS")
if sys.argv[2] == "load":
    model = load_model(sys.argv[1], experts="packed")
else:
    report = verify_headers(Path(sys.argv[1]))
    verify_contents(report)
    assert report.ok, report.problems
print(status("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 MB, the largest tensor 32 MiB."""
    from dataclasses import replace

    config = replace(preset("prop8"), hidden_size=512, vocab_size=32768, intermediate_size=8192)
    config = replace(config, moe=replace(config.moe, num_experts=256, latent_size=256, intermediate_size=256))
    folder = tmp_path_factory.mktemp("large")
    write_checkpoint(folder, config, RandomSource(config, 0))
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(("what", "resident"), [("load", True), ("deep", False)])
def test_peak_memory_is_what_stays_plus_one_tensor(large: Path, what: str, resident: bool) -> None:
    total = sum(path.stat().st_size for path in large.glob("*.safetensors"))
    done = subprocess.run([sys.executable, "-c", MEMORY, str(large), what], capture_output=True, text=True, check=True)
    largest = 32768 * 512 * 2
    slack = 16 << 20  # headers, code that is first used now
    assert total > 150 << 20
    assert int(done.stdout) < (total if resident else 0) + largest + slack
