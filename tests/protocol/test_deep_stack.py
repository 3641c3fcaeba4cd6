"""Work that recurses deeply gets a stack for it, and what it gives or raises comes back."""

from __future__ import annotations

import threading

import pytest

from openk3.errors import ChatError
from openk3.protocol.deep_stack import with_deep_stack


def test_a_result_comes_back_from_another_thread() -> None:
    assert with_deep_stack(threading.get_ident) != threading.get_ident()


@pytest.mark.parametrize("error", [ChatError("no"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_whatever_is_raised_is_raised_here(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        with_deep_stack(fail)
    assert caught.value is error


def test_the_stack_size_of_other_threads_stays() -> None:
    before = threading.stack_size()
    with_deep_stack(lambda: None)
    assert threading.stack_size() == before
    threading.stack_size(1 << 20)
    try:
        with_deep_stack(lambda: None)
        assert threading.stack_size() == 1 << 20
    finally:
        threading.stack_size(before)


def test_nested_calls_do_not_wait_for_one_another() -> None:
    assert with_deep_stack(lambda: with_deep_stack(lambda: 7)) == 7


def test_the_thread_is_gone_afterwards() -> None:
    threads = []
    with_deep_stack(lambda: threads.append(threading.current_thread()))
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_many_threads_at_once_get_their_own_results() -> None:
    found: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: with_deep_stack(lambda: n * n)})) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {n: n * n for n in range(16)}
