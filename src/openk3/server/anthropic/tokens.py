"""The endpoint that counts the tokens of a prompt without answering it.

Unusual: ``max_tokens`` need not be there, as Anthropic's clients leave it out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openk3.server.anthropic.errors import error_body
from openk3.server.anthropic.messages_request import read_conversation
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault
from openk3.server.prompt import num_prompt_tokens


class CountTokens:
    """Answers ``POST /v1/messages/count_tokens``."""

    paths: tuple[str, ...] = ("/anthropic/v1/messages/count_tokens", "/v1/messages/count_tokens")

    def count(self, body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
        """Return how many tokens the prompt of a message would have, cached ones included.

        Raises:
            Fault: the body cannot be understood.
            ChatError: the conversation is something that the chat format cannot express.
        """
        return {"input_tokens": num_prompt_tokens(read_conversation(body, model), model)}

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_body(fault)
