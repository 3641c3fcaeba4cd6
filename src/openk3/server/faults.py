"""What goes wrong with a request, as HTTP says it: status, kind and a message that is meant for the client.

Unusual: messages of unforeseen errors never leave the server; the client gets the number under which it was logged.
"""

from __future__ import annotations

from collections.abc import Mapping

from openk3.errors import (
    CapacityError,
    ChatError,
    ConfigError,
    DeadlineError,
    EngineError,
    NumericsError,
    OpenK3Error,
    QueueFullError,
)


class Fault(OpenK3Error):
    """A request that is not answered, or not to its end; ``kind`` is the type that the hosted service has for it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status, self.kind, self.param, self.code = status, kind, param, code
        self.headers = dict(headers or {})

    @property
    def text(self) -> str:
        """The message in one line, with the hint."""
        return self.message if not self.hint else f"{self.message} ({self.hint})"


# Seconds after which a client may try again when too many requests wait.
RETRY_AFTER_S = 1


def fault_of(error: BaseException) -> Fault:
    """Say as HTTP what ended a request; unforeseen errors become a 500 without details."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, QueueFullError):
        return Fault(
            error.message,
            status=429,
            kind="engine_overloaded_error",
            headers={"Retry-After": str(RETRY_AFTER_S)},
            hint=error.hint,
        )
    if isinstance(error, DeadlineError):
        return Fault(error.message, status=504, kind="timeout_error", hint=error.hint)
    if isinstance(error, NumericsError):
        return Fault(error.message, status=500, kind="unexpected_output", hint=error.hint)
    if isinstance(error, EngineError):
        return Fault(error.message, status=503, kind="server_unavailable", hint=error.hint)
    if isinstance(error, CapacityError):
        return Fault(error.message, code="context_length_exceeded", hint=error.hint)
    if isinstance(error, ChatError | ConfigError):
        return Fault(error.message, hint=error.hint)
    return Fault("the server could not answer this request", status=500, kind="server_error")
