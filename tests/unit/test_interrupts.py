"""Exceptions raised in a call by another thread: in that call, or nowhere."""

from __future__ import annotations

import collections
import functools
import gc
import logging
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import exceptions, limits, pools
from wbengine.concurrency import interrupts, timers
from wbengine.types import failure as ft

WAIT = 60.0
#: How many calls are made with limits that end about when they do.
MANY = int(os.environ.get("WBENGINE_TEST_ALARMS", "10000"))

SOFT = exceptions.SoftTimeLimitExceeded
HARD = exceptions.TimeLimitExceeded


@pytest.fixture
def strays() -> Iterator[list[Any]]:
    """Whatever is raised where nobody catches it; threads take turns as often as possible."""
    found: list[Any] = []
    before = threading.excepthook, sys.unraisablehook, sys.getswitchinterval()
    threading.excepthook = found.append
    sys.unraisablehook = found.append
    sys.setswitchinterval(1e-5)
    # What strikes while one of these runs, Python itself tells as unraisable: they are not ours.
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
    """Nothing but steps of Python code, for a while."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return "ended"


def name_of(value: Any) -> str:
    return type(value.exception).__name__ if isinstance(value, ft.Failure) else str(value)


# Where they are raised ---------------------------------------------------------------------------


def test_calls_that_end_about_when_their_limit_does(strays: list[Any]) -> None:
    """Each gives its value or the exception; calls between them, without limits, never that."""
    chance, told = random.Random(7), queue.SimpleQueue[Any]()
    seconds = near = 0.0002
    places = threading.Semaphore(6)

    def tell(value: Any) -> None:
        # However fast this machine is, the limits stay near the ends of the calls.
        nonlocal near
        near *= 0.98 if value == "ended" else 1 / 0.98
        told.put(("limited", name_of(value)))
        places.release()

    with pools.ThreadPool(3) as pool:
        for number in range(MANY):
            places.acquire()
            limit = limits.TimeLimit(near * chance.uniform(0.6, 1.6), None)
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


def test_soft_and_hard_limits_that_fall_together(
    strays: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """One outcome each, as many lost as are told to be, and a pool that goes on."""
    caplog.set_level(logging.ERROR)
    chance, told = random.Random(8), queue.SimpleQueue[Any]()
    count = MANY // 10
    with pools.ThreadPool(3) as pool:
        for _ in range(count):
            soft = 0.0005 * chance.uniform(0.5, 1.5)
            limit = limits.TimeLimit(soft, soft + 0.0005 * chance.random())
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


def test_what_is_told_is_told_whole(strays: list[Any]) -> None:
    """A receiver of events is no part of the call: nothing is raised in it, but after it."""
    inside = 0
    told = queue.SimpleQueue[Any]()

    def on_event(event_type: str, details: Any) -> None:
        nonlocal inside
        inside += 1
        spin(0.0002)
        inside -= 1

    with pools.ThreadPool(1) as pool:
        for number in range(MANY // 20):
            limit = limits.TimeLimit(0.0002 + number % 17 * 0.0001, None)
            pool.submit(tells, (8,), lambda v: told.put(name_of(v)), on_event, limit)
    found = collections.Counter(told.get(timeout=WAIT) for _ in range(MANY // 20))
    assert inside == 0
    assert found["SoftTimeLimitExceeded"] > 0 and sum(found.values()) == MANY // 20


def tells(count: int, emit: Any) -> str:
    for _ in range(count):
        emit("step", {})
    return "told"


def test_the_exception_of_a_task_that_cleans_up(strays: list[Any]) -> None:
    def body(emit: Any) -> list[str]:
        try:
            spin(WAIT)
        except SOFT as error:
            emit("cleaning", {})
            return [str(error)]
        return []

    told = queue.SimpleQueue[Any]()
    with pools.ThreadPool(1) as pool:
        pool.submit(body, (), told.put, None, limits.TimeLimit(0.01, None))
        assert told.get(timeout=WAIT) == ["the soft time limit is over"]


# Interrupts by themselves -------------------------------------------------------------------------


def make(sort: str) -> interrupts.Interrupt:
    """One for this thread, which is the main one."""
    handled, interrupts._handled = interrupts._handled, sort == "signal"
    made = interrupts.Interrupt()
    interrupts._handled = handled
    return made


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_one_that_was_delivered_before_its_call_began(sort: str, signals: None) -> None:
    made = make(sort)
    made.deliver()
    value = made.call(spin, (WAIT,))
    assert isinstance(value, ft.Failure) and value.check(SOFT)
    assert interrupts.current() is None


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_one_that_comes_too_late_does_nothing(sort: str, signals: None) -> None:
    made = make(sort)
    assert made.call(spin, (0,)) == "ended"
    made.deliver()
    made.deliver(HARD)
    assert spin(0.01) == "ended"


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_each_of_two_calls_has_its_own(sort: str, signals: None) -> None:
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
def test_both_limits_of_one_call(sort: str, signals: None) -> None:
    made = make(sort)

    def body() -> str:
        try:
            made.mask()  # nothing is raised in the timers themselves
            timers.of_process().after(0.005, made.deliver)
            made.unmask()
            return spin(WAIT)
        except SOFT:
            made.mask()
            timers.of_process().after(0.005, functools.partial(made.deliver, HARD))
            made.unmask()
            return spin(WAIT)

    assert made.call(body, ()).check(HARD)


def test_a_signal_interrupts_what_waits_in_c(signals: None) -> None:
    before = time.monotonic()
    value = interrupts.limited(limits.TimeLimit(0.01, None), time.sleep, (WAIT,))
    assert value.check(SOFT)
    assert time.monotonic() - before < WAIT / 2


def test_other_threads_do_not_change_handlers_of_signals() -> None:
    before = signal.getsignal(interrupts.SIGNAL)
    other = threading.Thread(target=interrupts.handle_signal)
    other.start()
    other.join()
    assert signal.getsignal(interrupts.SIGNAL) == before


TRACED = """
import sys, time
from wbengine import limits, pools
pool = pools.ThreadPool(1)
pool.submit(lambda emit: time.sleep(60), (), print, None, limits.TimeLimit(0.05))
time.sleep(0.5)  # the limit is over, and the thread waits in C
sys.settrace(lambda *args: None)
(lambda: 1)()
"""


def test_a_thread_that_waits_in_c_does_not_stop_one_that_is_traced() -> None:
    """On Python 3.11 a traced thread stands still while an exception waits for another one."""
    subprocess.run([sys.executable, "-c", TRACED], timeout=60, check=True)
