"""From what a user calls a model to its folder: a path, or the name of a bundled one.

Unusual: a folder of that name wins over a bundled model, as for any program that takes paths.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from openk3.errors import CheckpointError, ConfigError
from openk3.protocol.checks import shown

_BUNDLED = Path(__file__).resolve().parent.parent / "models"


def bundled_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in _BUNDLED.glob("*/config.json"))


def resolve_model(name_or_path: str | Path) -> Path:
    """Return the folder of a model.

    Raises:
        CheckpointError: there is neither such a folder nor such a name.
        ConfigError: it is no text and no path.
    """
    given: object = os.fspath(name_or_path) if isinstance(name_or_path, os.PathLike) else name_or_path
    if not isinstance(given, str) or not given:
        raise ConfigError(f"the model is {shown(given)}, expected the path of a folder or a name", hint=_bundled())
    path = Path(os.path.expanduser(given))  # Path's own raises for an unknown user or home
    try:
        if path.is_dir():
            return path
        is_file = path.is_file()
    except OSError as error:  # too long to be a path
        raise CheckpointError(f"{shown(str(path))} cannot be opened: {error.strerror}") from None
    if is_file:
        raise CheckpointError(f"{path}: is a file, expected the folder that holds config.json")
    names = bundled_models()
    if given in names:
        return _BUNDLED / given
    near = difflib.get_close_matches(given, names, n=1)
    raise CheckpointError(
        f"{given}: neither a folder nor a bundled model", hint=f"did you mean `{near[0]}`?" if near else _bundled()
    )


def _bundled() -> str:
    names = bundled_models()
    return f"bundled: {', '.join(names)}" if names else "none is bundled"
