"""Calls into libraries whose recursion goes as deep as what a user wrote.

Unusual: an overflow of the native stack would end the process, so such calls get a thread with a stack of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

# Address space; memory is what is used of it. A chain of 8192 rules of a grammar takes about 50 MB.
_STACK_BYTES = 512 << 20
_stack_size = threading.Lock()


def with_deep_stack(task: Callable[[], Result]) -> Result:
    """Run ``task`` in a thread of its own and give what it gives, or raise what it raises."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(task())
        except BaseException as error:
            outcome.set_exception(error)

    with _stack_size:  # it counts for every thread that starts meanwhile
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=run, name="deep-stack").start()
        finally:
            threading.stack_size(before)
    return outcome.result()
