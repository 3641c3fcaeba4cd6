"""Who asks: API keys, as both families of clients send them.

Unusual: every key is compared, in constant time, so that how long it takes says nothing about any of them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from pathlib import Path

from openk3.errors import ConfigError
from openk3.server.faults import Fault

EVERYBODY = ""
"""The name of whoever asks a server without keys."""


class Keys:
    """The keys that may ask, by name; without any, everybody may."""

    def __init__(self, named: Sequence[tuple[str, str]]) -> None:
        self._digests = [(name, _digest(key)) for name, key in named]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def identify(self, headers: Mapping[str, str]) -> str:
        """Return the name of the key in ``headers``; raise `Fault` (401) without one or with another."""
        if not self._digests:
            return EVERYBODY
        given = _given(headers)
        if not given:
            raise _refused(
                "there is no API key", "invalid_authentication_error", "send it as `Authorization: Bearer KEY`"
            )
        for key in given:
            if (name := self._name_of(key)) is not None:
                return name
        raise _refused("the API key is not one of this server's", "incorrect_api_key_error", None)

    def _name_of(self, key: str) -> str | None:
        digest = _digest(key)
        found = None
        for name, known in self._digests:
            if hmac.compare_digest(digest, known):
                found = name
        return found


def _given(headers: Mapping[str, str]) -> list[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    keys = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip()]
    return [key for key in keys if key]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _refused(message: str, kind: str, hint: str | None) -> Fault:
    return Fault(message, status=401, kind=kind, headers={"WWW-Authenticate": "Bearer"}, hint=hint)


def name_keys(keys: Sequence[str], file: Path | None) -> tuple[tuple[str, str], ...]:
    """Give keys their names: those of ``file`` (lines of ``name key`` or ``key``), the others numbered.

    Raises:
        ConfigError: a key with characters that no header can hold, one that is there twice, or no text in the file.
        OSError: the file cannot be read.
    """
    named: list[tuple[str, str]] = []
    for number, key in enumerate(keys, 1):
        named.append((f"key{number}", _checked(key, f"--api-key number {number}")))
    for name, key, where in [] if file is None else _lines(file):
        named.append((name or f"key{len(named) + 1}", _checked(key, where)))
    _check_unique(named)
    return tuple(named)


def _lines(file: Path) -> list[tuple[str, str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not a text, expected lines of `name key` or `key`") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{file}, line {number}"
        if len(words) > 2:
            raise ConfigError(f"{where}: {len(words)} words, expected `name key` or `key`")
        found.append((words[0] if len(words) == 2 else "", words[-1], where))
    if not found:
        raise ConfigError(f"{file}: no keys, expected lines of `name key` or `key`")
    return found


def _checked(key: str, where: str) -> str:
    if not key or not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{where}: the key is empty or has blanks or other than ASCII characters")
    return key


def _check_unique(named: Sequence[tuple[str, str]]) -> None:
    names: set[str] = set()
    keys: set[str] = set()
    for name, key in named:
        if name in names:
            raise ConfigError(f"two API keys are called {name}, expected different names")
        if key in keys:
            raise ConfigError(f"the API key called {name} has another name too, expected each once")
        names.add(name)
        keys.add(key)
