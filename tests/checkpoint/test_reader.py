"""The mapped reader against the safetensors library, and that it gives pages back."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from openk3.checkpoint.reader import ShardReader
from openk3.errors import CheckpointError, TensorError
from tests.checkpoint.conftest import shard


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def test_lends_what_the_library_reads(pristine: Path) -> None:
    for number in range(1, 6):
        reader = ShardReader(shard(pristine, number))
        expected = load_file(shard(pristine, number))
        assert set(reader.header.tensors) == set(expected)
        for name, tensor in expected.items():
            with reader.lend(name) as view:
                assert view.dtype == tensor.dtype and torch.equal(view, tensor)
            assert torch.equal(reader.copy(name), tensor)


def test_pages_are_given_back_after_an_error_too(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, released = ShardReader(shard(pristine, 1)), []
    monkeypatch.setattr(reader, "_release", released.append)
    name = next(iter(reader.header.tensors))
    with pytest.raises(ZeroDivisionError), reader.lend(name):
        raise ZeroDivisionError
    assert released == [reader.stored(name)]


def test_reads_data_that_start_at_an_odd_byte(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
            "b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        }
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\x07" + struct.pack("<2f", 1.5, -2.0))
    assert ShardReader(path).copy("a").tolist() == [1.5, -2.0]


def test_reads_empty_tensors(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(0, 3), "b": torch.ones(1)}, tmp_path / "x.safetensors")
    assert ShardReader(tmp_path / "x.safetensors").copy("a").shape == (0, 3)


def test_gives_pages_back_after_each_loan(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    size = 16 << 20
    save_file({f"t{n}": torch.full((size,), n, dtype=torch.uint8) for n in range(6)}, path)
    reader = ShardReader(path)
    before = resident_bytes()
    for n in range(6):
        with reader.lend(f"t{n}") as view:
            assert int(view.max()) == n
            del view
        assert resident_bytes() - before < size


def test_absent_tensors_and_unusable_dtypes_are_named(tmp_path: Path, pristine: Path) -> None:
    with pytest.raises(TensorError, match="nowhere: the shard does not hold it"):
        ShardReader(shard(pristine, 1)).copy("nowhere")
    text = json.dumps({"a": {"dtype": "U32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(TensorError, match="a: dtype U32"):
        ShardReader(path).copy("a")


def test_unsound_files_are_refused_before_anything_is_read(checkpoint: Path) -> None:
    path = shard(checkpoint, 1)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="truncated"):
        ShardReader(path)
