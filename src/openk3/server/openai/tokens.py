"""Counting a prompt's tokens: ``POST /v1/tokenizers/estimate-token-count``.

Unusual: no estimate. The body may be that of a chat, with everything that is rendered; the count is what it would cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openk3.errors import OpenK3Error
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault, fault_of
from openk3.server.openai.chat_request import read_chat
from openk3.server.openai.objects import error_object
from openk3.server.prompt import num_prompt_tokens


class EstimateTokens:
    """The counter of Chat Completions."""

    paths: tuple[str, ...] = ("/v1/tokenizers/estimate-token-count",)

    def count(self, body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
        """Return how many tokens a chat's prompt has; raise `Fault` for what is wrong with it."""
        try:
            return {"data": {"total_tokens": num_prompt_tokens(read_chat(body, model), model)}}
        except OpenK3Error as error:
            raise fault_of(error) from None

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_object(fault)
