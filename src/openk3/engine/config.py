"""What an engine may use and how it behaves; frozen, validated once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from openk3.engine.cache.identity import check_unit
from openk3.errors import ConfigError
from openk3.ops.kda.chunk import CHUNK_SIZE

MAX_DEPTH = CHUNK_SIZE - 2
"""Most tokens that may be drafted at once: with the token before them they end at most one chunk of 16."""


Speculation = Literal["off", "ngram", "mtp", "draft"]
"""Who guesses tokens ahead: nobody, the text's own repetitions, the model's prediction layers, a second model."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of an `Engine`.

    At most ``max_running`` requests are computed and ``max_waiting`` wait; a step computes about ``token_budget``
    tokens (everybody who writes, and at least 16 of prompts). ``page_size`` and ``identity_unit`` (a multiple of 16)
    are in tokens and independent of each other; prompts get a checkpoint every ``ladder`` tokens (0: only at forks and
    ends). ``memory_bytes`` bounds weights, caches and activations (None: half of what is free). ``cache_folder`` keeps
    at most ``cache_folder_bytes`` of checkpoints on disk. At most ``speculate_depth`` tokens are drafted at once. A
    request's results do not depend on others or on the cache, bit for bit, unless this machine's matrix products
    depend on the number of rows: that is checked at the start, logged, and with ``deterministic`` an error.
    """

    max_running: int = 32
    max_waiting: int = 1024
    token_budget: int = 512
    page_size: int = 64
    identity_unit: int = CHUNK_SIZE
    ladder: int = 8192
    memory_bytes: int | None = None
    prefix_cache: bool = True
    cache_folder: Path | None = None
    cache_folder_bytes: int = 16 << 30
    speculate: Speculation = "off"
    speculate_depth: int = 4
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_unit(self.identity_unit)
        for name in ("max_running", "max_waiting", "token_budget", "page_size", "cache_folder_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.token_budget < CHUNK_SIZE:
            raise ConfigError(f"token_budget is {self.token_budget}, expected at least {CHUNK_SIZE}")
        if self.ladder < 0:
            raise ConfigError(f"ladder is {self.ladder}, expected 0 (no checkpoints on the way) or a number of tokens")
        if self.speculate not in get_args(Speculation):
            raise ConfigError(f"speculate is {self.speculate!r}, expected one of {', '.join(get_args(Speculation))}")
        if not 1 <= self.speculate_depth <= MAX_DEPTH:
            raise ConfigError(f"speculate_depth is {self.speculate_depth}, expected 1 to {MAX_DEPTH}")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            raise ConfigError(f"memory_bytes is {self.memory_bytes}, expected at least 1")
        if self.cache_folder is not None and not self.prefix_cache:
            raise ConfigError("cache_folder is set but prefix_cache is off", hint="turn one of them around")
