"""Work that ends early if its client leaves, its time is over or the server stops.

Unusual: whatever ends it cancels one task, and has waited for its end before anything else is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from openk3.errors import DeadlineError
from openk3.server.body import ClientGone
from openk3.server.faults import Fault


async def attended(work: Coroutine[Any, Any, None], stopping: asyncio.Event, timeout_s: float) -> None:
    """Do ``work`` until it is done.

    Raises:
        DeadlineError: that takes longer than ``timeout_s``.
        Fault: the server stops before (503).
    """
    if await _first_of(work, stopping.wait(), timeout_s):
        return
    if stopping.is_set():
        raise Fault("the server is stopping", status=503, kind="server_unavailable", hint="ask again later")
    raise DeadlineError(f"the answer took longer than {timeout_s:g} seconds", hint="ask for a shorter one")


async def while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do ``work`` until it is done; raise `ClientGone` if the client leaves before. Its body must have been read."""
    if not await _first_of(work, _gone(receive), None):
        raise ClientGone


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(
    work: Coroutine[Any, Any, None], other: Coroutine[Any, Any, object], timeout_s: float | None
) -> bool:
    """Tell whether ``work`` ended, raising its error, before ``other`` did and the time was over; cancel the rest."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
            return True
        return False
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
