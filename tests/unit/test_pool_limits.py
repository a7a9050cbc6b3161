"""Limits and cancellation in pools: one call ends, other calls are unaffected."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import tempfile
import threading
import time
from concurrent import futures
from typing import Any

import pytest

from tests.support import python
from tests.support.waiting import until
from tests.unit import pool_calls as calls
from wbengine import exceptions, pools, time_limits
from wbengine._concurrency import event_loop, interrupts, process_pool, thread_pools, timers
from wbengine.types import failure as ft

SOFT = exceptions.SoftTimeLimitExceeded
HARD = exceptions.TimeLimitExceeded
MIB = 2**20


def serving(pool: Any) -> set[int]:
    """Return the pids of the children of a pool of two."""
    box = calls.Box()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            pool.submit(calls.meet, (folder,), box)
        return {box.get(), box.get()}


def closed_door() -> threading.Lock:
    door = threading.Lock()
    door.acquire()
    return door


def limit(soft: float | None, hard: float | None = None) -> time_limits.TimeLimit:
    return time_limits.TimeLimit(soft, hard)


@pytest.fixture(params=["threads", "processes", "solo", "given"])
def pool(request: pytest.FixtureRequest) -> Any:
    if request.param == "threads":
        with pools.ThreadPool(1) as new_pool:
            yield new_pool
    elif request.param == "processes":
        with pools.ProcessPool(1) as new_pool:
            calls.result_of(new_pool, calls.whoami)  # the first call of a child is slower
            yield new_pool
    elif request.param == "solo":
        solo = pools.SoloPool()
        thread = threading.Thread(target=solo.serve)
        thread.start()
        yield solo
        solo.stop()
        thread.join(calls.WAIT)
        assert not thread.is_alive()
    else:
        with futures.ThreadPoolExecutor(1) as executor:
            yield pools.ExternalPool(executor)


@pytest.fixture
def processes() -> Any:
    new_pool = pools.ProcessPool(2)
    try:
        serving(new_pool)  # the first call of a child is slower
        yield new_pool
    finally:
        new_pool.stop(kill=True)


@pytest.fixture
def box() -> calls.Box:
    return calls.Box()


# All pools --------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [("5", "7"), (None, "7")], ids=["both", "hard"])
def test_call_with_non_numeric_limits_fails_and_frees_its_slot(pool: Any, odd: Any) -> None:
    box, after = calls.Box(), calls.Box()
    pool.submit(calls.whoami, (), box, box.event, time_limits.TimeLimit(*odd))
    pool.submit(calls.whoami, (), after, after.event, limit(calls.WAIT))
    assert "str" in box.failure(TypeError).exception_str
    assert not isinstance(after.done.get(timeout=calls.WAIT), ft.Failure)


def test_soft_limit_is_raised_in_the_call(pool: Any, box: calls.Box) -> None:
    pool.submit(calls.clean_up, (), box, box.event, limit(0.05, calls.WAIT))
    pool.submit(calls.spin, (), box, None, limit(0.01))
    pool.submit(calls.whoami, (), box, None, limit(calls.WAIT))
    assert box.get() == "clean"
    assert [box.events.get(timeout=calls.WAIT)[0] for _ in range(2)] == ["begun", "cleaning"]
    box.failure(SOFT)
    assert isinstance(box.get(), int)


def test_hard_limit_ends_the_call_and_frees_its_slot(pool: Any, box: calls.Box) -> None:
    pool.submit(calls.stubborn, (), box, None, limit(0.3, 0.4), name="t")
    pool.submit(calls.whoami, (), box)
    message = box.failure(HARD).exception_str
    assert "task 't' did not end within its hard limit of 0.4 s" in message
    assert isinstance(box.get(), int)


def test_limit_interrupts_coroutine_at_its_await(
    pool: Any, monkeypatch: pytest.MonkeyPatch, box: calls.Box
) -> None:
    # With a long grace period, the thread does not count as lost.
    monkeypatch.setattr(thread_pools, "_GRACE_SECONDS", calls.WAIT)
    before = getattr(pool, "lost", 0)
    pool.submit(calls.sleeps_in_loop, (True,), box, None, limit(0.5))
    pool.submit(calls.sleeps_in_loop, (False,), box, None, limit(0.05))
    assert box.get() == "clean"
    box.failure(SOFT)
    pool.submit(calls.sleeps_in_loop, (True,), box, None, limit(None, 0.5))
    box.failure(HARD)
    pool.submit(calls.whoami, (), box)
    assert isinstance(box.get(), int)
    assert getattr(pool, "lost", 0) == before
    event_loop.stop_all()


def test_call_can_read_its_deadline(pool: Any, box: calls.Box) -> None:
    pool.submit(calls.deadline, (), box, None, limit(None, 100))
    assert abs(box.get() - time.time() - 100) < 30
    for wanted in (time_limits.UNLIMITED, limit(10)):
        pool.submit(calls.deadline, (), box, None, wanted)
        assert box.get() is None


def test_cancel_ends_running_call_and_fails_waiting_call(pool: Any) -> None:
    box, waiting = calls.Box(), calls.Box()
    first = pool.submit(calls.obedient, (), box, box.event)
    second = pool.submit(calls.whoami, (), waiting, name="w")
    box.begun()
    for _ in range(2):
        second.cancel(0.0)
        first.cancel()
    message = waiting.failure(exceptions.Cancelled).exception_str
    assert "task 'w' was cancelled before it started" in message
    assert box.get() == "obeyed"
    pool.submit(calls.is_cancelled, (), box)
    assert box.get() is False
    first.cancel(0.0)  # the call has ended
    assert isinstance(calls.result_of(pool, calls.whoami), int)
    assert waiting.done.empty() and box.done.empty()


def test_withdrawn_call_is_not_cancelled_and_vice_versa(pool: Any) -> None:
    box, other = calls.Box(), calls.Box()
    first = pool.submit(calls.obedient, (), box, box.event)
    box.begun()
    tickets = [pool.submit(calls.whoami, (), other) for _ in range(3)]
    tickets[1].cancel()
    assert pool.withdraw() == [tickets[0], tickets[2]]
    tickets[0].cancel()
    other.failure(exceptions.Cancelled)
    first.cancel()
    assert box.get() == "obeyed"
    assert other.done.empty()
    assert calls.result_of(pool, calls.is_cancelled) is False


def test_time_limit_without_values_is_unlimited(pool: Any, box: calls.Box) -> None:
    assert pool.submit(calls.whoami, (), box, None, limit(None)).limit is time_limits.UNLIMITED
    box.get()


# Threads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "solo"])
def test_lost_thread_is_logged_counted_and_replaced(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its late result is dropped, and `stop` does not wait for it."""
    door, box = closed_door(), calls.Box()
    pool: Any = pools.ThreadPool(1, name="p") if kind == "threads" else pools.SoloPool(name="p")
    serving = threading.Thread(target=getattr(pool, "serve", int), daemon=True)
    serving.start()
    pool.submit(calls.blocked, (door,), box, box.event, limit(None, 0.2))
    pool.submit(calls.whoami, (), box)
    box.begun()
    box.failure(HARD)
    assert box.get() == os.getpid()
    assert (pool.lost, pool.idle) == (1, 1)
    assert sum("is lost: it still runs blocked" in line for line in caplog.messages) == 1
    pool.stop()
    lost = [thread for thread in threading.enumerate() if thread.name.startswith("p-")]
    door.release()
    for thread in (*lost, serving):
        thread.join(calls.WAIT)
        assert not thread.is_alive()
    assert box.done.empty()


def test_stop_waits_for_the_replacement_of_a_lost_thread() -> None:
    door, box = closed_door(), calls.Box()
    pool = pools.ThreadPool(1)
    pool.submit(calls.blocked, (door,), box, None, limit(None, 0.1))
    for _ in range(3):
        pool.submit(calls.whoami, (), box)
    pool.stop()
    assert box.done.qsize() == 4
    door.release()


def test_interpreter_exits_despite_a_lost_thread() -> None:

    program = (
        "import time, threading\n"
        "from wbengine import pools, time_limits as limits\n"
        "told = threading.Event()\n"
        "pool = pools.ThreadPool(1)\n"
        "pool.submit(lambda emit: time.sleep(600), (), lambda v: told.set(), None,"
        " limits.TimeLimit(None, 0.05))\n"
        "assert told.wait(60)\n"
        "pool.stop()\n"
    )
    python.run(["-W", "error", "-c", program], check=True)


def test_solo_pool_cannot_be_served_twice() -> None:
    pool = pools.SoloPool()
    pool.stop(wait=False)
    pool.serve()
    with pytest.raises(RuntimeError, match="is already served"):
        pool.serve()


def test_solo_pool_in_main_thread_interrupts_calls_blocked_in_c() -> None:
    before = signal.getsignal(interrupts.SIGNAL)
    pool, box, ran = pools.SoloPool(), calls.Box(), list[Any]()
    pool.submit(calls.asleep, (), box, None, limit(0.02))
    pool.submit(lambda emit: ran.append(threading.current_thread()), (), lambda _: pool.stop())
    try:
        pool.serve()
    finally:
        signal.signal(interrupts.SIGNAL, before)
        interrupts._handled = False
    box.failure(SOFT)
    assert ran == [threading.main_thread()]


# Processes --------------------------------------------------------------------------------------


def test_hard_limit_kills_only_the_stuck_child(processes: Any) -> None:
    """The child is stopped, ignores exceptions or is busy."""
    other = calls.Box()
    ticket = processes.submit(calls.obedient, (), other, other.event)
    pid = other.begun()
    for fn in (calls.stopped, calls.stubborn, calls.spin):
        box, victim = calls.Box(), calls.result_of(processes, calls.whoami)
        processes.submit(fn, (), box, None, limit(None, 0.2), name="stuck")
        text = box.failure(HARD).exception_str
        assert "task 'stuck' did not end within its hard limit of 0.2 s" in text
        assert f"its process {victim} was killed" in text
        assert calls.result_of(processes, calls.whoami) not in (victim, pid)
    ticket.cancel()
    assert other.get() == "obeyed"
    assert pid in serving(processes)


def test_soft_limit_interrupts_sleeping_child_without_ending_it(processes: Any) -> None:
    box, before = calls.Box(), serving(processes)
    processes.submit(calls.asleep, (), box, None, limit(0.1))
    box.failure(SOFT)
    assert serving(processes) == before


def test_soft_limit_near_end_of_call_in_child_is_raised_only_there() -> None:
    count, results = int(os.environ.get("WBENGINE_TEST_ALARMS", "600")), calls.Box()
    with pools.ProcessPool(1) as pool:
        pid = calls.result_of(pool, calls.whoami)
        assert calls.result_of(pool, calls.switch_often) is None
        for number in range(count):
            soft = 0.0002 + number % 40 * 0.0004
            pool.submit(calls.busy, (0.001,), results, None, limit(soft))
            pool.submit(calls.busy, (0.0,), results)
        values = [results.get() for _ in range(2 * count)]
        assert calls.result_of(pool, calls.whoami) == pid
    assert values[1::2] == ["ended"] * count
    ended = sum(value == "ended" for value in values[::2])
    assert ended + sum(isinstance(v, ft.Failure) and bool(v.check(SOFT)) for v in values) == count
    assert 0 < ended < count


def test_child_that_ignores_cancel_is_killed_after_grace_period(processes: Any) -> None:
    box, other = calls.Box(), calls.Box()
    innocent = processes.submit(calls.obedient, (), other, other.event)
    pid = other.begun()
    ticket = processes.submit(calls.stubborn, (), box, box.event, name="deaf")
    victim = box.begun()
    ticket.cancel(0.05)
    text = box.failure(exceptions.Cancelled).exception_str
    assert "task 'deaf' was cancelled but did not end" in text and str(victim) in text
    assert calls.result_of(processes, calls.whoami) not in (pid, victim)
    innocent.cancel(calls.WAIT)
    assert other.get() == "obeyed"
    assert pid in serving(processes)


def test_child_that_obeys_cancel_in_time_is_not_killed(processes: Any) -> None:
    """The timer of the kill is removed, so that the next call of the child is safe."""
    for _ in range(5):
        box, before = calls.Box(), len(timers.of_process())
        ticket = processes.submit(calls.obedient, (), box, box.event)
        pid = box.begun()
        ticket.cancel(calls.WAIT)
        assert box.get() == "obeyed"
        assert pid in serving(processes)
        assert len(timers.of_process()) <= before, "it is still to be killed when the grace is over"


def test_cancel_does_not_block_on_child_that_does_not_read() -> None:
    """The child is stopped during the transfer of a large call, and the hard limit kills it."""
    box, hard = calls.Box(), time_limits.TimeLimit(hard=5.0)
    with pools.ProcessPool(1) as pool:
        pid, before = calls.result_of(pool, calls.whoami), len(timers.of_process())
        os.kill(pid, signal.SIGSTOP)
        call = pool.submit(calls.accept, (b"x" * 64 * MIB,), box, limit=hard)
        until(lambda: len(timers.of_process()) > before)
        cancelling = threading.Thread(target=call.cancel)
        cancelling.start()
        try:
            cancelling.join(calls.WAIT)
            assert not cancelling.is_alive()
            box.failure(exceptions.Cancelled)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_child_is_replaced_after_max_calls() -> None:
    with pools.ProcessPool(1, max_calls=3) as pool:
        pids = [calls.result_of(pool, calls.whoami) for _ in range(9)]
    assert [len(set(pids[at : at + 3])) for at in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3


def test_only_the_child_above_max_memory_is_killed() -> None:
    maximum = 150 * MIB
    with pools.ProcessPool(2, max_memory=maximum) as pool:
        box, other = calls.Box(), calls.Box()
        innocent = pool.submit(calls.obedient, (), other, other.event)
        pid = other.begun()
        pool.submit(calls.eat, (300 * MIB,), box, box.event, name="greedy")
        victim = box.begun()
        text = box.failure(MemoryError).exception_str
        innocent.cancel()
        assert re.match(rf"process {victim} used [1-9]\d\d,\d+,\d+ bytes", text), text
        assert f"while it ran task 'greedy', more than {maximum:,};" in text
        assert calls.result_of(pool, calls.whoami) != victim
        assert other.get() == "obeyed" and pid in serving(pool)


def test_memory_checks_of_a_call_leave_no_timers() -> None:
    """Otherwise a call of one hour would keep 36,000 timers."""

    def timer_count() -> int:
        return sum(isinstance(each, timers.Timer) for each in gc.get_objects())

    with pools.ProcessPool(1, max_memory=10**6 * MIB) as pool:
        calls.result_of(pool, calls.whoami)
        before, peak, box = timer_count(), 0, calls.Box()
        pool.submit(calls.busy, (1.5,), box)
        while box.done.empty():
            peak = max(peak, timer_count() - before)
        assert box.get() == "ended"
    assert peak <= 3


def test_child_above_max_memory_after_its_call_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_pool, "_MEMORY_CHECK_SECONDS", 60.0)  # no check during the call
    with pools.ProcessPool(1, max_memory=150 * MIB) as pool:
        first = calls.result_of(pool, calls.whoami)
        assert calls.result_of(pool, calls.keep, 1 * MIB) == first
        assert calls.result_of(pool, calls.keep, 300 * MIB) == first
        assert calls.result_of(pool, calls.whoami) != first


@pytest.mark.parametrize(
    "options",
    [{"max_calls": 0}, {"max_memory": -1}, {"max_calls": True}],
    ids=["zero-calls", "negative-memory", "bool-calls"],
)
def test_invalid_max_calls_and_max_memory_are_rejected(options: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        pools.ProcessPool(1, **options)


def test_hard_limit_never_kills_the_next_call() -> None:
    """The limits are near the ends of the calls. The next call runs in the same or a new child."""
    ended = calls.Box()
    with pools.ProcessPool(1) as pool:
        calls.result_of(pool, calls.whoami)
        for number in range(60):
            pool.submit(
                calls.busy, (0.002,), ended, None, limit(None, 0.0015 + number % 20 * 0.0001)
            )
            pool.submit(calls.whoami, (), ended)
        values = [ended.get() for _ in range(120)]
    assert all(isinstance(pid, int) for pid in values[1::2]), values
    for value in values[::2]:
        assert value == "ended" or value.check(HARD), value


def test_descriptors_of_dead_children_are_closed() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with pools.ProcessPool(1, max_calls=1) as pool:
        calls.result_of(pool, calls.whoami)
        before = count()
        for _ in range(5):
            calls.result_of(pool, calls.whoami)
        assert count() <= before + 4
