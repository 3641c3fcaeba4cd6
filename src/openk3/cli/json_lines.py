"""Answers for programs: one JSON object per delta, or one for a whole answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, TextIO

from openk3.protocol.messages import (
    AssistantTurn,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from openk3.protocol.sampling import TokenOutput, Usage

_SURROGATE = re.compile("[\ud800-\udfff]")
_TYPES = {
    ReasoningDelta: "reasoning",
    ContentDelta: "content",
    ToolCallStart: "tool_call",
    ToolArgumentsDelta: "tool_arguments",
    ToolCallEnd: "tool_call_end",
}


def json_text(item: dict[str, Any], stream: TextIO) -> str:
    """Write ``item`` for ``stream``: in ASCII where it is not UTF-8, since its own escapes would not be JSON."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "")
    text = json.dumps(item, ensure_ascii=encoding != "utf8")
    # Half a surrogate pair is no character in any encoding.
    return text if text.isascii() or not _SURROGATE.search(text) else json.dumps(item)


def answer_object(turn: AssistantTurn, usage: Usage) -> dict[str, Any]:
    """Give a whole answer as one object."""
    return asdict(turn) | {"usage": asdict(usage)}


def logprob_objects(tokens: Iterable[TokenOutput], text_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """Give each token with its log-probability and the likeliest in its place; ``text_of`` spells an id."""
    return [
        {
            "id": token.token_id,
            "token": text_of(token.token_id),
            "logprob": token.logprob,
            "top": [{"id": id_, "token": text_of(id_), "logprob": logprob} for id_, logprob in token.alternatives],
        }
        for token in tokens
    ]


class JsonLinesPrinter:
    """Print deltas of one answer as JSON lines; `end` closes it with the reason and the usage."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, delta: Delta) -> None:
        """Print one delta."""
        self._print({"type": _TYPES[type(delta)]} | asdict(delta))

    def close(self) -> None:
        """Do nothing: every line is already ended."""

    def end(self, turn: AssistantTurn, usage: Usage) -> None:
        """Print the object that closes an answer."""
        self._print({"type": "end", "finish_reason": turn.finish_reason, "usage": asdict(usage)})

    def _print(self, item: dict[str, Any]) -> None:
        print(json_text(item, self._stream), file=self._stream, flush=True)
