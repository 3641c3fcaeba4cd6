"""The endpoint that counts the tokens of a prompt without answering it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openk3.chat.render import render
from openk3.server.anthropic.errors import error_body
from openk3.server.anthropic.messages_request import read_conversation
from openk3.server.endpoint import ServedModel
from openk3.server.faults import Fault


class CountTokens:
    """Answers ``POST /v1/messages/count_tokens``."""

    paths: tuple[str, ...] = ("/anthropic/v1/messages/count_tokens", "/v1/messages/count_tokens")

    def count(self, body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
        """Return how many tokens the prompt of a message would have, cached ones included.

        Raises:
            Fault: the body cannot be understood.
            ChatError: the conversation is something that the chat format cannot express.
        """
        asked = read_conversation(body, model)
        options = asked.options
        prompt = render(
            asked.messages,
            tokenizer=model.tokenizer,
            tools=options.get("tools", ()),
            tool_choice=options.get("tool_choice", "auto"),
            response_format=options.get("response_format"),
            thinking=options.get("thinking", True),
            effort=options.get("effort", "max"),
        )
        return {"input_tokens": prompt.num_prompt_tokens}

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_body(fault)
