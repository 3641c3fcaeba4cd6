"""Counting a prompt's tokens: ``POST /v1/tokenizers/estimate-token-count``.

Unusual: no estimate. The body may be that of a chat, with everything that is rendered; the count is what it would cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openk3.chat.render import render
from openk3.errors import OpenK3Error
from openk3.server.endpoint import Asked, ServedModel
from openk3.server.faults import Fault, fault_of
from openk3.server.openai.chat_request import read_chat
from openk3.server.openai.objects import error_object


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


def num_prompt_tokens(asked: Asked, model: ServedModel) -> int:
    """Render a conversation and count its tokens as usage does; raise `ChatError` if it cannot be rendered."""
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
    return prompt.num_prompt_tokens
