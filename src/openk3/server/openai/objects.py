"""Objects that several of OpenAI's endpoints answer with: usage, errors, ids.

Unusual: cached tokens are said twice, as OpenAI's clients and those of the hosted service look in different places.
"""

from __future__ import annotations

import secrets
from typing import Any

from openk3.protocol.sampling import Usage
from openk3.server.faults import Fault

_ID_BYTES = 12


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return what an answer cost; cached tokens stand in both places where clients look for them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def error_object(fault: Fault) -> dict[str, Any]:
    """Return the body of an error; code and param are left out where there are none."""
    error: dict[str, Any] = {"type": fault.kind, "message": fault.text}
    if fault.code is not None:
        error["code"] = fault.code
    if fault.param is not None:
        error["param"] = fault.param
    return {"error": error}


def new_id(prefix: str) -> str:
    """Make an id of 24 hexadecimal digits behind ``prefix``."""
    return f"{prefix}{secrets.token_hex(_ID_BYTES)}"
