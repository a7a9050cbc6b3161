"""An event loop of its own thread: values, failures, leftovers, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import logging
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.workers import interrupted
from wbengine import exceptions, limits
from wbengine.concurrency import cancellation, event_loop
from wbengine.types import failure as ft

WAIT = 60.0


@pytest.fixture
def loop() -> Iterator[event_loop.EventLoop]:
    made = event_loop.EventLoop("test-loop")
    yield made
    made.stop()
    assert "test-loop" not in [thread.name for thread in threading.enumerate()]


class Gate:
    """Counts who is inside, and lets nobody out before it is opened."""

    def __init__(self, wanted: int = 1) -> None:
        self.wanted = wanted
        self.inside = 0
        self.full = threading.Event()
        self.opened = False

    async def wait(self) -> None:
        self.inside += 1
        if self.inside == self.wanted:
            self.full.set()
        while not self.opened:
            await asyncio.sleep(0.001)


async def echo(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_a_value_and_a_failure(loop: event_loop.EventLoop) -> None:
    assert loop.run(echo, 7) == 7
    value = loop.run(fail, LookupError("gone"))
    assert isinstance(value, ft.Failure)
    assert value.check(LookupError)


def test_nothing_is_started_before_the_first_call(loop: event_loop.EventLoop) -> None:
    before = set(threading.enumerate())
    loop.stop()
    assert loop.withdraw() == []
    assert set(threading.enumerate()) <= before
    loop.run(echo, 1)
    assert [thread.name for thread in {*threading.enumerate()} - before] == ["test-loop"]
    assert [loop.run(echo, n) for n in range(3)] == [0, 1, 2]
    assert [thread.name for thread in {*threading.enumerate()} - before] == ["test-loop"]


def test_what_is_not_even_a_coroutine(loop: event_loop.EventLoop) -> None:
    def plain() -> Any:
        raise ValueError("at once")

    assert loop.run(plain).check(ValueError)


def test_one_that_cancels_itself_still_gives_its_value(loop: event_loop.EventLoop) -> None:
    """`asyncio` would call the task cancelled, whatever it returned."""

    async def body() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    assert loop.run(body) == "done"


def test_one_that_is_cancelled_before_its_first_step_ends_too(loop: event_loop.EventLoop) -> None:
    """By a neighbour that cancels everybody it sees."""

    async def cancels() -> None:
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()

    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    holding, held = threading.Event(), threading.Event()

    async def holds() -> None:
        holding.set()
        held.wait()  # so that the next two begin in one step of the loop

    loop.submit(holds, (), lambda _: None)
    assert holding.wait(WAIT)
    loop.submit(cancels, (), lambda _: None)
    loop.submit(echo, (1,), ended.put)
    held.set()
    assert ended.get(timeout=WAIT).check(asyncio.CancelledError)


def test_stop_waits_for_what_runs_and_refuses_more(loop: event_loop.EventLoop) -> None:
    gate = Gate()
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop.submit(gate.wait, (), ended.put)
    gate.full.wait()
    loop.stop(timeout=0)
    with pytest.raises(RuntimeError, match="stopped"):
        loop.submit(echo, (1,), ended.put)
    gate.opened = True
    loop.stop()
    loop.stop()
    assert ended.get_nowait() is None
    assert loop.run(echo, "again") == "again"  # the next call starts a new one


def test_stop_may_cancel_what_runs(loop: event_loop.EventLoop) -> None:
    gate = Gate()
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop.submit(gate.wait, (), ended.put)
    gate.full.wait()
    loop.stop(cancel=True)
    assert ended.get_nowait().check(asyncio.CancelledError)


def test_stop_again_while_it_ends(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """What it does at its end comes to an end."""
    ends, gate, story = threading.Event(), threading.Event(), list[str]()
    kept: list[Any] = []

    async def lingers() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ends.set()
            while not gate.is_set():
                await asyncio.sleep(0.001)
            story.append("cancelled")

    async def body() -> None:
        kept.append(asyncio.create_task(lingers()))
        await asyncio.sleep(0)

    loop.run(body)
    loop.stop(timeout=0)
    assert ends.wait(30)
    loop.stop(timeout=0)
    gate.set()
    loop.stop()
    assert story == ["cancelled"]
    assert "ran out of" not in caplog.text


def test_stop_by_a_receiver_does_not_wait_for_itself(loop: event_loop.EventLoop) -> None:
    stopped = threading.Event()

    def done(_: Any) -> None:
        loop.stop()
        stopped.set()

    loop.submit(echo, (1,), done)
    assert stopped.wait(WAIT)


def test_leftovers_are_cancelled_with_the_loop(loop: event_loop.EventLoop) -> None:
    """They go on until then, also behind the back of the call that made them."""
    story: list[str] = []
    kept: list[Any] = []
    goes_on = threading.Event()

    async def lingers() -> None:
        try:
            goes_on.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            story.append("cancelled")
            raise

    async def streams() -> Any:
        try:
            yield 1
        finally:
            story.append("closed")

    async def body() -> str:
        kept.append(asyncio.create_task(lingers()))
        stream = streams()
        kept.append(stream)
        await anext(stream)
        return "over"

    assert loop.run(body) == "over"
    assert goes_on.wait(WAIT)
    assert story == []
    loop.stop()
    assert story == ["cancelled", "closed"]


def test_a_leftover_that_exits_does_not_end_the_loop(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = []

    async def exits() -> None:
        raise SystemExit(4)

    async def body() -> str:
        tasks.append(asyncio.create_task(exits()))
        await asyncio.sleep(0)
        return "never seen by exits"

    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "goes on"

    with caplog.at_level(logging.ERROR):
        assert loop.run(body) == "never seen by exits"
    assert "ran out of event loop 'test-loop'" in caplog.text
    assert loop.run(stops) == "goes on"
    assert tasks[0].exception().code == 4


def test_a_leftover_that_fails_at_the_end_is_logged(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = []

    async def refuses() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("not like this")

    async def body() -> None:
        tasks.append(asyncio.create_task(refuses()))
        await asyncio.sleep(0)

    loop.run(body)
    loop.stop()
    assert "not like this" in caplog.text


def test_a_receiver_that_fails_is_logged(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def done(_: Any) -> None:
        raise SystemExit("from a receiver")

    loop.submit(echo, (1,), done)
    assert loop.run(echo, 2) == 2
    assert "from a receiver" in caplog.text


def test_the_loop_cannot_wait_for_itself(loop: event_loop.EventLoop) -> None:
    async def body() -> Any:
        return loop.run(echo, 1)

    value = loop.run(body)
    assert value.check(RuntimeError)
    assert "await it" in value.exception_str


def test_a_wait_may_be_interrupted_anywhere(loop: event_loop.EventLoop) -> None:
    """Whether the call was handed over or not: none is left behind, and the loop goes on."""

    async def body() -> None:
        begun.append(step)
        try:
            await asyncio.sleep(0.01)
        finally:
            ended.append(step)

    begun: list[int] = []
    ended: list[int] = []
    for step in itertools.count(1):
        if not interrupted(step, lambda: loop.run(body)):
            break
        assert ended == begun
        assert loop.run(echo, step) == step
    assert step > 10 and step in ended


def test_threads_that_bodies_use_end_with_the_loop(loop: event_loop.EventLoop) -> None:
    async def body() -> str:
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    name = loop.run(body)
    assert name in [thread.name for thread in threading.enumerate()]
    loop.stop()
    assert name not in [thread.name for thread in threading.enumerate()]


def test_the_loop_of_a_process_is_one() -> None:
    assert event_loop.of_process() is event_loop.of_process()
    assert event_loop.of_process().run(echo, 3) == 3
    event_loop.stop_all()
    assert not [t for t in threading.enumerate() if t.name == "wbengine-loop"]
    assert event_loop.of_process().run(echo, 4) == 4
    event_loop.stop_all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_has_a_loop_of_its_own() -> None:
    """Threads are not inherited."""
    before = event_loop.of_process()
    before.run(echo, 1)
    pid = os.fork()
    if pid == 0:
        try:
            mine = event_loop.of_process()
            os._exit(0 if mine is not before and mine.run(echo, 5) == 5 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    event_loop.stop_all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_that_a_body_makes_does_not_come_out_of_it(loop: event_loop.EventLoop) -> None:
    async def body() -> int:
        return os.fork()

    pid = loop.run(body)
    assert pid > 0
    assert os.waitpid(pid, 0)[1] == 0


SCRIPT = """
import asyncio, threading
from wbengine.concurrency import cancellation, event_loop
begun = threading.Event()
async def forever():
    begun.set()
    try:
        await asyncio.sleep(3600)
    finally:
        print("cancelled", flush=True)
loop = event_loop.EventLoop()
loop.submit(forever, (), lambda value: print(type(value).__name__, flush=True))
begun.wait()
"""


def test_a_loop_that_nobody_stopped_ends_with_the_interpreter() -> None:
    """Without a word on stderr, and without hanging."""
    found = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["cancelled", "Failure"]


# Limits and cancelling ---------------------------------------------------------------------------


async def naps(told: list[str]) -> str:
    """Three times, however often it is interrupted; it knows of nothing else that was cancelled."""
    for _ in range(3):
        try:
            async with contextlib.AsyncExitStack():
                await asyncio.sleep(0.05)
        except exceptions.SoftTimeLimitExceeded:
            told.append("interrupted")
    task = asyncio.current_task()
    assert task is not None
    told.append(str(getattr(task, "cancelling", int)()))
    return "rested"


def test_an_interruption_is_not_a_cancellation(loop: event_loop.EventLoop) -> None:
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told: list[str] = []
    loop.submit(naps, (told,), ended.put, limits.TimeLimit(0.02, WAIT))
    assert ended.get(timeout=WAIT) == "rested"
    assert told == ["interrupted", "0"]


async def swallows(told: list[str]) -> str:
    """What it awaits takes the cancellation for its own, and ends as if nothing had happened."""

    async def inner() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        told.append("inner ended")

    try:
        await asyncio.create_task(inner())
    except exceptions.SoftTimeLimitExceeded:
        told.append("interrupted")
    return "ended"


def test_an_interruption_that_is_swallowed_comes_nevertheless(loop: event_loop.EventLoop) -> None:
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told: list[str] = []
    loop.submit(swallows, (told,), ended.put, limits.TimeLimit(0.02, None))
    assert ended.get(timeout=WAIT) == "ended"
    assert told == ["inner ended", "interrupted"]


def test_a_loop_that_is_blocked_does_not_hold_up_who_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hard limit is told all the same, and stopping gives up on it."""
    monkeypatch.setattr(event_loop, "_GRACE", 0.1)
    made, door = event_loop.EventLoop("blocked-loop"), threading.Event()
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def blocks() -> None:
        door.wait()

    made.submit(blocks, (), ended.put, limits.TimeLimit(None, 0.02))
    assert ended.get(timeout=WAIT).check(exceptions.TimeLimitExceeded)
    made.stop()
    assert "event loop 'blocked-loop' is blocked by what was given up" in caplog.messages
    door.set()
    made.stop()
    assert ended.empty()


def test_cancelling_what_has_not_begun_and_what_has(loop: event_loop.EventLoop) -> None:
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    begun, door = threading.Event(), threading.Event()

    async def holds() -> str:
        begun.set()
        door.wait()
        return "held"

    first = loop.submit(holds, (), ended.put)
    begun.wait()
    second, third = (loop.submit(echo, (n,), ended.put) for n in (2, 3))
    for _ in range(2):
        second.cancellation.cancel()
        first.cancellation.cancel()
    assert ended.get(timeout=WAIT).check(exceptions.Cancelled)
    assert (first.cancellation.cancelled, third.cancellation.cancelled) == (True, False)
    door.set()
    assert [ended.get(timeout=WAIT) for _ in range(2)] == ["held", 3]
    assert ended.empty()


def test_what_goes_on_with_something_begins_to_hear_that_it_is_cancelled() -> None:
    """What was begun before, elsewhere, has to be told by somebody."""
    loop, held, ended = event_loop.EventLoop(), threading.Event(), queue.SimpleQueue[Any]()
    holding = threading.Event()
    seen: list[str] = []

    async def holds() -> None:
        holding.set()
        held.wait(WAIT)

    async def waits() -> None:
        seen.append("began")
        await asyncio.sleep(3600)

    def tell(recovered: bool, value: Any) -> None:
        ended.put((recovered, value))

    loop.submit(holds, (), lambda value: None)
    assert holding.wait(WAIT)  # else the others could begin before they are cancelled
    for recovered in (False, True):
        call = loop.submit(waits, (), functools.partial(tell, recovered), always_begins=recovered)
        call.cancellation.cancel()
    held.set()
    try:
        told = dict(ended.get(timeout=WAIT) for _ in range(2))  # in either order
    finally:
        loop.stop()
    assert told[False].check(exceptions.Cancelled) and told[True].check(asyncio.CancelledError)
    assert seen == ["began"]


def test_call_that_has_ended_is_not_kept_by_its_token(loop: event_loop.EventLoop) -> None:
    """However soon it ended: its function is gone without a collection of cycles."""
    ended = threading.Event()

    class HeldUp(cancellation.Cancellation):
        """Its thread is held up, for as long as the call may need to end."""

        def on_cancel(self, callback: Callable[[], object]) -> None:
            ended.wait(0.2)
            super().on_cancel(callback)

    async def end() -> None:
        pass

    seen = weakref.ref(end)
    gc.disable()
    try:
        loop.submit(end, (), lambda _: ended.set(), cancellation=HeldUp())
        del end
        assert ended.wait(WAIT)
        loop.stop()
        assert seen() is None
    finally:
        gc.enable()
