"""How many tokens the prompt of a conversation has, for the counters of every dialect.

Unusual: the prompt is rendered for it, so the count is what an answer is billed and no estimate.
"""

from __future__ import annotations

from openk3.chat.render import render
from openk3.server.endpoint import Asked, ServedModel


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
