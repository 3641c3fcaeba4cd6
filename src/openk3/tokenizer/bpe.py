"""A byte-level BPE tokenizer over a vocabulary in the published format; ``tiktoken`` does the merging.

Unusual: the merging engine is not told of the special tokens at all, so that no text can ever encode to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import tiktoken

from openk3.errors import TokenizerError
from openk3.tokenizer.config import read_special_tokens
from openk3.tokenizer.detokenizer import IncrementalDetokenizer
from openk3.tokenizer.special import SpecialTokens
from openk3.tokenizer.split import SPLIT_PATTERN, guarded
from openk3.tokenizer.vocabulary import VOCABULARY_FILE, check_block, read_vocabulary


class Tokenizer:
    """Text to token ids and back; immutable, so threads may share one."""

    def __init__(self, tokens: Sequence[bytes], special: SpecialTokens) -> None:
        """Take the ordinary ``tokens`` by id; ``special`` ids follow them. Raise `TokenizerError` if they don't."""
        check_block(len(tokens), special)
        self.special = special
        self.num_base_tokens = len(tokens)
        self._bytes = (*tokens, *(name.encode() for name in special.names.values()))
        ranks = {token: rank for rank, token in enumerate(tokens)}
        self._engine = tiktoken.Encoding("k3", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})

    @classmethod
    def load(cls, path: str | Path, special: SpecialTokens | None = None) -> Tokenizer:
        """Load a vocabulary from a file, or from ``tiktoken.model`` in a folder.

        Special ids are ``special``, else what ``tokenizer_config.json`` or ``config.json`` beside the vocabulary say,
        else as published: a block of 256 after the last ordinary token.

        Raises:
            TokenizerError: a file is missing or malformed, or the files do not fit together.
        """
        file = Path(path)
        if file.is_dir():
            file = file / VOCABULARY_FILE
        if not file.is_file():
            raise TokenizerError(
                f"{file}: no such file", hint=f"a model folder holds its vocabulary as {VOCABULARY_FILE}"
            )
        tokens = read_vocabulary(file)
        return cls(tokens, read_special_tokens(file.parent, len(tokens)) if special is None else special)

    @property
    def vocab_size(self) -> int:
        """Number of ids, ordinary and special ones; every lower number is an id."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` to ordinary ids, whatever it spells; half a surrogate pair becomes U+FFFD."""
        if not text.isascii():
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if not text:
            return []
        return [token for stretch in guarded(text) for token in self._engine.encode_ordinary(stretch)]

    def token_bytes(self, token: int) -> bytes:
        """Give the bytes of one id (of a special one, its spelling); raise `TokenizerError` if there is no such id."""
        if not 0 <= token < len(self._bytes):
            raise TokenizerError(f"token id is {token}, expected 0 to {len(self._bytes) - 1}")
        return self._bytes[token]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Join the bytes of ``ids``; raise `TokenizerError` for one that is not in the vocabulary."""
        return b"".join(map(self.token_bytes, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ``ids``, with U+FFFD where their bytes are not UTF-8; raise `TokenizerError` for an unknown id."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def detokenizer(self) -> IncrementalDetokenizer:
        """Make a decoder for ids that arrive one by one."""
        return IncrementalDetokenizer(self)
