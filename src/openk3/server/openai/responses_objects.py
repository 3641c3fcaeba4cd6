"""Objects of the Responses API: the response as a whole, and what it cost.

Unusual: fields of the hosted service that have no meaning here are given with the value that says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from openk3.protocol.sampling import Usage
from openk3.server.endpoint import Asked
from openk3.server.faults import Fault
from openk3.server.openai.objects import new_id
from openk3.server.openai.responses_request import ResponsesView


class ResponseObject:
    """Writes one response at every stage of it, under one id."""

    def __init__(self, asked: Asked) -> None:
        view: ResponsesView = asked.body
        self._head = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": asked.model,
            **view.repeated,
            "background": False,
            "conversation": None,
            "metadata": {},
            "previous_response_id": None,
            "service_tier": "default",
            "store": False,
            "truncation": "disabled",
            "user": None,
        }

    def begun(self) -> dict[str, Any]:
        """Give it before there is anything."""
        return self._at("in_progress", [])

    def ended(self, output: Sequence[Mapping[str, Any]], usage: Usage, *, is_cut: bool) -> dict[str, Any]:
        """Give it whole, or as far as a limit let it come."""
        if is_cut:
            details = {"reason": "max_output_tokens"}
            return self._at("incomplete", output, usage=usage_of(usage), incomplete_details=details)
        return self._at("completed", output, usage=usage_of(usage), completed_at=int(time.time()))

    def failed(self, output: Sequence[Mapping[str, Any]], fault: Fault) -> dict[str, Any]:
        """Give it as far as it came before something went wrong."""
        return self._at("failed", output, error={"code": _code(fault), "message": fault.text})

    def _at(self, status: str, output: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
        nothing = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._head, "status": status, **nothing, **more, "output": list(output)}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return what an answer cost; here nobody pays for what is written to the cache."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _code(fault: Fault) -> str:
    """Give one of the few codes that clients of this API know."""
    if fault.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if fault.status >= 500 else "invalid_prompt"
