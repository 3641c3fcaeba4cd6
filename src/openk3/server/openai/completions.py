"""Completions: ``POST /v1/completions``, a text that is continued as it stands, without the chat format.

Unusual: one prompt and one answer per request; the prompt is never echoed.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from openk3.llm.answer import Answer, Piece
from openk3.protocol.messages import ContentDelta
from openk3.protocol.sampling import TokenOutput, Usage
from openk3.server.endpoint import Asked, Event, EventStream, ServedModel, require_model
from openk3.server.faults import Fault
from openk3.server.openai.chat_request import StreamOptions, read_stream_options
from openk3.server.openai.logprobs import ShownTokens, finite, token_text
from openk3.server.openai.objects import error_object, new_id, usage_object
from openk3.server.openai.parameters import read_max_tokens, read_parameters, with_max_tokens
from openk3.server.values import Fields, Value
from openk3.tokenizer.bpe import Tokenizer

# As OpenAI documents it: a text that is merely continued may have no end of its own.
_DEFAULT_MAX_TOKENS = 16
_MOST_ALTERNATIVES = 20


@dataclass(frozen=True, kw_only=True)
class TextView:
    """What the form of an answer depends on."""

    logprobs: bool
    stream: StreamOptions


class Completions:
    """The `Endpoint` of Completions."""

    paths: tuple[str, ...] = ("/v1/completions",)

    def read(self, body: Mapping[str, Any], model: ServedModel) -> Asked:
        """Understand a body; raise `Fault` for what is wrong with it."""
        fields = Fields(body)
        name = require_model(body.get("model"), model)
        _refuse_variants(fields)
        limit = read_max_tokens(fields, ("max_tokens", "max_completion_tokens"), model)
        alternatives = fields.whole("logprobs", 0, _MOST_ALTERNATIVES)
        params = with_max_tokens(read_parameters(fields, model), limit or min(_DEFAULT_MAX_TOKENS, model.max_tokens))
        return Asked(
            model=name,
            prompt=_read_prompt(fields.require("prompt", "a text or the ids of its tokens"), model),
            params=replace(params, top_logprobs=alternatives or 0),
            stream=fields.flag("stream") or False,
            explicit_max_tokens=limit,
            body=TextView(logprobs=alternatives is not None, stream=read_stream_options(fields)),
        )

    def whole(self, asked: Asked, answer: Answer, model: ServedModel) -> dict[str, Any]:
        """Return the body of a finished answer."""
        view: TextView = asked.body
        choice = _choice(answer.content, answer.turn.finish_reason or "stop")
        if view.logprobs:
            choice["logprobs"] = TextLogprobs(model.tokenizer).of(answer.tokens, answer.content)
        return {**_head(asked), "choices": [choice], "usage": usage_object(answer.usage)}

    def events(self, asked: Asked, model: ServedModel) -> EventStream:
        """Begin to turn an answer into frames."""
        return TextEvents(asked, model)

    def error(self, fault: Fault) -> dict[str, Any]:
        """Return the body of an error."""
        return error_object(fault)


class TextEvents:
    """An `EventStream` of Completions."""

    def __init__(self, asked: Asked, model: ServedModel) -> None:
        self._view: TextView = asked.body
        self._head = _head(asked)
        self._logprobs = TextLogprobs(model.tokenizer) if self._view.logprobs else None

    def begin(self, usage: Usage) -> Iterable[Event]:
        """Give nothing: a text begins with its first piece."""
        return ()

    def push(self, piece: Piece, usage: Usage) -> Iterable[Event]:
        """Give more of the text."""
        text = "".join(delta.text for delta in piece.deltas if isinstance(delta, ContentDelta))
        logprobs = self._logprobs.of(piece.tokens, text) if self._logprobs else None
        if not text:
            return
        choice = _choice(text, None)
        if logprobs is not None:
            choice["logprobs"] = logprobs
        yield self._frame(choice, usage)

    def end(self, answer: Answer) -> Iterable[Event]:
        """Say why the text ended and what it cost."""
        choice = {**_choice("", answer.turn.finish_reason or "stop"), "usage": usage_object(answer.usage)}
        yield self._frame(choice, answer.usage)
        if self._view.stream.include_usage:
            yield Event({**self._head, "choices": [], "usage": usage_object(answer.usage)})
        yield Event("[DONE]")

    def fail(self, fault: Fault) -> Iterable[Event]:
        """Say what went wrong; the stream ends without its usual last line."""
        yield Event(error_object(fault))

    def _frame(self, choice: dict[str, Any], usage: Usage) -> Event:
        frame = {**self._head, "choices": [choice]}
        return Event({**frame, "usage": usage_object(usage)} if self._view.stream.continuous_usage else frame)


class TextLogprobs:
    """The ``logprobs`` of each part of a text, in lists side by side, with every token's place in the whole text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown = ShownTokens(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, tokens: Iterable[TokenOutput], text: str) -> dict[str, Any]:
        """Take the next tokens and the text that they show."""
        self._shown.push(token for token in tokens if token.finish_reason != "stop")
        shown = self._shown.shown(text)
        return {
            "tokens": [token_text(token.token_id, self._tokenizer) for token in shown],
            "token_logprobs": [finite(token.logprob) for token in shown],
            "top_logprobs": [self._alternatives(token) for token in shown],
            "text_offset": [self._place(token) for token in shown],
        }

    def _alternatives(self, token: TokenOutput) -> dict[str, float]:
        return {token_text(token_id, self._tokenizer): finite(logprob) for token_id, logprob in token.alternatives}

    def _place(self, token: TokenOutput) -> int:
        place = self._offset
        self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token.token_id)))
        return place


def _refuse_variants(body: Fields) -> None:
    if body.flag("echo"):
        raise Fault("echo is true, expected false: the prompt is not repeated", param="echo")
    if (best_of := body.get("best_of")) and best_of.whole() != 1:
        raise best_of.fault("1: this server gives one answer per request", hint="send the request several times")
    if body.text("suffix"):
        raise Fault("suffix is given, expected none: text is only continued at its end", param="suffix")


def _read_prompt(prompt: Value, model: ServedModel) -> str | tuple[int, ...]:
    """Read a text, the ids of its tokens, or a list of one of these."""
    if isinstance(prompt.value, list) and len(prompt.value) == 1 and isinstance(prompt.value[0], str | list):
        prompt = prompt.items()[0]
    if not prompt.value and isinstance(prompt.value, str | list):
        raise prompt.fault("at least one token to continue")
    if isinstance(prompt.value, str):
        return prompt.value
    items = prompt.items("a text, the ids of its tokens, or a list of one of these")
    if len(items) >= model.max_tokens:
        raise Fault(
            f"{prompt.path} has {len(items):,} items, expected fewer ids than the {model.max_tokens:,} of this model",
            param=prompt.path,
            code="context_length_exceeded",
        )
    if any(isinstance(item.value, str | list) for item in items):
        raise Fault(
            f"{prompt.path} has {len(items)} prompts, expected one", param=prompt.path, hint="send several requests"
        )
    return tuple(item.whole(0, model.tokenizer.vocab_size - 1) for item in items)


def _head(asked: Asked) -> dict[str, Any]:
    return {"id": new_id("cmpl-"), "object": "text_completion", "created": int(time.time()), "model": asked.model}


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish_reason}
