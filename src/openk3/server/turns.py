"""Turns at the threads that understand bodies, so that one client's slow ones leave a thread to the others.

Unusual: a turn ends when its thread does, which can be after its request has ended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass
class _Queue:
    semaphore: asyncio.Semaphore
    num_users: int = 0


class Turns:
    """Gives each name at most ``most`` turns at once, in the order in which they were asked for; for one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queues: dict[str, _Queue] = {}

    async def take(self, name: str) -> None:
        """Wait for a turn; each one that was taken has to be given back."""
        queue = self._queues.setdefault(name, _Queue(asyncio.Semaphore(self._most)))
        queue.num_users += 1
        try:
            await queue.semaphore.acquire()
        except asyncio.CancelledError:
            self._leave(name)
            raise

    def give_back(self, name: str) -> None:
        """End a turn."""
        self._queues[name].semaphore.release()
        self._leave(name)

    def _leave(self, name: str) -> None:
        queue = self._queues[name]
        queue.num_users -= 1
        if not queue.num_users:
            del self._queues[name]
