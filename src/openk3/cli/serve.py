"""``openk3 serve``: a model behind HTTP. The URL on stdout once it answers; the log and remarks on stderr.

Unusual: the address is taken before the model is loaded, so that a wrong one is said at once and not after minutes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from openk3.cli.errors import UsageError
from openk3.cli.flags import DType, EngineFlags, Speculation, Switch  # noqa: F401 (types of inherited flags too)
from openk3.engine.sizes import parse_size
from openk3.errors import ConfigError

if TYPE_CHECKING:
    from openk3.server.settings import ServerSettings

Several = Annotated[tuple[str, ...], Parameter(show_default=False)]


@dataclass(frozen=True, kw_only=True)
class ServerFlags:
    """Who may ask, where, and how much."""

    host: str = "127.0.0.1"
    """Address to listen at; the default is reached from this machine only."""
    port: int = 8000
    """Port to listen at; 0 takes any free one."""
    name: Several = ()
    """What clients may call the model, besides its own name; may be given several times."""
    api_key: Several = ()
    """A key that may ask; may be given several times. Without keys everybody may."""
    api_key_file: Path | None = None
    """Keys that may ask, in lines of `name key` or `key`."""
    max_concurrent: int = 0
    """Most requests of one key at once; 0 allows any number."""
    requests_per_minute: int = 0
    """Most requests of one key within a minute; 0 allows any number."""
    max_body: str = "32MiB"
    """Most bytes of a request."""
    cors_origin: Several = ()
    """A site whose pages may ask, such as https://example.com, or * for all; may be given several times."""
    timeout: float = 900.0
    """Most seconds of one request."""
    shutdown: float = 30.0
    """Seconds that running requests get when the server is stopped."""
    free_sampling: Switch = False
    """Allow sampling parameters that Kimi K3's own service fixes."""
    isolate_keys: Switch = False
    """Let only requests of the same key share what was read of earlier ones."""
    usage_file: Path | None = None
    """Keep what each key has used in this file, from one run to the next."""

    def settings(self, model: str) -> ServerSettings:
        """Give the settings of a server of ``model``; raise `UsageError` for values without meaning."""
        from openk3.server.auth import name_keys
        from openk3.server.settings import ServerSettings

        try:
            return ServerSettings(
                host=self.host,
                port=self.port,
                names=tuple(dict.fromkeys([Path(model).resolve().name, *self.name])),
                api_keys=name_keys(self.api_key, self.api_key_file),
                max_concurrent=self.max_concurrent,
                requests_per_minute=self.requests_per_minute,
                max_body_bytes=parse_size(self.max_body),
                cors_origins=self.cors_origin,
                timeout_s=self.timeout,
                shutdown_s=self.shutdown,
                free_sampling=self.free_sampling,
                isolate_keys=self.isolate_keys,
                usage_file=self.usage_file,
            )
        except ConfigError as error:
            raise UsageError(error.message, hint=error.hint) from None


@dataclass(frozen=True, kw_only=True)
class ServedEngineFlags(EngineFlags):
    """How the engine of a server runs."""

    max_running: int | None = None
    """Most requests that are computed together; 32 if not given."""
    max_waiting: int | None = None
    """Most requests that wait for their turn, 1024 if not given; more are refused."""

    def settings(self) -> dict[str, Any]:
        """Give the settings of an engine; raise `UsageError` for values without meaning."""
        own = {"max_running": self.max_running, "max_waiting": self.max_waiting}
        return super().settings() | {name: value for name, value in own.items() if value is not None}


Server = Annotated[ServerFlags, Parameter(name="*")]
ServedEngine = Annotated[ServedEngineFlags, Parameter(name="*")]


def serve(
    model: str = "nano",
    /,
    *,
    server: Server = ServerFlags(),
    engine: ServedEngine = ServedEngineFlags(),
    dtype: DType = "bfloat16",
) -> None:
    """Answer over HTTP, as the hosted service does.

    Parameters
    ----------
    model
        A folder in the published layout, or a bundled name: nano.
    dtype
        What activations and dense weights are computed in.
    """
    settings = server.settings(model)  # wrong values are said before a model is loaded
    engine.settings()

    from openk3.cli.session import engine_config, load
    from openk3.cli.terminal import note
    from openk3.server.serve import bind, is_local, url_of
    from openk3.server.serve import serve as run

    engine_config(engine)
    with bind(settings.host, settings.port) as sock:
        if not (settings.api_keys or is_local(sock)):
            note("warning: other machines can reach this address, and without --api-key everybody may ask")
        for line in _terms(model):
            note(line)
        with load(model, dtype, engine) as llm:
            note(llm.about)
            is_busy = run(llm, settings, sock, ready=lambda: print(url_of(sock), flush=True), say=note)
    if is_busy:
        sys.stderr.flush()
        os._exit(0)


def _terms(model: str) -> tuple[str, ...]:
    from openk3.checkpoint.resolve import resolve_model
    from openk3.model.licence import licence_terms
    from openk3.model.published import load_config

    return licence_terms(load_config(resolve_model(model)))
