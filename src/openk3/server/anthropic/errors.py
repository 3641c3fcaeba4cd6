"""Errors as Anthropic's clients know them.

Unusual: the status stays the hosted service's; only names differ.
"""

from __future__ import annotations

from typing import Any

from openk3.server.faults import Fault

_BY_KIND = {"engine_overloaded_error": "overloaded_error", "server_unavailable": "overloaded_error"}
_BY_STATUS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(fault: Fault) -> dict[str, Any]:
    """Return the body of an error, or the data of an error event."""
    return {"type": "error", "error": {"type": _error_type(fault), "message": fault.text}}


def _error_type(fault: Fault) -> str:
    other = "api_error" if fault.status >= 500 else "invalid_request_error"
    return _BY_KIND.get(fault.kind) or _BY_STATUS.get(fault.status, other)
