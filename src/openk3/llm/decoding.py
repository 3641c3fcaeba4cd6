"""From generated ids to deltas: through a decoder, then past the stop strings, which are held back.

Unusual: stop strings see the response only; reasoning and calls pass by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from openk3.chat.stop import StopStrings
from openk3.protocol.messages import ContentDelta, Delta
from openk3.protocol.sampling import FinishReason, TokenOutput
from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.detokenizer import IncrementalDetokenizer


class Decoder(Protocol):
    """Turns generated ids into deltas; `openk3.chat.parse.StreamParser` does, and `PlainText`."""

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning."""

    def push(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next ids."""

    def finish(self, reason: FinishReason) -> list[Delta]:
        """Give what was held back, now that no more ids come."""


class PlainText:
    """All text is content: for a model that continues a text instead of answering."""

    in_reasoning = False

    def __init__(self, tokenizer: Tokenizer, ends: Iterable[int]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._ends = frozenset(ends)

    def push(self, ids: Sequence[int]) -> list[Delta]:
        """Decode ``ids`` without those that end the text."""
        text = "".join(self._detokenizer.push(token) for token in ids if token not in self._ends)
        return [ContentDelta(text)] if text else []

    def finish(self, reason: FinishReason) -> list[Delta]:
        """Give what an unfinished character holds."""
        text = self._detokenizer.finish()
        return [ContentDelta(text)] if text else []


class AnswerDecoder:
    """Decode one answer token by token; ``reason`` is set once it has ended, with a stop string or by the engine."""

    def __init__(self, decoder: Decoder, stop: Sequence[str]) -> None:
        self.reason: FinishReason | None = None
        self.reasoning_tokens = 0
        self._decoder = decoder
        self._stops = StopStrings(stop)

    def push(self, output: TokenOutput) -> list[Delta]:
        """Take the next token and give what can be shown."""
        shown = self._past_stops(self._decoder.push([output.token_id]))
        self.reasoning_tokens += self._decoder.in_reasoning
        if self._stops.found is not None:
            self.reason = "stop"
        elif output.finish_reason is not None:
            self.reason = output.finish_reason
            shown += self._past_stops(self._decoder.finish(output.finish_reason))
            # What a decoder held back may itself complete a stop string.
            self.reason = "stop" if self._stops.found is not None else self.reason
            shown += self._flushed()
        return shown

    def _past_stops(self, deltas: Iterable[Delta]) -> list[Delta]:
        shown: list[Delta] = []
        for delta in deltas:
            if self._stops.found is not None:
                break
            if not isinstance(delta, ContentDelta):
                shown += [*self._flushed(), delta]
            elif text := self._stops.push(delta.text):
                shown.append(ContentDelta(text))
        return shown

    def _flushed(self) -> list[Delta]:
        text = self._stops.finish()
        return [ContentDelta(text)] if text else []
