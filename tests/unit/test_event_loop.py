"""Event loop in a separate thread: values, failures, background tasks, interrupts, and stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import python
from tests.support.workers import interrupted, until
from wbengine import exceptions, time_limits
from wbengine._concurrency import event_loop, interrupts
from wbengine._concurrency.call import Cancellation
from wbengine.types import failure as ft

WAIT = 60.0
SOFT, HARD = exceptions.SoftTimeLimitExceeded, exceptions.TimeLimitExceeded


@pytest.fixture
def loop() -> Iterator[event_loop.EventLoop]:
    made = event_loop.EventLoop("test-loop")
    yield made
    made.stop()
    assert "test-loop" not in [thread.name for thread in threading.enumerate()]


class Gate:
    """Gate that counts waiting coroutines and blocks them until it is opened."""

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


def submitted(
    loop: event_loop.EventLoop, function: Any, *args: Any, limit: Any = time_limits.UNLIMITED
) -> queue.SimpleQueue[Any]:
    """Submit a call. Return the queue that receives its value."""
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    loop.submit(function, args, ended.put, limit)
    return ended


@contextlib.contextmanager
def blocked(
    loop: event_loop.EventLoop, done: Callable[[Any], None] = lambda _: None
) -> Iterator[Any]:
    """Block the loop by a call. Calls and interrupts of the `with` block arrive in one step."""
    entered, door = threading.Event(), threading.Event()

    async def blocks() -> str:
        entered.set()
        assert door.wait(WAIT)
        return "held"

    call = loop.submit(blocks, (), done)
    assert entered.wait(WAIT)
    try:
        yield call
    finally:
        door.set()


async def echo(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def in_background(function: Callable[[], Any]) -> asyncio.Task[Any]:
    """Start a coroutine as a task that outlives the call. The caller must keep the task."""
    background = asyncio.create_task(function())
    await asyncio.sleep(0)
    return background


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_run_returns_value_or_failure(loop: event_loop.EventLoop) -> None:
    assert loop.run(echo, 7) == 7
    value = loop.run(fail, LookupError("gone"))
    assert isinstance(value, ft.Failure)
    assert value.check(LookupError)


def test_thread_is_started_by_first_call(loop: event_loop.EventLoop) -> None:
    before = set(threading.enumerate())
    loop.stop()
    assert loop.withdraw() == []
    assert set(threading.enumerate()) <= before
    loop.run(echo, 1)
    assert [thread.name for thread in {*threading.enumerate()} - before] == ["test-loop"]
    assert [loop.run(echo, n) for n in range(3)] == [0, 1, 2]
    assert [thread.name for thread in {*threading.enumerate()} - before] == ["test-loop"]


def test_run_of_raising_plain_function_returns_failure(loop: event_loop.EventLoop) -> None:
    def plain() -> Any:
        raise ValueError("at once")

    assert loop.run(plain).check(ValueError)


def test_coroutine_that_cancels_itself_still_returns_its_value(loop: event_loop.EventLoop) -> None:
    """`asyncio` considers such a task cancelled, regardless of its value."""

    async def body() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    assert loop.run(body) == "done"


def test_coroutine_cancelled_before_first_step_ends_as_cancelled(
    loop: event_loop.EventLoop,
) -> None:
    """Another coroutine cancels all tasks of the loop."""

    async def cancels() -> None:
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()

    with blocked(loop):
        submitted(loop, cancels)
        ended = submitted(loop, echo, 1)
    assert ended.get(timeout=WAIT).check(asyncio.CancelledError)


def test_stop_waits_for_running_calls_and_refuses_new_ones(loop: event_loop.EventLoop) -> None:
    gate = Gate()
    ended = submitted(loop, gate.wait)
    gate.full.wait()
    loop.stop(timeout=0)
    with pytest.raises(RuntimeError, match="stopped"):
        loop.submit(echo, (1,), ended.put)
    gate.opened = True
    loop.stop()
    loop.stop()
    assert ended.get_nowait() is None
    assert loop.run(echo, "again") == "again"  # the next call starts a new loop


def test_stop_with_cancel_cancels_running_calls(loop: event_loop.EventLoop) -> None:
    gate = Gate()
    ended = submitted(loop, gate.wait)
    gate.full.wait()
    loop.stop(cancel=True)
    assert ended.get_nowait().check(asyncio.CancelledError)


def test_repeated_stop_lets_cleanup_finish(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    ends, gate, story = threading.Event(), threading.Event(), list[str]()

    async def lingers() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ends.set()
            while not gate.is_set():
                await asyncio.sleep(0.001)
            story.append("cancelled")

    background = loop.run(in_background, lingers)
    loop.stop(timeout=0)
    assert ends.wait(30)
    loop.stop(timeout=0)
    gate.set()
    loop.stop()
    assert story == ["cancelled"] and background.cancelled()
    assert "an error left" not in caplog.text


def test_stop_called_from_done_callback_does_not_deadlock(loop: event_loop.EventLoop) -> None:
    stopped = threading.Event()

    def done(_: Any) -> None:
        loop.stop()
        stopped.set()

    loop.submit(echo, (1,), done)
    assert stopped.wait(WAIT)


def test_background_tasks_are_cancelled_when_loop_stops(loop: event_loop.EventLoop) -> None:
    """They run until then, even after the call that created them has ended."""
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


def test_system_exit_in_background_task_does_not_end_the_loop(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def exits() -> None:
        raise SystemExit(4)

    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "goes on"

    with caplog.at_level(logging.ERROR):
        background = loop.run(in_background, exits)
    assert "an error left event loop 'test-loop'" in caplog.text
    assert loop.run(stops) == "goes on"
    assert background.exception().code == 4


def test_background_task_failing_at_stop_is_logged(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuses() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("not like this")

    background = loop.run(in_background, refuses)
    loop.stop()
    assert background.done() and "not like this" in caplog.text


def test_error_of_done_callback_is_logged(
    loop: event_loop.EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def done(_: Any) -> None:
        raise SystemExit("from a receiver")

    loop.submit(echo, (1,), done)
    assert loop.run(echo, 2) == 2
    assert "from a receiver" in caplog.text


def test_run_inside_the_loop_fails(loop: event_loop.EventLoop) -> None:
    async def body() -> Any:
        return loop.run(echo, 1)

    value = loop.run(body)
    assert value.check(RuntimeError)
    assert "must await this call" in value.exception_str


def test_run_may_be_interrupted_at_any_step(loop: event_loop.EventLoop) -> None:
    """No call is left behind, whether it was submitted or not, and the loop still works."""

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


def test_helper_threads_end_with_the_loop(loop: event_loop.EventLoop) -> None:
    async def body() -> threading.Thread:
        return await asyncio.to_thread(threading.current_thread)

    helper = loop.run(body)
    assert helper.is_alive()
    loop.stop()
    assert not helper.is_alive()


def test_each_process_has_one_event_loop() -> None:
    assert event_loop.of_process() is event_loop.of_process()
    assert event_loop.of_process().run(echo, 3) == 3
    event_loop.stop_all()
    assert not [t for t in threading.enumerate() if t.name == "wbengine-loop"]
    assert event_loop.of_process().run(echo, 4) == 4
    event_loop.stop_all()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_gets_its_own_loop() -> None:
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
def test_fork_inside_coroutine_exits_in_the_child(loop: event_loop.EventLoop) -> None:
    async def body() -> int:
        return os.fork()

    pid = loop.run(body)
    assert pid > 0
    assert os.waitpid(pid, 0)[1] == 0


SCRIPT = """
import asyncio, threading
from wbengine._concurrency import call, event_loop
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


def test_unstopped_loop_ends_with_the_interpreter() -> None:
    """The process writes nothing to stderr and does not hang."""
    found = python.run(
        ["-X", "dev", "-W", "error", "-c", SCRIPT],
        capture_output=True,
        text=True,
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["cancelled", "Failure"]


# Limits and cancelling ---------------------------------------------------------------------------


async def naps(told: list[str]) -> str:
    """Sleep three times despite interruptions; append the number of pending cancellations."""
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


def test_soft_limit_does_not_count_as_task_cancellation(loop: event_loop.EventLoop) -> None:
    told: list[str] = []
    ended = submitted(loop, naps, told, limit=time_limits.TimeLimit(0.02, WAIT))
    assert ended.get(timeout=WAIT) == "rested"
    assert told == ["interrupted", "0"]


async def swallows(told: list[str]) -> str:
    """Await a task that suppresses the cancellation and ends normally."""

    async def inner() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        told.append("inner ended")

    try:
        await asyncio.create_task(inner())
    except exceptions.SoftTimeLimitExceeded:
        told.append("interrupted")
    return "ended"


def test_soft_limit_swallowed_by_inner_task_reaches_outer_task(loop: event_loop.EventLoop) -> None:
    told: list[str] = []
    ended = submitted(loop, swallows, told, limit=time_limits.TimeLimit(0.02, None))
    assert ended.get(timeout=WAIT) == "ended"
    assert told == ["inner ended", "interrupted"]


def test_hard_limit_ends_call_while_loop_is_blocked(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hard limit is reported, and `stop` does not wait for the blocked call."""
    monkeypatch.setattr(event_loop, "_GRACE_SECONDS", 0.1)
    made, door = event_loop.EventLoop("blocked-loop"), threading.Event()

    async def blocks() -> None:
        door.wait()

    ended = submitted(made, blocks, limit=time_limits.TimeLimit(None, 0.02))
    assert ended.get(timeout=WAIT).check(exceptions.TimeLimitExceeded)
    made.stop()
    assert "event loop 'blocked-loop' is blocked by an abandoned call" in caplog.messages
    door.set()
    made.stop()
    assert ended.empty()


def test_cancel_ends_unstarted_call_and_leaves_blocked_call_running(
    loop: event_loop.EventLoop,
) -> None:
    ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with blocked(loop, ended.put) as first:
        second, third = (loop.submit(echo, (n,), ended.put) for n in (2, 3))
        for _ in range(2):
            second.cancellation.cancel()
            first.cancellation.cancel()
        assert ended.get(timeout=WAIT).check(exceptions.Cancelled)
        assert (first.cancellation.cancelled, third.cancellation.cancelled) == (True, False)
    assert [ended.get(timeout=WAIT) for _ in range(2)] == ["held", 3]
    assert ended.empty()


def test_cancelled_call_with_always_begins_still_starts(loop: event_loop.EventLoop) -> None:
    """A call that was started elsewhere before must receive the cancellation."""
    ended, seen = queue.SimpleQueue[Any](), list[str]()

    async def waits() -> None:
        seen.append("began")
        await asyncio.sleep(3600)

    def tell(recovered: bool, value: Any) -> None:
        ended.put((recovered, value))

    with blocked(loop):  # otherwise the other calls could begin before they are cancelled
        for recovered in (False, True):
            done = functools.partial(tell, recovered)
            call = loop.submit(waits, (), done, always_begins=recovered)
            call.cancellation.cancel()
    told = dict(ended.get(timeout=WAIT) for _ in range(2))  # in either order
    assert told[False].check(exceptions.Cancelled) and told[True].check(asyncio.CancelledError)
    assert seen == ["began"]


def test_finished_call_is_not_referenced_by_its_cancellation(loop: event_loop.EventLoop) -> None:
    """Its function is freed without garbage collection, even if the call ended early."""
    ended = threading.Event()

    class HeldUp(Cancellation):
        """Token whose registration takes as long as the call may need to end."""

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


# Interrupts ---------------------------------------------------------------------------------------


class Waiter:
    """A thread that waits for a coroutine of a loop, in a call with an interrupt."""

    def __init__(self, loop: event_loop.EventLoop) -> None:
        self.loop = loop
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.value: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.interrupt: queue.SimpleQueue[interrupts.Interrupt] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        interrupt = interrupts.Interrupt()
        self.interrupt.put(interrupt)
        self.value.put(interrupt.call(self.loop.run, (self._body,)))

    async def _body(self) -> str:
        try:
            await asyncio.sleep(3600)
        except BaseException as error:
            self.told.put(type(error).__name__)
        return "cleaned up"


def check(waiter: Waiter, kind: type[BaseException]) -> None:
    """Check the value, and that the coroutine was interrupted at most once."""
    value = waiter.value.get(timeout=WAIT)
    waiter.thread.join(WAIT)
    waiter.loop.stop()
    told = [waiter.told.get_nowait() for _ in range(waiter.told.qsize())]
    if kind is SOFT:
        assert (value, told) == ("cleaned up", ["SoftTimeLimitExceeded"])
    else:
        assert isinstance(value, ft.Failure) and value.check(kind)
        assert told in ([], ["CancelledError"])
    assert waiter.value.empty()


@pytest.mark.parametrize("kind", [SOFT, HARD])
def test_interrupt_before_first_step_ends_the_call(
    loop: event_loop.EventLoop, kind: type[Any]
) -> None:
    """The loop receives the call and its interruption in one step."""
    with blocked(loop):
        waiter = Waiter(loop)
        interrupt = waiter.interrupt.get(timeout=WAIT)
        # The call is submitted, but the loop has not read it yet.
        until(lambda: interrupt.redirected)
        interrupt.deliver(kind)
    check(waiter, kind)


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_interrupt_and_cancel_together_are_both_delivered_in_order(
    loop: event_loop.EventLoop, cancelled_first: bool
) -> None:
    """The coroutine receives both, one after the other, in the order of arrival."""
    waits = threading.Event()
    told: list[str] = []
    value: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def body() -> int:
        for seconds in (3600, 1, 0):
            try:
                waits.set()
                await asyncio.sleep(seconds)
            except BaseException as error:
                told.append(type(error).__name__)
        return getattr(asyncio.current_task(), "cancelling", lambda: 1)()

    ticket = loop.submit(body, (), value.put, time_limits.TimeLimit(soft=3600))
    assert waits.wait(WAIT)
    with blocked(loop):
        assert loop._loop is not None
        if cancelled_first:
            ticket.cancellation.cancel()
        loop._loop.call_soon_threadsafe(ticket.interrupt, SOFT())
        ticket.cancellation.cancel()
    assert value.get(timeout=WAIT) == 1, "an interruption counts as no cancellation"
    heard = ["SoftTimeLimitExceeded", "CancelledError"]
    assert told == (heard[::-1] if cancelled_first else heard)
