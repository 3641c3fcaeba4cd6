"""One answer as it comes, for a thread or an event loop.

Unusual: an answer is known as far as it was iterated, so one that is stopped early is what was shown, no more.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from openk3.chat.parse import collect
from openk3.engine.stream import TokenStream
from openk3.errors import OpenK3Error
from openk3.llm.decoding import AnswerDecoder
from openk3.protocol.messages import AssistantTurn, Delta, Message
from openk3.protocol.request import RequestStats
from openk3.protocol.sampling import FinishReason, TokenOutput, Usage


@dataclass(frozen=True)
class Piece:
    """More of an answer, and the tokens that it took, one or several; the last piece may show nothing."""

    tokens: tuple[TokenOutput, ...]
    deltas: tuple[Delta, ...]


class Answer:
    """Iterate, or iterate asynchronously, over the deltas of one answer; both raise the error that ended it.

    ``num_read`` tokens are the prompt, also those that are not billed. ``tokens``, `turn` and `usage` are what has come
    so far. Leaving the iteration cancels the request; a second
    iteration gives what the first one gave.
    """

    def __init__(
        self, stream: TokenStream, decoder: AnswerDecoder, num_prompt_tokens: int, num_read: int | None = None
    ) -> None:
        self.tokens: list[TokenOutput] = []
        self._stream, self._decoder = stream, decoder
        self._num_prompt_tokens = num_prompt_tokens
        self.num_read = num_prompt_tokens if num_read is None else num_read
        self._shown: list[Delta] = []
        self._silent: list[TokenOutput] = []
        self._begun = self._cancelled = False
        # Nobody can read an answer that is not held any more, so nothing more is computed of it.
        weakref.finalize(self, stream.cancel).atexit = False

    @property
    def turn(self) -> AssistantTurn:
        """The collected answer; its finish reason is None if it was left early."""
        return collect(self._shown, self._decoder.reason)

    @property
    def message(self) -> Message:
        """The answer as the conversation's next message."""
        turn = self.turn
        return Message(role="assistant", content=turn.content, reasoning=turn.reasoning, tool_calls=turn.tool_calls)

    @property
    def content(self) -> str:
        """The text of the response, empty if there is none."""
        return self.turn.content or ""

    @property
    def usage(self) -> Usage:
        """Tokens so far; the prompt's as a chat is billed, without the tag that opens the model's channel."""
        cached = min(self._stream.cached_tokens, self._num_prompt_tokens)
        return Usage(self._num_prompt_tokens, len(self.tokens), cached, self._decoder.reasoning_tokens)

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._decoder.stopped_by

    @property
    def stats(self) -> RequestStats | None:
        """What the request cost the engine; None until it has ended."""
        return self._stream.stats

    def cancel(self) -> None:
        """End the answer after the token that is being computed; may be called by any thread."""
        self._cancelled = True
        self._stream.cancel()

    def finish(self) -> Answer:
        """Wait for the rest of the answer and return this object; raise the error that ended it."""
        for _ in self:
            pass
        return self

    async def pieces(self) -> AsyncIterator[Piece]:
        """Give the answer once, with the tokens behind each piece; raise the error that ended it."""
        self._begun = True
        async with aclosing(self._arriving()) as pieces:
            async for piece in pieces:
                self._shown += piece.deltas
                yield piece

    def __iter__(self) -> Iterator[Delta]:
        if self._begun:
            yield from tuple(self._shown)
            return
        self._begun = True
        tokens = iter(self._stream)
        try:
            for token in tokens:
                for delta in self._take(token).deltas:
                    self._shown.append(delta)
                    yield delta
                if self._is_over:
                    break
            self._stream.cancel()
            with suppress(OpenK3Error):  # the answer is over; what it cost is still to come
                deque(tokens, maxlen=0)
        finally:
            self._stream.cancel()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        if self._begun:
            for delta in tuple(self._shown):
                yield delta
            return
        self._begun = True
        async with aclosing(self._arriving()) as pieces:
            async for piece in pieces:
                for delta in piece.deltas:
                    self._shown.append(delta)
                    yield delta

    async def _arriving(self) -> AsyncGenerator[Piece]:
        tokens = aiter(self._stream)
        try:
            async for token in tokens:
                piece = self._take(token)
                if piece.deltas or (piece.tokens and self._is_over):
                    yield piece
                if self._is_over:
                    break
            self._stream.cancel()
            with suppress(OpenK3Error):
                async for _ in tokens:
                    pass
        finally:
            self._stream.cancel()

    @property
    def _is_over(self) -> bool:
        return self._cancelled or self._decoder.reason is not None

    def _take(self, token: TokenOutput) -> Piece:
        """Add a token; those that show nothing belong to the next piece."""
        if self._cancelled:
            return Piece((), ())
        self.tokens.append(token)
        self._silent.append(token)
        deltas = tuple(self._decoder.push(token))
        piece = Piece(tuple(self._silent), deltas)
        if deltas:
            self._silent.clear()
        return piece


@dataclass(frozen=True, kw_only=True)
class TextAnswer:
    """A text that was continued: what came after it, and why it ended."""

    text: str
    finish_reason: FinishReason | None
    usage: Usage
    tokens: tuple[TokenOutput, ...]
    stats: RequestStats | None

    @classmethod
    def of(cls, answer: Answer) -> TextAnswer:
        """Collect a finished answer."""
        return cls(
            text=answer.content,
            finish_reason=answer.turn.finish_reason,
            usage=answer.usage,
            tokens=tuple(answer.tokens),
            stats=answer.stats,
        )
