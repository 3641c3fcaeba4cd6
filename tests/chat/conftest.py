"""Two vocabularies, and markup: text in which control tokens are spelled, as ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens

Encoder = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def published(shared: Path) -> Tokenizer:
    """Kimi K3's own vocabulary."""
    return Tokenizer.load(shared / "data" / "tokenizer")


@pytest.fixture(scope="session")
def bytewise() -> Tokenizer:
    """A token per byte, and the published special tokens from id 256 on."""
    return Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))


@pytest.fixture(scope="session")
def markup(bytewise: Tokenizer) -> Encoder:
    """Encode what a model might write: ``<|open|>`` and so on become control tokens, unlike in real text."""
    special = bytewise.special
    spelled = re.compile("(" + "|".join(re.escape(name) for name in special.names.values()) + ")")

    def encode(text: str) -> list[int]:
        pieces = spelled.split(text)
        ids = ([special.id_of(piece)] if spelled.fullmatch(piece) else bytewise.encode(piece) for piece in pieces)
        return [token for piece in ids for token in piece]

    return encode
