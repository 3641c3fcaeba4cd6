"""Keeps pages of other sites out of a server that is only meant for this machine (DNS rebinding).

Unusual: only browsers are asked for the right name, since no other program can be made to send a wrong one by a page.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openk3.protocol.checks import shown
from openk3.server.access_log import send_json
from openk3.server.body import json_bytes
from openk3.server.faults import Fault


class LocalNames:
    """Refuses requests of browsers that know this machine by another name than its own (as middleware)."""

    def __init__(self, app: ASGIApp, *, error: Callable[[str, Fault], dict[str, Any]]) -> None:
        self._app, self._error = app, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http" and (fault := _fault(Headers(scope=scope))):
            await send_json(send, fault.status, json_bytes(self._error(scope["path"], fault)))
            return
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Tell whether a host, a name or an address, is this machine for itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _fault(headers: Headers) -> Fault | None:
    if not ("origin" in headers or "sec-fetch-site" in headers):
        return None
    host = headers.get("host", "")
    if is_loopback(_name(host)):
        return None
    return Fault(
        f"a page asks for the host {shown(host)}, expected localhost or 127.0.0.1",
        status=403,
        kind="permission_denied_error",
        hint="a server with an --api-key may have other names",
    )


def _name(host: str) -> str:
    """Take the port off a host."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
