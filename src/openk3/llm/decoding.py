"""From generated ids to deltas: through a decoder, then past the stop strings, which are held back.

Unusual: stop strings see the response only; reasoning and calls pass by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from openk3.chat.stop import StopStrings
from openk3.protocol.messages import ContentDelta, Delta, ReasoningDelta
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
        """Give what an unfinished character holds, unless the limit cut it."""
        text = self._detokenizer.finish()
        return [ContentDelta(text)] if text and reason != "length" else []


class AnswerDecoder:
    """Decode one answer token by token; ``reason`` is set once it has ended, with a stop string or by the engine."""

    def __init__(self, decoder: Decoder, stop: Sequence[str]) -> None:
        self.reason: FinishReason | None = None
        self.reasoning_tokens = 0
        self._unsure = 0
        self._decoder = decoder
        self._stops = StopStrings(stop)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    def push(self, output: TokenOutput) -> list[Delta]:
        """Take the next token and give what can be shown."""
        deltas = self._decoder.push([output.token_id])
        self._count_reasoning(deltas)
        shown = self._past_stops(deltas)
        if self._stops.found is not None:
            self.reason = "stop"
        elif output.finish_reason is not None:
            shown += [*self._past_stops(self._decoder.finish(output.finish_reason)), *self._flushed()]
            self.reason = self._reason(output.finish_reason)
        return shown

    def _count_reasoning(self, deltas: Sequence[Delta]) -> None:
        """Count tokens once they show: those without text may be parts of a character, or of the tag that ends it."""
        shows = any(isinstance(delta, ReasoningDelta) for delta in deltas)
        self._unsure = self._unsure + 1 if shows or self._decoder.in_reasoning else 0
        if shows:
            self.reasoning_tokens += self._unsure
            self._unsure = 0

    def _reason(self, given: FinishReason) -> FinishReason:
        """What the decoder held back to the end may itself complete a stop string."""
        return given if self._stops.found is None else "stop"

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
