"""Experts to BF16 and to MXFP4: exact where it can be, measured where not, everything else untouched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openk3.checkpoint.loader import load_model
from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.writer import write_checkpoint
from openk3.cli.main import run
from openk3.model.presets import preset
from openk3.model.published import load_config
from openk3.ops.mxfp4.reference import pack, unpack
from tests.checkpoint.conftest import poke, shard

EXPERT = "language_model.model.layers.1.block_sparse_moe.experts.3.w2.weight"


def quantize(*arguments: object) -> int:
    return run(["quantize", *map(str, arguments)])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mini4 checkpoint with ordinary BF16 experts."""
    config = replace(preset("mini4"), quantized_experts=False)
    folder = tmp_path_factory.mktemp("plain") / "m"
    write_checkpoint(folder, config, RandomSource(config, 5))
    return folder


def test_mxfp4_to_bf16_and_back_is_exact(pristine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source").mkdir()
    assert quantize(pristine, tmp_path / "bf16", "--experts", "bf16") == 0
    assert not load_config(tmp_path / "bf16").quantized_experts
    assert quantize(tmp_path / "bf16", tmp_path / "mxfp4", "--experts", "mxfp4") == 0
    assert "relative error of the experts: 0.000%" in capsys.readouterr().out
    assert load_config(tmp_path / "mxfp4") == load_config(pristine)
    reference = load_model(pristine, dtype=torch.float32, experts="plain").state_dict()
    for folder in ("bf16", "mxfp4"):
        state = load_model(tmp_path / folder, dtype=torch.float32, experts="plain").state_dict()
        assert all(torch.equal(tensor, reference[name]) for name, tensor in state.items())
        assert run(["verify", str(tmp_path / folder), "--deep"]) == 0


def test_bf16_to_mxfp4_prints_what_it_loses(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(plain, tmp_path / "m", "--experts", "mxfp4") == 0
    exact = {
        name: tensor.float()
        for n in range(1, 6)
        for name, tensor in load_file(shard(plain, n)).items()
        if ".experts." in name
    }
    rounded = {name: unpack(*pack(tensor)) for name, tensor in exact.items()}
    error = sum((rounded[name] - exact[name]).double().square().sum() for name in exact)
    value = sum(tensor.double().square().sum() for tensor in exact.values())
    expected = f"relative error of the experts: {(error / value).sqrt().item():.3%} (root mean square)"
    assert expected in capsys.readouterr().out
    stored = load_file(shard(tmp_path / "m", 2))
    assert torch.equal(unpack(stored[EXPERT + "_packed"], stored[EXPERT + "_scale"]), rounded[EXPERT])


def test_other_tensors_and_files_are_copied(plain: Path, tmp_path: Path) -> None:
    (plain / "tiktoken.model").write_bytes(b"vocabulary")
    assert quantize(plain, tmp_path / "m", "--experts", "mxfp4") == 0
    assert (tmp_path / "m" / "tiktoken.model").read_bytes() == b"vocabulary"
    for number in range(1, 6):
        written, original = load_file(shard(tmp_path / "m", number)), load_file(shard(plain, number))
        for name in written.keys() & original.keys():
            assert written[name].dtype == original[name].dtype and torch.equal(written[name], original[name])


@pytest.mark.parametrize(
    ("experts", "offset", "content", "message"),
    [("mxfp4", 0, b"\xc0\x7f", "NaN or infinite, which MXFP4 cannot hold")],
)
def test_values_that_cannot_be_held(
    plain: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    experts: str,
    offset: int,
    content: bytes,
    message: str,
) -> None:
    import shutil

    damaged = Path(shutil.copytree(plain, tmp_path / "damaged"))
    poke(shard(damaged, 2), EXPERT, offset, content)
    assert quantize(damaged, tmp_path / "m", "--experts", experts) == 1
    err = capsys.readouterr().err
    assert EXPERT in err and message in err
    assert not list((tmp_path / "m").glob("*.json"))


def test_scales_that_cannot_be_expanded(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    poke(shard(checkpoint, 2), EXPERT + "_scale", 0, b"\xff")
    assert quantize(checkpoint, tmp_path / "m", "--experts", "bf16") == 1
    assert EXPERT in capsys.readouterr().err


def test_refusals(pristine: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(pristine, tmp_path / "m", "--experts", "mxfp4") == 1
    assert "stored as mxfp4 already" in capsys.readouterr().err
    assert quantize(pristine, checkpoint, "--experts", "bf16") == 1
    assert "already holds weights" in capsys.readouterr().err
    assert quantize(pristine, tmp_path / "m", "--experts", "int4") == 2
    capsys.readouterr()
    shard(checkpoint, 3).unlink()
    assert quantize(checkpoint, tmp_path / "m", "--experts", "bf16") == 1
    assert "model-00003-of-000005.safetensors: no such file" in capsys.readouterr().err
