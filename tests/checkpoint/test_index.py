"""Damaged headers and indices give one precise error each, whatever is in them."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from openk3.checkpoint.index import INDEX_FILE, layout_faults, parse_header, read_header, read_index
from openk3.errors import CheckpointError
from tests.checkpoint.conftest import edit_header, edit_index, shard

NORM = "language_model.model.norm.weight"


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file(
        {"a": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.bfloat16), "empty": torch.zeros(0, 4)},
        tmp_path / "x.safetensors",
        metadata={"format": "pt"},
    )
    header = read_header(tmp_path / "x.safetensors")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in header.tensors.items()} == {
        "a": ("F32", (3, 5)),
        "b": ("BF16", (2,)),
        "empty": ("F32", (0, 4)),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, expected at least 8"),
        (b"PK\x03\x04", "4 bytes, expected at least 8"),
        (b"\x80\x02}q\x00(X\x0b\x00" + b"x" * 100, "not a safetensors file"),
        (struct.pack("<Q", 1000) + b"{}", "its header claims 1000 bytes, but the file has 10"),
        (struct.pack("<Q", 2) + b"[]", "its header starts with"),
        (struct.pack("<Q", 5) + b'{"a":', "its header is not JSON"),
        (struct.pack("<Q", 4) + b'{"\xff"', "its header is not JSON"),
        (struct.pack("<Q", 20000) + b'{"a":' + b"[" * 19995, "its header is not JSON"),
        (struct.pack("<Q", 8) + b'{"a":{}}', "a: its header entry is {}"),
        (struct.pack("<Q", 7) + b'{"a":1}', "a: its header entry is 1"),
    ],
)
def test_files_that_are_not_shards(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        parse_header(path)
    assert message in raised.value.message and str(path) in raised.value.message
    assert "\n" not in raised.value.message


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("entries", "size", "message"),
    [
        ({"a": entry(dtype="F31")}, 8, "a: its dtype is 'F31'"),
        ({"a": entry(dtype=["F32"])}, 8, "a: its dtype is ['F32']"),
        ({"a\nb": entry()}, 8, "'a\\nb' is not a name of a tensor"),
        ({"a": entry(shape=[-2])}, 8, "a: its shape is [-2]"),
        ({"a": entry(shape=[1] * 17)}, 8, "expected at most 16 sizes"),
        ({"a": entry(shape=[True])}, 8, "a: its shape is [True]"),
        ({"a": entry(shape=[2.0])}, 8, "a: its shape is [2.0]"),
        ({"a": entry(offsets=[8, 0])}, 8, "a: its data_offsets are [8, 0]"),
        ({"a": entry(offsets=[0])}, 8, "a: its data_offsets are [0]"),
        ({"a": entry(offsets=[0, 12])}, 12, "a: F32 [2] takes 8 bytes, but its offsets span 12"),
        ({"a": entry(shape=[10**15])}, 8, "bytes, but its offsets span 8"),
        ({"a": entry(), "b": entry(offsets=[4, 12])}, 12, "b: its bytes start at 4, inside a, which ends at 8"),
        ({"a": entry(), "b": entry(offsets=[0, 8])}, 8, "b: its bytes start at 0, inside a, which ends at 8"),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, 20, "b: its bytes start at 12, leaving a hole after 8"),
        ({"a": entry(offsets=[4, 12])}, 12, "a: its bytes start at 4, leaving a hole after 0"),
        ({"a": entry()}, 5, "a: truncated: it ends at byte 8 of the data, but the file holds 5"),
        ({"a": entry()}, 11, "3 bytes follow the last tensor"),
    ],
)
def test_entries_that_make_no_sense(tmp_path: Path, entries: dict[str, object], size: int, message: str) -> None:
    path = tmp_path / "x.safetensors"
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    with pytest.raises(CheckpointError) as raised:
        read_header(path)
    assert message in raised.value.message and str(path) in raised.value.message


def test_all_layout_faults_are_found_not_just_the_first(checkpoint: Path) -> None:
    def damage(header: dict[str, dict[str, list[int]]]) -> None:
        header["language_model.model.norm.weight"]["data_offsets"][0] += 2
        header["language_model.lm_head.weight"]["data_offsets"][1] -= 2

    edit_header(shard(checkpoint, 5), damage)
    assert len(list(layout_faults(parse_header(shard(checkpoint, 5))))) >= 4


def test_a_tensor_named_twice_in_a_header(tmp_path: Path) -> None:
    text = b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2)
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(CheckpointError, match="a: the header names it twice"):
        parse_header(path)


def test_random_bytes_never_escape_as_other_errors(checkpoint: Path) -> None:
    rng = random.Random(0)
    path = shard(checkpoint, 1)
    pristine = path.read_bytes()
    length = struct.unpack("<Q", pristine[:8])[0]
    for _ in range(300):
        damaged = bytearray(pristine)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(8 + length)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_header(path)
        except CheckpointError as error:
            assert str(path) in error.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "its index is not JSON"),
        ("[]", "its index is a list"),
        ("{}", "weight_map is missing or empty"),
        ('{"weight_map": {}}', "weight_map is missing or empty"),
        ('{"weight_map": {"a": 3}}', "a: its file is 3"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "a: its file is '../x.safetensors'"),
        ('{"weight_map": {"a": "/etc/x.safetensors"}}', "a: its file is '/etc/x.safetensors'"),
        ('{"weight_map": {"a": "\\u0000.safetensors"}}', "a: its file is '\\x00.safetensors'"),
        ('{"weight_map": {"\\n": "x.safetensors"}}', "'\\n' is not a name of a tensor"),
        ('{"weight_map": {"a": "x.bin"}}', "a: its file is 'x.bin'"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "a: the index names it twice"),
        ('{"metadata": {"total_size": -1}, "weight_map": {"a": "x.safetensors"}}', "metadata.total_size is -1"),
    ],
)
def test_damaged_indices(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(CheckpointError) as raised:
        read_index(tmp_path)
    assert message in raised.value.message and INDEX_FILE in raised.value.message


def test_a_lone_file_needs_no_index(tmp_path: Path, pristine: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard(pristine, 5).read_bytes())
    index = read_index(tmp_path)
    assert index.files == ("model.safetensors",) and NORM in index.weight_map


def test_shards_without_an_index_are_an_interrupted_copy(checkpoint: Path) -> None:
    (checkpoint / INDEX_FILE).unlink()
    with pytest.raises(CheckpointError, match="5 .safetensors files but no index"):
        read_index(checkpoint)


def test_a_folder_without_weights_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights"):
        read_index(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        read_index(tmp_path / "none")


def test_index_keeps_its_claims(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda index: index["metadata"].update(total_size=5))
    assert read_index(checkpoint).total_size == 5
    assert len(read_index(checkpoint).files) == 5


def test_is_free_of_torch() -> None:
    code = "import sys, openk3.checkpoint.verify, openk3.checkpoint.manifest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
