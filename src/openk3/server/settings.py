"""How a server behaves; frozen, validated once.

Unusual: nothing of it changes while the server runs, keys and limits neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from openk3.errors import ConfigError

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    It listens on ``host`` and ``port`` (0: any free one). ``names`` are the model's names for clients. ``api_keys``
    (name to key; none: everybody may ask) each allow ``max_concurrent`` requests at once and ``requests_per_minute``
    (0: any number). Bodies have at most ``max_body_bytes`` and ``max_depth`` levels, and
    ``max_bodies_bytes`` are held at once, of those that are not understood yet. ``cors_origins`` are other pages
    that may call. ``timeout_s`` bounds a request. ``shutdown_s`` is what running requests get when the server stops.
    ``free_sampling`` allows parameters that K3's rules fix. With ``isolate_keys`` only requests of one key share cached
    prefixes. ``usage_file`` keeps what each key has used, from one run to the next.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    api_keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    max_concurrent: int = 0
    requests_per_minute: int = 0
    max_body_bytes: int = 32 << 20
    max_bodies_bytes: int = 1 << 30
    max_depth: int = 64
    cors_origins: tuple[str, ...] = ()
    timeout_s: float = 900.0
    shutdown_s: float = 30.0
    free_sampling: bool = False
    isolate_keys: bool = False
    usage_file: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}, expected 0 (any free one) to 65535")
        for name in ("max_concurrent", "requests_per_minute"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 0 (any number) or more")
        for name in ("max_body_bytes", "max_bodies_bytes", "max_depth"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("timeout_s", "shutdown_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected a positive number of seconds")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origins has {origin!r:.100}, expected * or a scheme and a host, such as https://example.com"
                )
