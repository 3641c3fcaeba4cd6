"""A training run's settings: frozen, read from TOML, checked once; an unknown key is an error with a suggestion.

Unusual: paths are relative to the file they stand in, and a run ends after ``steps``, after ``max_minutes``, or at
whichever comes first; the learning rate follows the larger of the two elapsed shares.
"""

from __future__ import annotations

import difflib
import os
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from openk3.errors import ConfigError

_MOST_THREADS = 4096
# what the seven digits in a checkpoint's name can tell apart
_MOST_STEPS = 9_999_999

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """When the run ends, where it writes, how often it reports."""

    output: Path
    steps: int | None = None
    max_minutes: float | None = None
    seed: int = 0
    threads: int | None = None
    log_every: int = 10
    evaluate_every: int = 200
    checkpoint_every: int = 200
    keep_checkpoints: int = 2


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """What is trained: a named preset or a ``config.json`` with fresh weights, or a checkpoint's weights."""

    preset: str | None = None
    config: Path | None = None
    weights: Path | None = None


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One source of documents and its share of the trained tokens."""

    name: str
    path: Path
    weight: float = 1.0
    format: Literal["tokens", "text", "jsonl"] = "tokens"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Sources and how their documents become batches; ``window`` is the longest document, in tokens."""

    sources: tuple[SourceConfig, ...]
    window: int = 512
    tokens_per_step: int = 4096
    accumulate: int = 1
    held_out: float = 0.01
    evaluation_tokens: int = 16384
    tokenizer: Path | None = None


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser and its schedule: linear warm-up, then cosine (Kimi K3 report, section 3.3)."""

    kind: Literal["muon", "adamw"] = "muon"
    learning_rate: float = 2e-3
    min_learning_rate: float = 2e-4
    warmup: float = 0.01
    weight_decay: float = 0.1
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig:
    """From which share of the run on the routed experts are rounded to MXFP4 in every forward pass (1: never)."""

    start: float = 1.0


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    run: RunConfig
    model: ModelSource
    data: DataConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)

    def __post_init__(self) -> None:
        _validate(self)


def load_train_config(path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML file, with ``section.key=value`` overrides (values in TOML, or bare text).

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value cannot be honoured.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    for override in overrides:
        _override(raw, override)
    try:
        return _build(TrainConfig, raw, "", path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None


def _override(raw: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, _, name = key.strip().rpartition(".")
    if not equals or not name or not section:
        raise ConfigError(
            f"override {override!r} is not of the form section.key=value",
            hint="for example --set optim.learning_rate=1e-3",
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    target = raw.setdefault(section, {})
    if not isinstance(target, dict):
        raise ConfigError(f"override {override!r}: {section} is not a table")
    target[name] = value


def _build(kind: type[T], raw: Any, where: str, folder: Path) -> T:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the file'} is {raw!r:.60}, expected a table of settings")
    assert is_dataclass(kind)
    known = {item.name: item for item in fields(kind)}
    hints = typing.get_type_hints(kind)
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ConfigError(
                f"{where}{key}: unknown setting (value {raw[key]!r:.60})",
                hint=f"did you mean `{near[0]}`?" if near else f"known are: {', '.join(known)}",
            )
    for name, item in known.items():
        if name not in raw and _is_required(item):
            raise ConfigError(f"{where}{name} is missing", hint="it has no default")
    return kind(**{name: _value(hints[name], raw[name], where + name, folder) for name in raw})


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _value(hint: Any, raw: Any, where: str, folder: Path) -> Any:
    """Convert a TOML value to the type ``hint``; raise `ConfigError` if it is another."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, raw, where + ".", folder)
    if origin in (types.UnionType, typing.Union):
        return _value(arguments[0], raw, where, folder)  # all unions here are "T or nothing given"
    if origin is tuple:
        return _tuple(arguments, raw, where, folder)
    if origin is Literal:
        return _choice(arguments, raw, where)
    if hint is Path and isinstance(raw, str):
        if not raw or "\0" in raw:
            raise ConfigError(f"{where} is {raw!r:.60}, expected a path")
        return folder / os.path.expanduser(raw)
    if hint is float and isinstance(raw, (int, float)) and not isinstance(raw, bool):
        return _finite(raw, where)
    if hint is not Path and type(raw) is hint:
        return raw
    raise ConfigError(f"{where} is {raw!r:.60}, expected {'a path' if hint is Path else hint.__name__}")


def _finite(raw: int | float, where: str) -> float:
    if not abs(raw) <= sys.float_info.max:
        raise ConfigError(f"{where} is {raw!r:.60}, expected a finite number")
    return float(raw)


def _tuple(arguments: tuple[Any, ...], raw: Any, where: str, folder: Path) -> tuple[Any, ...]:
    fixed = arguments[-1] is not Ellipsis
    if not isinstance(raw, list) or (fixed and len(raw) != len(arguments)):
        raise ConfigError(f"{where} is {raw!r:.60}, expected {f'{len(arguments)} values' if fixed else 'a list'}")
    return tuple(_value(arguments[0], item, f"{where}[{i}]", folder) for i, item in enumerate(raw))


def _choice(allowed: tuple[Any, ...], raw: Any, where: str) -> Any:
    if raw not in allowed:
        near = difflib.get_close_matches(str(raw), allowed, n=1)
        raise ConfigError(
            f"{where} is {raw!r:.60}, expected one of {', '.join(allowed)}",
            hint=f"did you mean `{near[0]}`?" if near else None,
        )
    return raw


def _validate(config: TrainConfig) -> None:
    run, model, data, optim = config.run, config.model, config.data, config.optim
    if run.steps is None and run.max_minutes is None:
        raise ConfigError("neither run.steps nor run.max_minutes is set", hint="say when the run ends")
    if sum(value is not None for value in (model.preset, model.config, model.weights)) != 1:
        raise ConfigError("model needs exactly one of preset, config and weights")
    names = [source.name for source in data.sources]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"data.sources are named {names}, expected at least one, each with its own name")
    for name in names:
        if name in ("", ".", "..") or "/" in name or not name.isprintable():
            raise ConfigError(f"data.sources: name is {name!r:.60}, expected one that can name a folder")
    _require_positive(
        "run", run, "steps max_minutes log_every evaluate_every checkpoint_every keep_checkpoints threads"
    )
    _require_positive("data", data, "tokens_per_step accumulate evaluation_tokens")
    _require_positive("optim", optim, "learning_rate clip")
    for source in data.sources:
        _require_positive(f"data.sources {source.name}", source, "weight")
    if not 2 <= data.window <= data.tokens_per_step:
        raise ConfigError(f"data.window is {data.window}, expected 2 to data.tokens_per_step ({data.tokens_per_step})")
    _require_share("data.held_out", data.held_out, below=0.5)
    _require_share("optim.warmup", optim.warmup, below=1.0)
    _require_share("optim.momentum", optim.momentum, below=1.0)
    for number, beta in enumerate(optim.betas):
        _require_share(f"optim.betas[{number}]", beta, below=1.0)
    if run.steps is not None and run.steps > _MOST_STEPS:
        raise ConfigError(f"run.steps is {run.steps!r:.40}, expected at most {_MOST_STEPS}")
    if optim.weight_decay < 0:
        raise ConfigError(f"optim.weight_decay is {optim.weight_decay}, expected 0 or more")
    if not 0 <= run.seed < 1 << 63:
        raise ConfigError(f"run.seed is {run.seed}, expected 0 to 2^63 - 1")
    if run.threads is not None and run.threads > _MOST_THREADS:
        raise ConfigError(f"run.threads is {run.threads}, expected at most {_MOST_THREADS}")
    _require_share("quantization.start", config.quantization.start, below=1.0 + 1e-9)
    if not 0 <= optim.min_learning_rate <= optim.learning_rate:
        raise ConfigError(
            f"optim.min_learning_rate is {optim.min_learning_rate}, expected 0 to optim.learning_rate "
            f"({optim.learning_rate})"
        )


def _require_positive(where: str, part: object, names: str) -> None:
    for name in names.split():
        value = getattr(part, name)
        if value is not None and value <= 0:
            raise ConfigError(f"{where}.{name} is {value}, expected more than 0")


def _require_share(where: str, value: float, below: float) -> None:
    if not 0 <= value < below:
        raise ConfigError(f"{where} is {value}, expected 0 to {below:g}")
