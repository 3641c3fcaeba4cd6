"""The writer: readable by the safetensors library, published layout, and nothing half-written that looks whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openk3.checkpoint.index import INDEX_FILE, read_header
from openk3.checkpoint.loader import load_model
from openk3.checkpoint.random_init import RandomSource, init_parameters
from openk3.checkpoint.shards import plan_shards
from openk3.checkpoint.verify import verify_headers
from openk3.checkpoint.writer import ShardWriter, require_space, save_model, write_checkpoint
from openk3.errors import CapacityError, CheckpointError, ConfigError, OpenK3Error, TensorError
from openk3.model.catalogue import TensorSpec
from openk3.model.model import K3ForCausalLM
from openk3.model.presets import preset
from tests.checkpoint.conftest import shard

PAIR = [TensorSpec("a", (2, 3), "F32", "a", "norms", None), TensorSpec("b", (4,), "BF16", "b", "norms", None)]


def test_published_shards_of_the_full_model() -> None:
    plans = plan_shards(preset("k3"), vision=True)
    assert len(plans) == 96 and plans[0].file == "model-00001-of-000096.safetensors"
    assert [plans[n].nbytes for n in (0, 1, 3, 92, 93, 94, 95)] == [
        2_341_213_184,
        16_990_092_800,
        16_566_684_160,
        16_566_684_160,
        4_697_663_488,
        92_289_024,
        802_428_928,
    ]
    assert sum(plan.nbytes for plan in plans) == 1_560_860_324_864


def test_mtp_layers_have_shards_after_the_backbone() -> None:
    plans = plan_shards(preset("mtp5"), vision=False)
    assert [plan.specs[0].layer for plan in plans] == [0, 1, 2, 3, 4, None]


def test_the_library_reads_it_back(tmp_path: Path) -> None:
    a, b = torch.randn(2, 3), torch.randn(4).bfloat16()
    with ShardWriter(tmp_path / "x.safetensors", PAIR) as writer:
        writer.write("a", a.T.contiguous().T)
        writer.write("b", b)
    loaded = load_file(tmp_path / "x.safetensors")
    assert torch.equal(loaded["a"], a) and torch.equal(loaded["b"], b)
    assert read_header(tmp_path / "x.safetensors").data_start % 64 == 0


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("b", torch.zeros(4), "written out of order, expected a"),
        ("a", torch.zeros(3, 2), r"torch.float32 \[3, 2\] is to be written, expected F32 \[2, 3\]"),
        ("a", torch.zeros(2, 3).half(), "torch.float16"),
    ],
)
def test_wrong_tensors_are_refused_and_leave_nothing(
    tmp_path: Path, name: str, tensor: torch.Tensor, message: str
) -> None:
    with pytest.raises(TensorError, match=message), ShardWriter(tmp_path / "x.safetensors", PAIR) as writer:
        writer.write(name, tensor)
    assert not list(tmp_path.iterdir())


def test_an_incomplete_shard_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(TensorError, match="b: announced but not written"),
        ShardWriter(tmp_path / "x.safetensors", PAIR) as writer,
    ):
        writer.write("a", torch.zeros(2, 3))
    assert not list(tmp_path.iterdir())


def test_a_failing_source_leaves_no_checkpoint(tmp_path: Path) -> None:
    config = preset("mini4")
    source = RandomSource(config, 0)

    def failing(plan):  # type: ignore[no-untyped-def]
        if "00003" in plan.file:
            raise KeyboardInterrupt
        return source(plan)

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "m", config, failing)
    assert not (tmp_path / "m" / INDEX_FILE).exists()
    assert not verify_headers(tmp_path / "m").ok


def test_a_killed_write_does_not_look_whole(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openk3.checkpoint.random_init import RandomSource;"
        "from openk3.checkpoint.writer import write_checkpoint; from openk3.model.presets import preset;"
        "c = preset('route896'); write_checkpoint(Path(sys.argv[1]), c, RandomSource(c, 0))"
    )
    folder = tmp_path / "m"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
    while not (folder.is_dir() and list(folder.iterdir())) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = verify_headers(folder)
    assert len(report.problems) == 1
    with pytest.raises(OpenK3Error):
        load_model(folder)


def test_weights_are_not_overwritten(pristine: Path) -> None:
    with pytest.raises(CheckpointError, match="already holds weights"):
        write_checkpoint(pristine, preset("mini4"), RandomSource(preset("mini4"), 0))


def test_a_file_in_the_way_and_too_small_a_disk(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made a folder"):
        write_checkpoint(tmp_path / "m", preset("mini4"), RandomSource(preset("mini4"), 0))
    with pytest.raises(CapacityError, match="needs 1,000,000,000,000,000,000 bytes"):
        require_space(tmp_path / "x" / "y", 10**18)


@pytest.mark.parametrize("experts", ["packed", "plain"])
def test_saving_a_loaded_model_reproduces_its_files(pristine: Path, tmp_path: Path, experts: str) -> None:
    model = load_model(pristine, dtype=torch.bfloat16, experts=experts)
    save_model(model, tmp_path / "again")
    assert verify_headers(tmp_path / "again").ok
    for number in range(1, 6):
        written, original = load_file(shard(tmp_path / "again", number)), load_file(shard(pristine, number))
        same = {name for name in original if torch.equal(written[name], original[name])}
        packed = {name for name in original if "weight_packed" in name or "weight_scale" in name}
        # plain experts may be packed again with other scales, but of equal values
        assert same >= (set(original) - packed if experts == "plain" else set(original))
    again = load_model(tmp_path / "again", dtype=torch.float32, experts="plain").state_dict()
    for name, tensor in load_model(pristine, dtype=torch.float32, experts="plain").state_dict().items():
        assert torch.equal(again[name], tensor), name


def test_a_log_is_padded_with_zeros(pristine: Path) -> None:
    a_log = load_file(shard(pristine, 1))["language_model.model.layers.0.self_attn.A_log"]
    assert a_log.shape == (16,) and a_log[:3].all() and not a_log[3:].any()


def test_unquantised_experts_stay_so(tmp_path: Path) -> None:
    from dataclasses import replace

    config = replace(preset("mini4"), quantized_experts=False)
    model = K3ForCausalLM(config, dtype=torch.bfloat16)
    init_parameters(model, 1)
    save_model(model, tmp_path / "m")
    assert verify_headers(tmp_path / "m").ok
    again = load_model(tmp_path / "m")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    packed = K3ForCausalLM(config, experts="packed")
    with pytest.raises(ConfigError, match="packed"):
        save_model(packed, tmp_path / "n")


def test_index_is_sorted_and_sums_up(pristine: Path) -> None:
    index = json.loads((pristine / INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == 381_520 and len(index["weight_map"]) == 250
    assert list(index["weight_map"]) == sorted(index["weight_map"])
