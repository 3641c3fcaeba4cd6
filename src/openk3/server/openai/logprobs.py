"""The tokens of a response with their probabilities, as OpenAI's clients read them.

Unusual: tags and reasoning are no part of it. A token is given when its first byte is shown, so those of a stop string
that is held back, and then dropped, never are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from openk3.chat.parse import StreamParser
from openk3.protocol.messages import Channel
from openk3.protocol.sampling import TokenOutput
from openk3.tokenizer.bpe import Tokenizer

# What OpenAI's own service says of a token that cannot come.
_LEAST = -9999.0


class ShownTokens:
    """Match tokens to the text that they became."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._waiting: deque[tuple[int, TokenOutput]] = deque()
        self._num_bytes = self._num_shown = 0

    def push(self, tokens: Iterable[TokenOutput]) -> None:
        """Take tokens that become text of the response."""
        for token in tokens:
            self._waiting.append((self._num_bytes, token))
            self._num_bytes += len(self._tokenizer.token_bytes(token.token_id))

    def shown(self, text: str) -> list[TokenOutput]:
        """Give the tokens that began in ``text``, the next part of the response."""
        self._num_shown += len(text.encode("utf-8", "replace"))
        tokens = []
        while self._waiting and self._waiting[0][0] < self._num_shown:
            tokens.append(self._waiting.popleft()[1])
        return tokens


class ResponseTokens:
    """Tell the tokens of the response from all others, by what they mean to the parser of the answer."""

    def __init__(self, tokenizer: Tokenizer, channel: Channel) -> None:
        special = tokenizer.special
        self._parser = StreamParser(tokenizer, channel=channel, tools_declared=False)
        self._opening, self._ending = (special.open, special.close), special.sep
        self._num_text = tokenizer.num_base_tokens
        self._in_tag = False

    def of(self, tokens: Iterable[TokenOutput]) -> list[TokenOutput]:
        """Take the next tokens and return those of the response's text."""
        return [token for token in tokens if self._is_text(token.token_id)]

    def _is_text(self, token: int) -> bool:
        is_text = self._parser.in_response and not self._in_tag and token < self._num_text
        self._parser.push([token])
        if token in self._opening:
            self._in_tag = True
        elif token == self._ending:
            self._in_tag = False
        return is_text


class ContentLogprobs:
    """The ``logprobs`` of each part of the content, from the tokens of a whole answer that begins in ``channel``."""

    def __init__(self, tokenizer: Tokenizer, channel: Channel) -> None:
        self._tokenizer = tokenizer
        self._response = ResponseTokens(tokenizer, channel)
        self._shown = ShownTokens(tokenizer)

    def push(self, tokens: Iterable[TokenOutput]) -> None:
        """Take the next tokens of the answer."""
        self._shown.push(self._response.of(tokens))

    def of(self, text: str) -> dict[str, Any]:
        """Give those of the next part of the content."""
        return logprob_object(self._shown.shown(text), self._tokenizer)


def logprob_object(tokens: Iterable[TokenOutput], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the ``logprobs`` of a choice."""
    return {"content": [_entry(token, tokenizer) for token in tokens]}


def token_text(token: int, tokenizer: Tokenizer) -> str:
    """Write a token; one that is only a part of a character as its bytes: ``bytes:\\\\xe4``."""
    written = tokenizer.token_bytes(token)
    try:
        return written.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)


def finite(logprob: float) -> float:
    """Return ``logprob`` as JSON can hold it."""
    return max(logprob, _LEAST)


def _entry(token: TokenOutput, tokenizer: Tokenizer) -> dict[str, Any]:
    alternatives = [_likelihood(*alternative, tokenizer) for alternative in token.alternatives]
    return {**_likelihood(token.token_id, token.logprob, tokenizer), "top_logprobs": alternatives}


def _likelihood(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "token": token_text(token, tokenizer),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token)),
    }
