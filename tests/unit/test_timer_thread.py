"""Timers that share one thread."""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from typing import Any

import pytest

from wbengine._concurrency import timers

WAIT = 60.0


def test_due_timers_are_called_in_order_by_one_thread() -> None:
    clock, told = timers.TimerThread("test-watch"), queue.SimpleQueue[Any]()
    begun, door = threading.Event(), threading.Event()

    def tell(seconds: float) -> None:
        told.put((seconds, threading.current_thread().name))

    def hold() -> None:
        begun.set()
        door.wait(WAIT)

    clock.after(0.0, hold)  # Blocks until all other timers are due.
    assert begun.wait(WAIT)
    for seconds in (0.0, -200.0, -100.0):
        clock.after(seconds, functools.partial(tell, seconds))
    door.set()
    found = [told.get(timeout=WAIT) for _ in range(3)]
    assert found == [(seconds, "test-watch") for seconds in (-200.0, -100.0, 0.0)]
    assert len(clock) == 0


def test_timer_is_not_called_early() -> None:
    clock, told = timers.TimerThread(), queue.SimpleQueue[float]()
    for seconds in (0.02, 0.05):
        due = time.monotonic() + seconds
        clock.after(seconds, lambda: told.put(time.monotonic()))
        assert told.get(timeout=WAIT) >= due


def test_thread_starts_with_the_first_timer() -> None:
    made = timers.TimerThread("not-yet")
    assert "not-yet" not in [thread.name for thread in threading.enumerate()]
    made.cancel(made.after(3600, int))
    assert "not-yet" in [thread.name for thread in threading.enumerate()]


def test_an_earlier_timer_wakes_the_thread() -> None:
    clock, told = timers.TimerThread(), queue.SimpleQueue[Any]()
    far = clock.after(1e9, lambda: told.put("far"))
    clock.after(0.001, lambda: told.put("near"))
    assert told.get(timeout=WAIT) == "near"
    assert clock.cancel(far)
    assert not clock.cancel(far)
    assert len(clock) == 0


def test_cancelled_timer_is_not_called() -> None:
    clock, told = timers.TimerThread(), queue.SimpleQueue[Any]()
    due = [clock.after(0.02, functools.partial(told.put, n)) for n in range(1000)]
    off = [n for n in range(1000) if n % 10 and clock.cancel(due[n])]
    clock.after(0.03, lambda: told.put("last"))
    found = []
    while (got := told.get(timeout=WAIT)) != "last":
        found.append(got)
    assert sorted([*found, *off]) == list(range(1000))


def test_cancelled_timers_are_removed_from_the_heap() -> None:
    """An example is a time limit of one hour for thousands of short calls."""
    clock = timers.TimerThread()
    for _ in range(10_000):
        clock.cancel(clock.after(3600, int))
    assert len(clock._heap) < 200
    assert len(clock) == 0


def test_failing_callback_is_logged_and_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    clock, told = timers.TimerThread(), queue.SimpleQueue[Any]()

    def fails() -> None:
        raise SystemExit("of all things")

    clock.after(0.0, fails)
    clock.after(0.001, lambda: told.put("next"))
    assert told.get(timeout=WAIT) == "next"
    assert "a timer callback failed" in caplog.messages


def test_forked_process_has_its_own_timer_thread() -> None:
    found = timers.of_process()
    assert timers.of_process() is found
    found.cancel(found.after(3600, int))
    pid = os.fork()
    if pid == 0:
        told = threading.Event()
        try:
            timers.of_process().after(0.001, told.set)
            os._exit(0 if told.wait(WAIT) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
