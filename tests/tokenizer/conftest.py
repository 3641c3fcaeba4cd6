"""Vocabularies for the tokenizer's tests: the published one, and one of the 256 bytes.

Unusual: the published one is read once for all tests, as it has 163,584 lines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from openk3.tokenizer.bpe import Tokenizer
from openk3.tokenizer.special import SpecialTokens


@pytest.fixture(scope="session")
def published(shared: Path) -> Tokenizer:
    return Tokenizer.load(shared / "data" / "tokenizer")


@pytest.fixture(scope="session")
def bytewise() -> Tokenizer:
    return Tokenizer([bytes([byte]) for byte in range(256)], SpecialTokens.block(256))
