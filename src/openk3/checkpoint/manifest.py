"""SHA-256 manifests of a checkpoint folder, in the format of ``sha256sum``, which can check them too.

Unusual: names are those of files directly in the folder; a line that points elsewhere is an error.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from openk3.checkpoint.progress import Progress
from openk3.errors import CheckpointError

_LINE = re.compile(r"(?P<digest>[0-9a-f]{64}) [ *](?P<name>[^/\\]+)")


def write_manifest(folder: Path, manifest: Path, *, progress: Progress | None = None) -> int:
    """Write the digests of all files in ``folder`` to ``manifest``; return how many there are."""
    paths = [path for path in _files(folder) if path.resolve() != manifest.resolve()]
    lines = [f"{_digest(path, progress)}  {path.name}\n" for path in paths]
    try:
        manifest.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{manifest}: cannot be written: {error.strerror}") from None
    return len(lines)


def manifest_faults(folder: Path, manifest: Path, *, progress: Progress | None = None) -> list[str]:
    """Return one line per file that differs from ``manifest``, is missing, or is a shard that it does not list.

    Raises:
        CheckpointError: the manifest cannot be read, or a line of it is not a digest and a file name.
    """
    listed = _read(manifest)
    faults = []
    for name, digest in listed.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{path}: listed in {manifest.name}, but there is no such file")
        elif (found := _digest(path, progress)) != digest:
            faults.append(f"{path}: SHA-256 is {found}, expected {digest} by {manifest.name}")
    return faults + [
        f"{path}: not listed in {manifest.name}"
        for path in _files(folder)
        if path.suffix == ".safetensors" and path.name not in listed
    ]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _digest(path: Path, progress: Progress | None) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if progress is not None:
        progress(path.name, path.stat().st_size)
    return digest


def _read(manifest: Path) -> dict[str, str]:
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{manifest}: cannot be read: {error}") from None
    listed = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise CheckpointError(f"{manifest}:{number}: {line!r:.80} is not a SHA-256 digest and a file name")
        listed[match["name"]] = match["digest"]
    if not listed:
        raise CheckpointError(f"{manifest}: lists no file")
    return listed
