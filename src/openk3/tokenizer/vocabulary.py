"""The published ``tiktoken.model`` format: a line per token, base64 of its bytes, a space, its rank.

Unusual: a rank is also the token's id, so ranks must count from 0 without gaps.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from openk3.errors import TokenizerError
from openk3.tokenizer.special import SpecialTokens, reserved_name

VOCABULARY_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"


def read_vocabulary(file: Path) -> list[bytes]:
    """Read the tokens of a vocabulary in the order of their ids.

    Raises:
        TokenizerError: the file cannot be read, or a line (its number is said) or the whole makes no sense.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}") from None
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        token, rank = _parse_line(line, f"{file}:{number}")
        if ranks.setdefault(token, rank) != rank:
            raise TokenizerError(f"{file}:{number}: token {token!r} has rank {rank}, and {ranks[token]} further up")
    if len(ranks) != len(lines):
        raise TokenizerError(f"{file}: {len(lines) - len(ranks)} lines repeat another line, expected a token only once")
    return order_by_rank(ranks, str(file))


def _parse_line(line: bytes, where: str) -> tuple[bytes, int]:
    try:
        encoded, rank = line.split()
        return binascii.a2b_base64(encoded, strict_mode=True), _rank(rank)
    except binascii.Error as error:
        raise TokenizerError(f"{where}: {_shown(encoded)} is not base64: {error}") from None
    except ValueError:
        raise TokenizerError(f"{where}: {_shown(line)} is not a token in base64, a space and a rank") from None


def _rank(text: bytes) -> int:
    if not text.isdigit():
        raise ValueError(text)
    return int(text)


def _shown(raw: bytes) -> str:
    text = raw.decode("ascii", "backslashreplace")
    return repr(text if len(text) <= 60 else f"{text[:57]}…")


def order_by_rank(ranks: Mapping[bytes, int], source: str) -> list[bytes]:
    """Give the tokens by rank; raise `TokenizerError` if ranks have gaps or a byte cannot be encoded."""
    tokens = sorted(ranks, key=ranks.__getitem__)
    for expected, token in enumerate(tokens):
        if ranks[token] != expected:
            fault = f"no token has rank {expected}" if ranks[token] > expected else f"two have rank {ranks[token]}"
            raise TokenizerError(f"{source}: {fault}, expected ranks 0 to {len(tokens) - 1}, each once")
    lacking = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if lacking:
        raise TokenizerError(
            f"{source}: {len(lacking)} of the 256 single bytes are no tokens, the first is 0x{lacking[0]:02x}",
            hint="without all of them there are texts that cannot be encoded",
        )
    return tokens


def write_vocabulary(path: Path, ranks: Mapping[bytes, int] | Sequence[bytes], special: SpecialTokens) -> None:
    """Write a vocabulary and, beside it, the ``tokenizer_config.json`` that names its special tokens.

    ``path`` is a folder, or a file in one; ``ranks`` maps tokens to ranks, or lists tokens by rank.

    Raises:
        TokenizerError: ranks with gaps, or special ids that do not follow the ordinary ones.
    """
    file = path / VOCABULARY_FILE if path.is_dir() else path
    numbered = ranks if isinstance(ranks, Mapping) else {token: rank for rank, token in enumerate(ranks)}
    tokens = order_by_rank(numbered, str(file))
    check_block(len(tokens), special)
    file.write_text("".join(_lines(tokens)), encoding="ascii")
    text = json.dumps(_config(special), indent=2, ensure_ascii=False)
    file.with_name(CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def _lines(tokens: Iterable[bytes]) -> Iterable[str]:
    return (f"{b64encode(token).decode('ascii')} {rank}\n" for rank, token in enumerate(tokens))


def _config(special: SpecialTokens) -> dict[str, object]:
    last = max(special.names, default=None)  # listed even without a name: it says where the block ends
    named = {
        str(token): {"content": name, "special": True}
        for token, name in special.names.items()
        if name != reserved_name(token) or token == last
    }
    roles = {role: getattr(special, role) for role in ("bos_token", "eos_token", "pad_token", "unk_token")}
    return {"added_tokens_decoder": named} | roles


def check_block(num_base_tokens: int, special: SpecialTokens) -> None:
    """Raise `TokenizerError` unless the special ids follow the ordinary ones directly."""
    first = min(special.names, default=num_base_tokens)
    if first != num_base_tokens:
        raise TokenizerError(
            f"the first special id is {first}, expected {num_base_tokens}: one more than the last rank"
        )
