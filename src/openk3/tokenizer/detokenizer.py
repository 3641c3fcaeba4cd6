"""Ids to text as they come, for streaming.

Unusual: the bytes of one character may be spread over several tokens, so it appears with the last of them.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openk3.tokenizer.bpe import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Decode ids one at a time; what came out in all, `finish` included, is what `Tokenizer.decode` gives for all."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, token: int) -> str:
        """Give the characters that ``token`` completes, maybe none; raise `TokenizerError` for an unknown id."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """Give U+FFFD if a character is incomplete, now that no more ids come, and be ready for another text."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
