"""A byte-level vocabulary in the published file format, trained on the texts and dialogues.

Unusual: training never sees two digits together, so every digit stays a token of its own and sums can be done in
columns; the split pattern is the published one all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from openk3.errors import TrainingError
from openk3.models.nano.recipe.shape import NUM_BASE_TOKENS
from openk3.tokenizer.split import SPLIT_PATTERN

_THREE_DIGITS, _ONE_DIGIT = r"\p{N}{1,3}", r"\p{N}"


def train_vocabulary(texts: Iterable[str], size: int = NUM_BASE_TOKENS) -> dict[bytes, int]:
    """Return the rank of each token: the 256 bytes, then merges in the order they were learned.

    Raises:
        TrainingError: the texts are too few for ``size`` tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    pattern = SPLIT_PATTERN.replace(_THREE_DIGITS, _ONE_DIGIT)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    merged = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    letters = _byte_letters()
    tokens = [bytes(letters[letter] for letter in token) for token, _ in merged]
    learned = [token for token in tokens if len(token) > 1]
    if 256 + len(learned) != size:
        raise TrainingError(f"{256 + len(learned)} tokens were learned, expected {size}", hint="give it more text")
    return {token: rank for rank, token in enumerate([bytes([byte]) for byte in range(256)] + learned)}


def _byte_letters() -> dict[str, int]:
    """Return the byte behind each letter of the byte-level alphabet: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
