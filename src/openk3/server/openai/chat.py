"""Chat Completions: ``POST /v1/chat/completions``.

Unusual: with what Moonshot's own service adds, as far as its clients and its verifier know it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from openk3.llm.answer import Answer
from openk3.server.endpoint import Asked, EventStream, ServedModel
from openk3.server.faults import Fault
from openk3.server.openai.chat_events import ChatEvents, message_of
from openk3.server.openai.chat_request import ChatView, read_chat
from openk3.server.openai.logprobs import ContentLogprobs
from openk3.server.openai.objects import error_object, new_id, usage_object


class ChatCompletions:
    """The `Endpoint` of Chat Completions."""

    paths: tuple[str, ...] = ("/v1/chat/completions",)

    def read(self, body: Mapping[str, Any], model: ServedModel) -> Asked:
        """Understand a body; raise `Fault` for what is wrong with it."""
        return read_chat(body, model)

    def whole(self, asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
        """Return the body of a finished answer."""
        view: ChatView = asked.body
        choice: dict[str, Any] = {
            "index": 0,
            "message": _message(answer, view),
            "finish_reason": answer.turn.finish_reason or "stop",
        }
        if view.logprobs:
            logprobs = ContentLogprobs(model.tokenizer, view.channel)
            logprobs.push(answer.tokens)
            choice["logprobs"] = logprobs.of(choice["message"]["content"] or "")
        return {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": asked.model,
            "choices": [choice],
            "usage": usage_object(answer.usage),
        }

    def events(self, asked: Asked, model: ServedModel) -> EventStream:
        """Begin to turn an answer into frames."""
        return ChatEvents(asked, model)

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_object(fault)


def _message(answer: Answer, view: ChatView) -> dict[str, Any]:
    """Give the message, with an empty text for what was begun: reasoning if there may be any, content if that ended."""
    message = {"role": "assistant", "content": "", **message_of(answer, thinking=view.thinking)}
    if view.thinking:
        message.setdefault("reasoning_content", "")
    is_cut = answer.turn.finish_reason == "length" and view.channel == "think"
    if is_cut and not message["content"] and "tool_calls" not in message:
        message["content"] = None
    return message
