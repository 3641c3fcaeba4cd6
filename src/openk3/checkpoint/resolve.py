"""From what a user calls a model to its folder: a path, or the name of a bundled one.

Unusual: a folder of that name wins over a bundled model, as for any program that takes paths.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from openk3.errors import CheckpointError

_BUNDLED = Path(__file__).resolve().parent.parent / "models"


def bundled_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in _BUNDLED.glob("*/config.json"))


def resolve_model(name_or_path: str | Path) -> Path:
    """Return the folder of a model; raise `CheckpointError` if there is neither such a folder nor such a name."""
    path = Path(os.path.expanduser(name_or_path))  # Path's own raises for an unknown user or home
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path}: is a file, expected the folder that holds config.json")
    name, names = str(name_or_path), bundled_models()
    if name in names:
        return _BUNDLED / name
    near = difflib.get_close_matches(name, names, n=1)
    bundled = f"bundled: {', '.join(names)}" if names else "none is bundled"
    raise CheckpointError(
        f"{name}: neither a folder nor a bundled model", hint=f"did you mean `{near[0]}`?" if near else bundled
    )
