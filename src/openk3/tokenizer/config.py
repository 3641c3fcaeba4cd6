"""Which special ids a vocabulary has, from the files beside it.

Unusual: three sources, the first that is there: the names in ``tokenizer_config.json``; the ids in the model's
``config.json``, with the published distances between them; the published block, right after the last ordinary token.
Where the first two both place a token, they must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openk3.errors import TokenizerError
from openk3.tokenizer.special import BLOCK_SIZE, PUBLISHED_NAMES, SpecialTokens
from openk3.tokenizer.vocabulary import CONFIG_FILE

_MOST_DIGITS = 12
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
# Room for any padding of a vocabulary; every one of these ids gets a spelling in memory.
_LARGEST_BLOCK = 1 << 20
# A model stops on the end of a message, so that is what its configuration calls "eos".
_MODEL_IDS = {
    "bos_token_id": "[BOS]",
    "eos_token_id": "<|end_of_msg|>",
    "media_placeholder_token_id": "<|media_pad|>",
    "pad_token_id": "[PAD]",
}


def read_special_tokens(folder: Path, num_base_tokens: int) -> SpecialTokens:
    """Find out the special ids of the vocabulary in ``folder``, which has ``num_base_tokens`` ordinary tokens.

    Raises:
        TokenizerError: a file is malformed, its ids do not fit behind the ordinary tokens, or two files disagree.
    """
    names, roles = _named_tokens(folder / CONFIG_FILE)
    model = _read_object(folder / "config.json")
    vocab_size = _vocab_size(model, num_base_tokens, folder)
    if names:
        _check_agreement(names, roles, model, folder)
        size = (vocab_size or max(names) + 1) - num_base_tokens
    else:
        size = (vocab_size or num_base_tokens + BLOCK_SIZE) - num_base_tokens
        names = _model_names(model, num_base_tokens, num_base_tokens + size, folder / "config.json")
    if size > _LARGEST_BLOCK:
        raise TokenizerError(
            f"{folder}: {size} special ids follow {num_base_tokens} tokens, expected at most {_LARGEST_BLOCK}",
            hint="vocabulary and config.json, or tokenizer_config.json, seem to belong to different models",
        )
    return SpecialTokens.block(num_base_tokens, size, names, **roles)


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there holds nothing."""
    if file.exists() and not file.is_file():
        raise TokenizerError(f"{file}: not a regular file, expected JSON")
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{file}: holds a {type(value).__name__}, expected an object")
    return value


def _named_tokens(file: Path) -> tuple[dict[int, str], dict[str, str]]:
    """Read ids with their spellings, and which spelling plays which role."""
    raw = _read_object(file)
    listed = raw.get("added_tokens_decoder", {})
    if not isinstance(listed, dict):
        raise TokenizerError(f"{file}: added_tokens_decoder is {listed!r}, expected an object of ids")
    names = {_id(token, file): _spelling(entry, f"{file}: token {token}") for token, entry in listed.items()}
    roles = {role: _spelling(raw[role], f"{file}: {role}") for role in _ROLES if raw.get(role) is not None}
    return names, roles


def _check_agreement(
    names: Mapping[int, str], roles: Mapping[str, str], model: Mapping[str, Any], folder: Path
) -> None:
    ids = {name: token for token, name in names.items()}
    for key, published in _MODEL_IDS.items():
        # The tokenizer's own "eos" ends a text, not a message, so that role says nothing of the model's.
        name = published if key == "eos_token_id" else roles.get(key.removesuffix("_id"), published)
        said, listed = _model_id(model, key), ids.get(name)
        if said is not None and listed is not None and said != listed:
            raise TokenizerError(
                f"{folder / CONFIG_FILE}: {name} has id {listed}, but {folder / 'config.json'}: {key} is {said!r}, "
                "expected the same id",
                hint="the two files seem to belong to different models",
            )


def _model_id(model: Mapping[str, Any], key: str) -> Any:
    """Read an id where `openk3.model.published` does: at the top, else beside the sizes."""
    text_config = model.get("text_config")
    beside = text_config.get(key) if isinstance(text_config, dict) else None
    return beside if model.get(key) is None else model[key]


def _id(text: str, file: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise TokenizerError(f"{file}: added_tokens_decoder holds {text!r}, expected token ids")
    return int(text)


def _spelling(entry: Any, where: str) -> str:
    text = entry.get("content") if isinstance(entry, dict) else entry
    if not isinstance(text, str) or not text or not _is_unicode(text):
        raise TokenizerError(f'{where} is {entry!r}, expected a spelling or {{"content": spelling}}')
    return text


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _vocab_size(model: Mapping[str, Any], num_base_tokens: int, folder: Path) -> int | None:
    text_config = model.get("text_config")
    size = (text_config if isinstance(text_config, dict) else model).get("vocab_size")
    if size is None:
        return None
    if not isinstance(size, int) or size < num_base_tokens:
        raise TokenizerError(
            f"{folder / 'config.json'}: vocab_size is {size!r}, expected at least {num_base_tokens}, as many as the "
            "vocabulary has tokens",
            hint="vocabulary and config.json seem to belong to different models",
        )
    return size


def _model_names(model: Mapping[str, Any], num_base_tokens: int, vocab_size: int, file: Path) -> dict[int, str]:
    """Place the published names from the model's bos on; where the model itself says an id, that one counts."""
    said = {name: token for key, name in _MODEL_IDS.items() if (token := _model_id(model, key)) is not None}
    for name, token in said.items():
        if not isinstance(token, int) or not num_base_tokens <= token < vocab_size:
            raise TokenizerError(
                f"{file}: the id of {name} is {token!r}, expected {num_base_tokens} to {vocab_size - 1}",
                hint="vocabulary and config.json seem to belong to different models",
            )
    first = said.get("[BOS]", num_base_tokens)
    placed = ((first + position, name) for position, name in PUBLISHED_NAMES.items() if name not in said)
    names = {token: name for token, name in placed if token < vocab_size}
    return names | {token: name for name, token in said.items()}
