"""What each key has used, in tokens and at the hosted service's prices.

Unusual: kept in memory; a file, if there is one, is replaced as a whole, so that a crash leaves an old one, never half.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from openk3.errors import ConfigError
from openk3.protocol.checks import as_whole
from openk3.protocol.sampling import Usage

PRICES = {"input": 3.00, "cached_input": 0.30, "output": 15.00}
"""US dollars per million tokens, as published for Kimi K3."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """What one key has used; ``prompt_tokens`` include cached ones, ``completion_tokens`` those of thinking."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def cost(self) -> float:
        """US dollars that it would have cost at `PRICES`."""
        new = self.prompt_tokens - self.cached_tokens
        parts = (
            new * PRICES["input"],
            self.cached_tokens * PRICES["cached_input"],
            self.completion_tokens * PRICES["output"],
        )
        return round(sum(parts) / 1e6, 8)

    def plus(self, usage: Usage) -> Account:
        """Return the account with one more request."""
        return Account(
            requests=self.requests + 1,
            prompt_tokens=self.prompt_tokens + usage.prompt_tokens,
            cached_tokens=self.cached_tokens + usage.cached_tokens,
            completion_tokens=self.completion_tokens + usage.completion_tokens,
            reasoning_tokens=self.reasoning_tokens + usage.reasoning_tokens,
        )


class UsageLedger:
    """Counts what keys use, from any thread, and keeps it in ``file`` if there is one.

    Raises:
        ConfigError: the file is there but holds something else.
        OSError: it cannot be read.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._saving = threading.Lock()  # another one: counting does not wait for a disk
        self._accounts: dict[str, Account] = {} if file is None else _load(file)
        self._saved = dict(self._accounts)

    def add(self, key: str, usage: Usage) -> None:
        """Count one answer."""
        with self._lock:
            self._accounts[key] = self._accounts.get(key, Account()).plus(usage)

    def report(self, key: str | None) -> dict[str, Any]:
        """Give what ``key`` has used, or each key if None, as a body."""
        with self._lock:
            accounts = dict(self._accounts)
        names = sorted(accounts) if key is None else [key]
        data = [_item(name, accounts.get(name, Account())) for name in names]
        return {"object": "list", "data": data, "currency": "USD", "price_per_million_tokens": PRICES}

    def save(self) -> None:
        """Write the file, if there is one and something has changed; raise `OSError` if that fails."""
        with self._saving:
            with self._lock:
                accounts = dict(self._accounts)
            if self._file is None or self._saved == accounts:
                return
            _write(self._file, {"format": _FORMAT, "keys": {key: asdict(one) for key, one in accounts.items()}})
            self._saved = accounts


_FORMAT = "openk3-usage-1"


def _item(name: str, account: Account) -> dict[str, Any]:
    return {"object": "usage", "key": name or None, **asdict(account), "cost": account.cost}


def _write(file: Path, value: Mapping[str, Any]) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        with beside.open("w", encoding="utf-8") as stream:
            json.dump(value, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _load(file: Path) -> dict[str, Account]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        value = None
    if not isinstance(value, dict) or value.get("format") != _FORMAT or not isinstance(value.get("keys"), dict):
        raise _damaged(file)
    return {key: _account(counts, file) for key, counts in value["keys"].items()}


def _account(counts: object, file: Path) -> Account:
    account = Account()
    for name in asdict(account):
        count = as_whole(counts.get(name)) if isinstance(counts, dict) else None
        if count is None or count < 0:
            raise _damaged(file)
        account = replace(account, **{name: count})
    return account


def _damaged(file: Path) -> ConfigError:
    return ConfigError(f"{file}: not a usage file of OpenK3", hint="name a new file, or move this one away")
