"""The Responses API: ``POST /v1/responses``.

Unusual: without the half of it that stores anything. Agents that send whole conversations need no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openk3.llm.answer import Answer
from openk3.server.endpoint import Asked, EventStream, ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.objects import error_object
from openk3.server.openai.responses_events import ResponseEvents, response_body
from openk3.server.openai.responses_request import read_responses


class Responses:
    """The `Endpoint` of the Responses API."""

    paths: tuple[str, ...] = ("/v1/responses",)

    def read(self, body: Mapping[str, Any], model: ServedModel) -> Asked:
        """Understand a body; raise `Fault` for what is wrong with it."""
        return read_responses(body, model)

    def whole(self, asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
        """Return the body of a finished answer."""
        return response_body(asked, answer, model)

    def events(self, asked: Asked, model: ServedModel) -> EventStream:
        """Begin to turn an answer into events."""
        return ResponseEvents(asked, model)

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_object(fault)
