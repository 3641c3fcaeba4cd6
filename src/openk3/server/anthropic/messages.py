"""The endpoint for Anthropic's messages.

Unusual: at two paths, the hosted service's and Anthropic's own, so that clients need only another address.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from openk3.llm.answer import Answer
from openk3.server.anthropic.errors import error_body
from openk3.server.anthropic.messages_events import MessageEvents, message_body
from openk3.server.anthropic.messages_request import read_request
from openk3.server.endpoint import Asked, EventStream, ServedModel
from openk3.server.faults import Fault


class Messages:
    """Answers ``POST /v1/messages``; an `openk3.server.endpoint.Endpoint`."""

    paths: tuple[str, ...] = ("/anthropic/v1/messages", "/v1/messages")

    def read(self, body: Mapping[str, Any], model: ServedModel) -> Asked:
        """Understand a JSON object; raise `Fault` if it cannot be."""
        return read_request(body, model)

    def whole(self, asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
        """Return the body of a finished answer."""
        return message_body(_new_id(), asked.model, answer, thinking=asked.options["thinking"])

    def events(self, asked: Asked, model: ServedModel) -> EventStream:
        """Begin to turn an answer into events."""
        return MessageEvents(_new_id(), asked.model, thinking=asked.options["thinking"])

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_body(fault)


def _new_id() -> str:
    return f"msg_{secrets.token_hex(12)}"
