"""Conditions, events and starts of threads, including interrupted ones."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.interrupted import Point, interrupt_at, points_of
from tests.support.waiting import until
from wbengine._concurrency import conditions, threads

LOCKS = [threading.Lock, threading.RLock]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_free(lock: Any) -> bool:
    """Return whether another thread can acquire the lock."""
    free: list[bool] = []

    def enter() -> None:
        free.append(lock.acquire(timeout=0.5))
        if free[0]:
            lock.release()

    in_thread(enter).join(10)
    return free == [True]


@pytest.mark.parametrize("make_lock", LOCKS)
def test_wait_for_returns_the_value_of_its_predicate(make_lock: Any) -> None:
    lock = make_lock()
    condition = conditions.Condition(lock)
    values: list[int] = []
    results: list[Any] = []
    waiting = in_thread(lambda: results.append(condition.wait_for(lambda: values, 60)))
    until(lambda: condition._waiters)
    with lock:
        condition.notify_all()
    until(lambda: condition._waiters)
    assert not results
    with lock:
        values.append(1)
        condition.notify_all()
    waiting.join(60)
    assert results == [[1]] and not condition._waiters


@pytest.mark.parametrize("timeout", [-1, 0, 0.01])
def test_wait_for_gives_up_after_its_timeout(timeout: float) -> None:
    condition = conditions.Condition(threading.Lock())
    assert condition.wait_for(list, timeout) == []
    assert not condition._waiters


@pytest.mark.parametrize("make_lock", LOCKS)
def test_wait_reacquires_the_lock(make_lock: Any) -> None:
    lock = make_lock()
    condition = conditions.Condition(lock)
    with lock:
        assert condition.wait(0.01) is False
        assert not is_free(lock)

        def notify() -> None:
            with lock:
                condition.notify_all()

        notifying = in_thread(notify)
        assert condition.wait(60) is True
        assert not is_free(lock)
    notifying.join(60)
    assert is_free(lock) and not condition._waiters


def test_event_wakes_all_waiting_threads() -> None:
    event = conditions.Event()
    results: list[bool] = []
    threads = [in_thread(lambda: results.append(event.wait(60))) for _ in range(3)]
    until(lambda: len(event._waiters) == 3)
    assert not event.is_set() and event.wait(0) is False and event.wait(-1) is False
    event.set()
    event.set()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 3 and event.is_set() and event.wait()
    event.clear()
    assert not event.is_set() and event.wait(0.01) is False


@pytest.fixture
def release_soon() -> Iterator[list[Callable[[], object]]]:
    """Return a list of functions that a thread calls repeatedly, so that waits are short."""
    calls: list[Callable[[], object]] = []
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.002):
            for call in calls:
                call()

    thread = in_thread(run)
    yield calls
    is_over.set()
    thread.join(60)


def _enter(lock: Any, body: Callable[[], object]) -> None:
    with lock:
        body()


WAITING = points_of(conditions.Condition.wait_for, conditions.Condition._add_waiter)
NOTIFYING = points_of(conditions.Condition.notify_all, _enter)


@pytest.mark.parametrize("make_lock", LOCKS)
@pytest.mark.parametrize("point", WAITING, ids=str)
def test_interrupted_wait_for_leaves_the_lock_free(
    make_lock: Any, point: Point, release_soon: list[Callable[[], object]]
) -> None:
    lock = make_lock()
    condition = conditions.Condition(lock)
    values: list[int] = []
    began = time.monotonic()
    release_soon.append(lambda: _enter(lock, condition.notify_all))
    with contextlib.suppress(KeyboardInterrupt):
        # The predicate is false at first, and true when nothing was interrupted.
        interrupt_at(point, lambda: condition.wait_for(lambda: time.monotonic() > began + 0.05))
    assert is_free(lock)
    others = in_thread(lambda: condition.wait_for(lambda: values, 60))
    values.append(1)
    others.join(60)
    assert not others.is_alive()


@pytest.mark.parametrize("make_lock", LOCKS)
@pytest.mark.parametrize("point", NOTIFYING, ids=str)
def test_interrupted_notify_all_loses_no_later_notification(make_lock: Any, point: Point) -> None:
    lock = make_lock()
    condition = conditions.Condition(lock)
    values: list[int] = []
    threads = [in_thread(lambda: condition.wait_for(lambda: values, 60)) for _ in range(2)]
    until(lambda: len(condition._waiters) == 2)
    with contextlib.suppress(KeyboardInterrupt):  # some points are not reached
        interrupt_at(point, lambda: _enter(lock, condition.notify_all))
    assert is_free(lock)
    values.append(1)
    with lock:
        condition.notify_all()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("point", points_of(conditions.Event.wait, conditions.Event.set), ids=str)
def test_interrupted_event_still_wakes_others(point: Point) -> None:
    event = conditions.Event()
    thread = in_thread(lambda: event.wait(60))
    until(lambda: event._waiters)
    with contextlib.suppress(KeyboardInterrupt):
        interrupt_at(point, lambda: (event.wait(0.01), event.set(), event.wait()))
    event.set()
    thread.join(60)
    assert not thread.is_alive()


STARTING = points_of(
    threads.Thread.start,
    threading.Thread.start,
    threading.Event.wait,
    threading.Condition.__enter__,
    threading.Condition.wait,
    threading.Condition._release_save,  # type: ignore[attr-defined]
    conditions.Event.wait,
    conditions.Condition._add_waiter,
)


@pytest.mark.parametrize("point", STARTING, ids=str)
def test_thread_with_interrupted_start_runs_or_was_never_started(point: Point) -> None:
    ran: list[bool] = []
    thread = threads.Thread(target=ran.append, args=(True,), daemon=True)
    with contextlib.suppress(KeyboardInterrupt):
        interrupt_at(point, thread.start)
    is_started = thread.ident is not None
    time.sleep(0.02)  # by now a started thread has usually begun
    if is_started:
        thread.join(60)
        assert ran == [True] and not thread.is_alive()
    else:
        assert thread.ident is None and not ran


def test_thread_is_restored_after_a_fork() -> None:
    pid = os.fork()
    if not pid:
        thread = threads.Thread(target=lambda: None)
        thread.start()
        thread.join(60)
        os._exit(int(thread.is_alive()))
    assert os.waitpid(pid, 0)[1] == 0
