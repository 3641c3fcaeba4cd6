"""How much each key may ask: so many requests at once, so many in any minute.

Unusual: a minute is the last 60 seconds, not one of the clock's, so nobody can ask twice as much around its turn.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from openk3.server.faults import RETRY_AFTER_S, Fault

_KIND = "rate_limit_reached_error"
_WINDOW_S = 60.0


@dataclass
class _Account:
    running: int = 0
    begun: deque[float] = field(default_factory=deque)


class Limits:
    """Admits requests; 0 allows any number. Used by one thread."""

    def __init__(
        self, max_concurrent: int, requests_per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_concurrent, self._per_minute, self._clock = max_concurrent, requests_per_minute, clock
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)

    @contextmanager
    def admitted(self, key: str) -> Iterator[dict[str, str]]:
        """Count a request of ``key`` within, and give the headers that say what is left; raise `Fault` (429)."""
        account = self._accounts[key]
        self._check_rate(account)
        if self._max_concurrent and account.running >= self._max_concurrent:
            raise Fault(
                f"{account.running} requests are running, expected at most {self._max_concurrent} at once",
                status=429,
                kind=_KIND,
                headers={"Retry-After": str(RETRY_AFTER_S), **self._headers(account)},
            )
        if self._per_minute:
            account.begun.append(self._clock())
        account.running += 1
        try:
            yield self._headers(account)
        finally:
            account.running -= 1

    def _check_rate(self, account: _Account) -> None:
        now = self._clock()
        while account.begun and account.begun[0] <= now - _WINDOW_S:
            account.begun.popleft()
        if self._per_minute and len(account.begun) >= self._per_minute:
            headers = self._headers(account)
            raise Fault(
                f"{len(account.begun)} requests came within a minute, expected at most {self._per_minute}",
                status=429,
                kind=_KIND,
                headers={"Retry-After": headers["X-RateLimit-Reset"], **headers},
            )

    def _headers(self, account: _Account) -> dict[str, str]:
        """Say how many requests a minute may have, how many are left, and in how many seconds there will be more."""
        if not self._per_minute:
            return {}
        left = self._per_minute - len(account.begun)
        wait = account.begun[0] + _WINDOW_S - self._clock() if account.begun else 0.0
        return {
            "X-RateLimit-Limit": str(self._per_minute),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": str(max(math.ceil(wait), 1)),
        }
