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
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workers import until
from wbengine import alarms, exceptions, limits, pools, watch
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
    before = signal.getsignal(alarms.NUMBER)
    assert alarms.install()
    yield
    signal.signal(alarms.NUMBER, before)
    alarms._installed = False


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
    until(lambda: len(watch.of_process()) == 0)  # the last strike may still have to be calmed
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


# Alarms by themselves ----------------------------------------------------------------------------


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_one_that_rang_before_its_call_began(sort: str, signals: None) -> None:
    made = alarms.ThreadAlarm() if sort == "thread" else alarms.SignalAlarm()
    made.ring()
    value = alarms.call(made, spin, (WAIT,))
    assert isinstance(value, ft.Failure) and value.check(SOFT)
    assert alarms.current() is None


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_one_that_rings_too_late_does_nothing(sort: str, signals: None) -> None:
    made = alarms.ThreadAlarm() if sort == "thread" else alarms.SignalAlarm()
    assert alarms.call(made, spin, (0,)) == "ended"
    made.ring()
    made.ring(HARD)
    assert spin(0.01) == "ended"


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_each_of_two_calls_has_its_own(sort: str, signals: None) -> None:
    make = alarms.ThreadAlarm if sort == "thread" else alarms.SignalAlarm
    outer = make()
    inner: list[Any] = []

    def body() -> str:
        made = make()
        watch.of_process().after(0.005, made.ring)
        inner.append(alarms.call(made, spin, (WAIT,)))
        assert alarms.current() is outer
        return spin(0.0)

    assert alarms.call(outer, body, ()) == "ended"
    assert inner[0].check(SOFT)
    outer = make()
    watch.of_process().after(0.005, outer.ring)
    assert alarms.call(outer, functools.partial(spin, WAIT), ()).check(SOFT)


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_both_limits_of_one_call(sort: str, signals: None) -> None:
    made = alarms.ThreadAlarm() if sort == "thread" else alarms.SignalAlarm()

    def body() -> str:
        try:
            made.hold()  # nothing is raised in the watch itself
            watch.of_process().after(0.005, made.ring)
            made.let_go()
            return spin(WAIT)
        except SOFT:
            made.hold()
            watch.of_process().after(0.005, functools.partial(made.ring, HARD))
            made.let_go()
            return spin(WAIT)

    assert alarms.call(made, body, ()).check(HARD)


def test_a_signal_interrupts_what_waits_in_c(signals: None) -> None:
    before = time.monotonic()
    value = alarms.limited(limits.TimeLimit(0.01, None), time.sleep, (WAIT,))
    assert value.check(SOFT)
    assert time.monotonic() - before < WAIT / 2


def test_without_the_handler_the_main_thread_is_like_any_other() -> None:
    assert isinstance(alarms.make(), alarms.ThreadAlarm)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.append(alarms.install()))
    other.start()
    other.join()
    assert found == [False]


@pytest.mark.parametrize("sort", ["thread", "signal"])
def test_locks_of_everybody_are_not_left_locked(sort: str, signals: None) -> None:
    """A call that does little but log is interrupted all the same, outside of `logging`."""
    handler = _Slow()
    log = logging.Logger("test")
    log.addHandler(handler)

    def body() -> None:
        while True:
            log.error("x")
            spin(0.0001)

    def run() -> Any:
        return alarms.limited(limits.TimeLimit(0.003, None), body, ())

    for _ in range(40):
        told = queue.SimpleQueue[Any]()
        if sort == "thread":
            threading.Thread(target=lambda told=told: told.put(run())).start()
            assert told.get(timeout=WAIT).check(SOFT)
        else:
            assert run().check(SOFT)
        assert handler.lock is not None
        free = threading.Thread(target=handler.use, daemon=True)
        free.start()
        free.join(WAIT)
        assert not free.is_alive(), "the lock of a handler of the log was left locked"


@pytest.mark.parametrize("sort", ["thread", "signal"])
@pytest.mark.parametrize("who", ["the collector", "a weak reference"])
def test_no_limit_is_lost_where_nobody_hears_of_errors(sort: str, who: str, signals: None) -> None:
    """A call that does little but be called back is interrupted all the same, outside of that."""

    class Thing:
        pass

    def back(*_: object) -> None:
        spin(0.0001)

    def body() -> str:
        end = time.monotonic() + WAIT / 2
        while time.monotonic() < end:
            spin(0.00005)
            if who == "the collector":
                gc.collect(0)
            else:
                weakref.finalize(Thing(), back)
        return "never interrupted"

    def run() -> None:
        while len(values) < 10 and "never interrupted" not in values:
            values.append(name_of(alarms.limited(limits.TimeLimit(0.002, None), body, ())))

    values: list[str] = []
    if who == "the collector":
        gc.callbacks.append(back)
    try:
        if sort == "thread":
            other = threading.Thread(target=run)
            other.start()
            other.join()
        else:
            run()
    finally:
        if who == "the collector":
            gc.callbacks.remove(back)
    assert values == ["SoftTimeLimitExceeded"] * 10


TRACED = """
import sys, threading, time
from wbengine import alarms

def run(made, ready):
    alarm = alarms.ThreadAlarm()
    made.append(alarm)
    ready.set()
    alarms.call(alarm, time.sleep, (60,))

def f():
    return 1

made, ready = [], threading.Event()
threading.Thread(target=run, args=(made, ready), daemon=True).start()
ready.wait()
time.sleep(0.05)  # for it to wait in C
made[0].ring()
if sys.argv[1] == "disarmed":
    made[0].disarm()
time.sleep(0.05)  # for the watch to take its turn
sys.settrace(lambda *args: None)
f()
"""


@pytest.mark.parametrize("how", ["waiting", "disarmed"])
def test_a_call_that_hears_of_nothing_does_not_stop_whoever_is_traced(how: str) -> None:
    """On Python 3.11 a traced thread stands still while an exception waits for another one."""
    subprocess.run([sys.executable, "-c", TRACED, how], timeout=100, check=True)


class _Slow(logging.Handler):
    """Most of the time is spent where an exception would do harm."""

    def acquire(self) -> None:
        super().acquire()
        spin(0.0001)

    def use(self) -> None:
        self.acquire()
        self.release()

    def emit(self, record: logging.LogRecord) -> None:
        pass
