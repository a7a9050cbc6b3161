"""Interrupts: exceptions that one thread raises in a call of another thread."""

from __future__ import annotations

import collections
import functools
import gc
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import python
from wbengine import exceptions, pools, time_limits
from wbengine._concurrency import interrupts, timers
from wbengine.types import failure as ft

WAIT = 60.0
#: Number of calls whose limits are close to their ends.
MANY = int(os.environ.get("WBENGINE_TEST_ALARMS", "10000"))

SOFT = exceptions.SoftTimeLimitExceeded
HARD = exceptions.TimeLimitExceeded


@pytest.fixture
def strays() -> Iterator[list[Any]]:
    """Collect uncaught exceptions, and switch threads as often as possible."""
    found: list[Any] = []
    before = threading.excepthook, sys.unraisablehook, sys.getswitchinterval()
    threading.excepthook = found.append
    sys.unraisablehook = found.append
    sys.setswitchinterval(1e-5)
    # Python reports an exception during a gc callback as unraisable. Other packages own these
    # callbacks.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield found
    gc.callbacks[:] = callbacks
    threading.excepthook, sys.unraisablehook = before[:2]
    sys.setswitchinterval(before[2])
    assert found == []


@pytest.fixture
def signals() -> Iterator[None]:
    before = signal.getsignal(interrupts.SIGNAL)
    interrupts.handle_signal()
    yield
    signal.signal(interrupts.SIGNAL, before)
    interrupts._handled = False


def spin(seconds: float, emit: Any = None) -> str:
    """Execute Python code for some seconds, without blocking."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return "ended"


def name_of(value: Any) -> str:
    return type(value.exception).__name__ if isinstance(value, ft.Failure) else str(value)


# Interrupts of pool calls -------------------------------------------------------------------------


@pytest.mark.slow
def test_soft_limit_near_end_of_call_is_raised_only_in_that_call(strays: list[Any]) -> None:
    """Each call returns its value or the exception. Calls without limits are unaffected."""
    chance, told = random.Random(7), queue.SimpleQueue[Any]()
    seconds = near = 0.0002
    places = threading.Semaphore(6)

    def tell(value: Any) -> None:
        # The limits adapt to the speed of the machine, to stay near the ends of the calls.
        nonlocal near
        near *= 0.98 if value == "ended" else 1 / 0.98
        told.put(("limited", name_of(value)))
        places.release()

    with pools.ThreadPool(3) as pool:
        for number in range(MANY):
            places.acquire()
            limit = time_limits.TimeLimit(near * chance.uniform(0.6, 1.6), None)
            pool.submit(spin, (seconds,), tell, None, limit)
            if number % 3 == 0:
                pool.submit(spin, (0.0,), lambda v: told.put(("free", name_of(v))))
    counts = collections.Counter(told.get(timeout=WAIT) for _ in range(told.qsize()))
    free = (MANY + 2) // 3
    assert counts.pop(("free", "ended")) == free
    assert set(counts) == {("limited", "ended"), ("limited", "SoftTimeLimitExceeded")}
    assert sum(counts.values()) == MANY
    assert min(counts.values()) > MANY // 50, "the limits are far from the ends of the calls"
    assert pool.lost == 0


@pytest.mark.slow
def test_coinciding_soft_and_hard_limits_give_one_result_per_call(
    strays: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each call has one result. Only calls that exceeded their hard limit can lose a thread."""
    caplog.set_level(logging.ERROR)
    chance, told = random.Random(8), queue.SimpleQueue[Any]()
    count = MANY // 10
    with pools.ThreadPool(3) as pool:
        for _ in range(count):
            soft = 0.0005 * chance.uniform(0.5, 1.5)
            limit = time_limits.TimeLimit(soft, soft + 0.0005 * chance.random())
            pool.submit(stubborn, (0.0008,), lambda v: told.put(name_of(v)), None, limit)
    counts = collections.Counter(told.get(timeout=WAIT) for _ in range(count))
    assert set(counts) <= {"ended", "SoftTimeLimitExceeded", "TimeLimitExceeded"}
    assert sum(counts.values()) == count and told.empty()
    assert counts["TimeLimitExceeded"] > 0
    assert pool.lost <= counts["TimeLimitExceeded"]
    assert caplog.messages == []


def stubborn(seconds: float, emit: Any) -> str:
    try:
        return spin(seconds)
    except SOFT:
        return spin(seconds)


def test_soft_limit_does_not_interrupt_event_callback(strays: list[Any]) -> None:
    """An event callback is not part of the call: the exception is raised after it."""
    inside = 0
    told = queue.SimpleQueue[Any]()

    def on_event(event_type: str, details: Any) -> None:
        nonlocal inside
        inside += 1
        spin(0.0002)
        inside -= 1

    with pools.ThreadPool(1) as pool:
        for number in range(MANY // 20):
            limit = time_limits.TimeLimit(0.0002 + number % 17 * 0.0001, None)
            pool.submit(tells, (8,), lambda v: told.put(name_of(v)), on_event, limit)
    found = collections.Counter(told.get(timeout=WAIT) for _ in range(MANY // 20))
    assert inside == 0
    assert found["SoftTimeLimitExceeded"] > 0 and sum(found.values()) == MANY // 20


def tells(count: int, emit: Any) -> str:
    for _ in range(count):
        emit("step", {})
    return "told"


def test_call_that_catches_soft_limit_returns_its_value(strays: list[Any]) -> None:
    def body(emit: Any) -> list[str]:
        try:
            spin(WAIT)
        except SOFT as error:
            emit("cleaning", {})
            return [str(error)]
        return []

    told = queue.SimpleQueue[Any]()
    with pools.ThreadPool(1) as pool:
        pool.submit(body, (), told.put, None, time_limits.TimeLimit(0.01, None))
        assert told.get(timeout=WAIT) == ["the soft time limit has expired"]


# Single interrupts --------------------------------------------------------------------------------


def make(sort: str) -> interrupts.Interrupt:
    """Create an interrupt for this thread, the main thread."""
    handled, interrupts._handled = interrupts._handled, sort == "signal"
    made = interrupts.Interrupt()
    interrupts._handled = handled
    return made


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_interrupt_delivered_before_call_is_raised_in_call(sort: str, signals: None) -> None:
    made = make(sort)
    made.deliver()
    value = made.call(spin, (WAIT,))
    assert isinstance(value, ft.Failure) and value.check(SOFT)
    assert interrupts.current() is None


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_interrupt_delivered_after_call_has_no_effect(sort: str, signals: None) -> None:
    made = make(sort)
    assert made.call(spin, (0,)) == "ended"
    made.deliver()
    made.deliver(HARD)
    assert spin(0.01) == "ended"


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_nested_calls_receive_only_their_own_interrupt(sort: str, signals: None) -> None:
    outer = make(sort)
    inner: list[Any] = []

    def body() -> str:
        made = make(sort)
        timers.of_process().after(0.005, made.deliver)
        inner.append(made.call(spin, (WAIT,)))
        assert interrupts.current() is outer
        return spin(0.0)

    assert outer.call(body, ()) == "ended"
    assert inner[0].check(SOFT)
    outer = make(sort)
    timers.of_process().after(0.005, outer.deliver)
    assert outer.call(functools.partial(spin, WAIT), ()).check(SOFT)


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_soft_then_hard_interrupt_both_reach_the_call(sort: str, signals: None) -> None:
    made = make(sort)

    def body() -> str:
        try:
            made.mask()  # no interrupt during the setup of the timer
            timers.of_process().after(0.005, made.deliver)
            made.unmask()
            return spin(WAIT)
        except SOFT:
            made.mask()
            timers.of_process().after(0.005, functools.partial(made.deliver, HARD))
            made.unmask()
            return spin(WAIT)

    assert made.call(body, ()).check(HARD)


def test_signal_interrupts_call_that_blocks_in_c(signals: None) -> None:
    before = time.monotonic()
    value = interrupts.limited(time_limits.TimeLimit(0.01, None), time.sleep, (WAIT,))
    assert value.check(SOFT)
    assert time.monotonic() - before < WAIT / 2


def test_handle_signal_in_other_thread_changes_no_handler() -> None:
    before = signal.getsignal(interrupts.SIGNAL)
    other = threading.Thread(target=interrupts.handle_signal)
    other.start()
    other.join()
    assert signal.getsignal(interrupts.SIGNAL) == before


TRACED = """
import sys, time
from wbengine import pools, time_limits as limits
pool = pools.ThreadPool(1)
pool.submit(lambda emit: time.sleep(60), (), print, None, limits.TimeLimit(0.05))
time.sleep(0.5)  # the limit is over, and the thread waits in C
sys.settrace(lambda *args: None)
(lambda: 1)()
"""


def test_interrupted_thread_blocked_in_c_does_not_stop_traced_thread() -> None:
    """On Python 3.11, a traced thread blocks while an exception is pending for another thread."""
    python.run(["-c", TRACED], check=True)
