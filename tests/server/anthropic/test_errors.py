"""Errors have Anthropic's names, and the status that every dialect has."""

from __future__ import annotations

import pytest

from openk3.errors import CapacityError, ChatError, EngineError, NumericsError, QueueFullError
from openk3.server.anthropic.errors import error_body
from openk3.server.faults import Fault, fault_of


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Fault("x"), "invalid_request_error"),
        (Fault("x", status=405), "invalid_request_error"),
        (Fault("x", status=401, kind="incorrect_api_key_error"), "authentication_error"),
        (Fault("x", status=403, kind="permission_denied_error"), "permission_error"),
        (Fault("x", status=404, kind="resource_not_found_error"), "not_found_error"),
        (Fault("x", status=413), "request_too_large"),
        (Fault("x", status=429, kind="rate_limit_reached_error"), "rate_limit_error"),
        (Fault("x", status=429, kind="exceeded_current_quota_error"), "rate_limit_error"),
        (Fault("x", status=504, kind="timeout_error"), "timeout_error"),
        (fault_of(QueueFullError("x")), "overloaded_error"),
        (fault_of(EngineError("x")), "overloaded_error"),
        (fault_of(NumericsError("x")), "api_error"),
        (fault_of(ChatError("x")), "invalid_request_error"),
        (fault_of(CapacityError("x")), "invalid_request_error"),
        (fault_of(ZeroDivisionError("x")), "api_error"),
    ],
)
def test_names(fault: Fault, name: str) -> None:
    assert error_body(fault) == {"type": "error", "error": {"type": name, "message": fault.text}}


def test_the_message_has_the_hint() -> None:
    assert error_body(Fault("too long", hint="shorten it"))["error"]["message"] == "too long (shorten it)"
