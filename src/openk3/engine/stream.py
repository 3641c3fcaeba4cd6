"""The tokens of one request on their way out of the engine, to a thread or to an event loop.

Unusual: whoever stops listening only says so; the engine frees everything at its next step.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from openk3.errors import EngineError, OpenK3Error
from openk3.protocol.request import RequestStats
from openk3.protocol.sampling import TokenOutput

_END = None
Item = TokenOutput | OpenK3Error | None


class TokenStream:
    """Iterate, or iterate asynchronously, over a request's tokens, once; both raise the error that ended it."""

    def __init__(self, on_cancel: Callable[[], None] = lambda: None) -> None:
        self.stats: RequestStats | None = None
        self.cached_tokens = 0  # of the prompt, taken from a checkpoint; right from the first token on
        self._on_cancel = on_cancel
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a signal handler or a finaliser may cancel while its thread is in here
        self._listener: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._cancelled = False
        self._done = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants more tokens."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask for no more tokens; the iteration ends, after what had already come. May be called by any thread."""
        with self._lock:
            if self._cancelled or self._done:
                return
            self._cancelled = True
        self._on_cancel()

    def put(self, output: TokenOutput) -> None:
        """Pass on a token (for the engine)."""
        self._put(output)

    def close(self, stats: RequestStats, error: OpenK3Error | None = None) -> None:
        """End the stream, with an error or without (for the engine); what comes later is ignored."""
        with self._lock:
            if self._done:
                return
            self._done = True
        self.stats = stats
        self._put(error if error is not None else _END)

    def __iter__(self) -> Iterator[TokenOutput]:
        try:
            while (item := self._items.get()) is not _END:
                if isinstance(item, OpenK3Error):
                    raise item
                yield item
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[TokenOutput]:
        event = asyncio.Event()
        with self._lock:
            self._listener = (asyncio.get_running_loop(), event)
        try:
            while True:
                event.clear()
                while not self._items.empty():
                    item = self._items.get_nowait()
                    if item is _END:
                        return
                    if isinstance(item, OpenK3Error):
                        raise item
                    yield item
                    event.clear()
                if self._items.empty():
                    await event.wait()
        finally:
            self.cancel()

    def _put(self, item: Item) -> None:
        self._items.put(item)
        with self._lock:
            listener = self._listener
        if listener is not None:
            loop, event = listener
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the listener's loop has ended
                self.cancel()


def closed_engine() -> EngineError:
    """Return the error of a request that the engine will not finish."""
    return EngineError("the engine was closed before the request was finished", hint="submit it to a running engine")
