"""A model's own sampling settings: the ``generation_config.json`` beside its ``config.json``.

Unusual: optional. Without it, the published model's recommendation holds (temperature 1, top-p 0.95).
"""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openk3.errors import ConfigError
from openk3.protocol.sampling import SamplingParams

FILE_NAME = "generation_config.json"
RECOMMENDED = SamplingParams(temperature=1.0, top_p=0.95)

_READ = frozenset({"do_sample", "eos_token_id", "max_new_tokens", "temperature", "top_k", "top_p"})
# Without meaning here: written by libraries, or (max_length) said by config.json's context already.
_IGNORED = frozenset(
    {"_from_model_config", "bos_token_id", "max_length", "pad_token_id", "transformers_version", "use_cache"}
)


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Sampling settings of a model, and the ids that end its answers beyond those of its chat format."""

    sampling: SamplingParams = RECOMMENDED
    eos_token_ids: tuple[int, ...] = ()


def load_generation_config(folder: str | Path) -> GenerationConfig:
    """Read the settings of the model in ``folder``; raise `ConfigError` naming file, field and value."""
    file = Path(folder) / FILE_NAME
    if not file.exists():
        return GenerationConfig()
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
    try:
        return _from_dict(raw)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}", hint=error.hint) from None


def _from_dict(raw: Any) -> GenerationConfig:
    if not isinstance(raw, dict):
        raise ConfigError(f"is {raw!r}, expected an object")
    for key in raw.keys() - _READ - _IGNORED:
        near = difflib.get_close_matches(key, _READ, n=1)
        raise ConfigError(f"{key} is not a known setting", hint=f"did you mean {near[0]}?" if near else None)
    greedy = _get(raw, "do_sample", bool, True) is False
    sampling = SamplingParams(
        temperature=0.0 if greedy else float(_get(raw, "temperature", float, RECOMMENDED.temperature)),
        top_p=float(_get(raw, "top_p", float, RECOMMENDED.top_p)),
        top_k=_get(raw, "top_k", int, RECOMMENDED.top_k),
        max_tokens=_get(raw, "max_new_tokens", int, None),
    )
    return GenerationConfig(sampling=sampling, eos_token_ids=_ids(raw.get("eos_token_id")))


def _get(raw: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = raw.get(key)
    if value is None:
        return default
    # A bool is an int to Python, an int is a number to JSON.
    fits = isinstance(value, int | float if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not fits:
        raise ConfigError(f"{key} is {value!r}, expected {_KINDS[kind]}")
    if kind is float and not abs(value) <= sys.float_info.max:
        raise ConfigError(f"{key} is {value!r:.60}, expected a finite number")
    return value


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def _ids(value: Any) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise ConfigError(f"eos_token_id is {value!r}, expected an id or a list of ids")
    return tuple(ids)
