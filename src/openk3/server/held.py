"""The bodies of all requests that are being read or wait to be understood, and how much memory they may take.

Unusual: a body that is the only one is never refused here, so that no limit stops all work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from openk3.server.faults import RETRY_AFTER_S, Fault


class Held:
    """One body and its share of the memory, until it is let go."""

    def __init__(self, bodies: Bodies) -> None:
        self.content = b""
        self._bodies, self._size = bodies, 0

    def grow(self, size: int) -> None:
        """Take ``size`` more bytes; raise `Fault` (503) if all bodies together become too large."""
        self._bodies.size += size
        self._size += size
        if self._bodies.size > max(self._bodies.most, self._size):
            raise Fault(
                f"requests with {self._bodies.size:,} bytes in all are being read, expected at most "
                f"{self._bodies.most:,}",
                status=503,
                kind="server_unavailable",
                headers={"Retry-After": str(RETRY_AFTER_S)},
                hint="ask again later",
            )

    def free(self) -> None:
        """Let the body go; it may be called again."""
        self._bodies.size -= self._size
        self._size, self.content = 0, b""


class Bodies:
    """Counts the bytes of all bodies, in the event loop; beyond ``most`` no more are taken."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0

    @contextmanager
    def one(self) -> Iterator[Held]:
        """Hold a body within, until it is freed or the context ends."""
        held = Held(self)
        try:
            yield held
        finally:
            held.free()
