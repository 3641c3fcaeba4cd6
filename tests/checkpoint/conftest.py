"""A small random checkpoint, made once, copied for each test that damages it; and the tools to damage it."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openk3.checkpoint.index import INDEX_FILE
from openk3.checkpoint.random_init import RandomSource
from openk3.checkpoint.writer import write_checkpoint
from openk3.model.presets import preset


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole mini4 checkpoint; not to be changed."""
    folder = tmp_path_factory.mktemp("pristine") / "mini4"
    write_checkpoint(folder, preset("mini4"), RandomSource(preset("mini4"), 7))
    return folder


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the mini4 checkpoint that the test may damage."""
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def shard(folder: Path, number: int) -> Path:
    """The path of shard ``number`` of 5."""
    return folder / f"model-{number:05d}-of-000005.safetensors"


def edit_header(path: Path, change: Callable[[dict[str, Any]], None], *, data: bytes | None = None) -> None:
    """Change a shard's header, keeping its data (or replacing them)."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + (content[8 + length :] if data is None else data))


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the index."""
    path = folder / INDEX_FILE
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def poke(path: Path, name: str, offset: int, content: bytes) -> None:
    """Overwrite bytes of a tensor."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    begin = 8 + length + json.loads(raw[8 : 8 + length])[name]["data_offsets"][0] + offset
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(content)
