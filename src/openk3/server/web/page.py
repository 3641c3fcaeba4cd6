"""The routes of the web page: one for each of its files, held in memory.

Unusual: browsers keep the files but ask each time whether they have changed, so all of them are always of one version.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    # Nothing from elsewhere, nothing inline: markup that got into the page by mistake could neither run nor call out.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def routes() -> list[Route]:
    """Return the routes of the page: ``/``, and ``/web/NAME`` for what it loads."""
    folder = files("openk3.server.web") / "static"
    return [_route(file.name, file.read_bytes()) for file in folder.iterdir() if _suffix(file.name) in _TYPES]


def _route(name: str, content: bytes) -> Route:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": etag}

    async def serve(request: Request) -> Response:
        if _matches(request.headers.get("if-none-match", ""), etag):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_TYPES[_suffix(name)])

    return Route("/" if name == "index.html" else f"/web/{name}", serve)


def _matches(known: str, etag: str) -> bool:
    """Tell whether the client has this version; proxies that compress mark its ETag as weak."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in known.split(","))


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
