"""Whoever waits for a coroutine is interrupted, or given up: it is told, however early that is."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import alarms, exceptions, limits, loops
from wbengine.types import failure as ft

WAIT = 60.0
SOFT, HARD = exceptions.SoftTimeLimitExceeded, exceptions.TimeLimitExceeded


class Slow(loops.Loop):
    """Stands still, if it is told so, right before a call is submitted."""

    def __init__(self) -> None:
        super().__init__("slow-loop")
        self.arrived, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def put(self, ticket: loops.Ticket) -> None:
        self.arrived.set()
        assert self.go_on.wait(WAIT)
        super().put(ticket)


class Waiter:
    """A thread that waits for a coroutine of a loop, in a call with an alarm."""

    def __init__(self, loop: loops.Loop) -> None:
        self.loop = loop
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.value: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.alarm: queue.SimpleQueue[alarms.Alarm] = queue.SimpleQueue()
        self.waits = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        alarm = alarms.make()
        self.alarm.put(alarm)
        self.value.put(alarms.call(alarm, self.loop.run, (self._body,)))

    async def _body(self) -> str:
        try:
            self.waits.set()
            await asyncio.sleep(3600)
        except BaseException as error:
            self.told.put(type(error).__name__)
        return "cleaned up"


@pytest.fixture
def loop() -> Iterator[Slow]:
    made = Slow()
    assert made.run(asyncio.sleep, 0) is None  # its thread is there
    made.arrived.clear()
    yield made
    made.stop()


def check(waiter: Waiter, kind: type[BaseException]) -> None:
    """It hears once where it waits first; one that is given up may not even begin."""
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
def test_before_it_is_submitted(loop: Slow, kind: type[Any]) -> None:
    loop.go_on.clear()
    waiter = Waiter(loop)
    assert loop.arrived.wait(WAIT)
    waiter.alarm.get(timeout=WAIT).ring(kind)
    loop.go_on.set()
    check(waiter, kind)


@pytest.mark.parametrize("kind", [SOFT, HARD])
def test_before_its_first_step(loop: Slow, kind: type[Any]) -> None:
    """The loop hears of the call and of its interruption in one breath."""
    entered, door = threading.Event(), threading.Event()

    async def blocks() -> None:
        entered.set()
        assert door.wait(WAIT)

    loop.submit(blocks, (), lambda value: None)
    assert entered.wait(WAIT)
    loop.arrived.clear()
    waiter = Waiter(loop)
    alarm = waiter.alarm.get(timeout=WAIT)
    assert loop.arrived.wait(WAIT)
    while not loop._queue:  # it is submitted, and the loop does not know it yet
        threading.Event().wait(0.001)
    alarm.ring(kind)
    door.set()
    check(waiter, kind)


@pytest.mark.parametrize("kind", [SOFT, HARD])
def test_while_its_loop_is_made(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever rings found no loop, and was halted until the call waited."""
    halted, go_on = threading.Event(), threading.Event()
    expect = loops.Ticket.expect

    def halt(ticket: loops.Ticket, error: BaseException) -> bool:
        halted.set()
        assert go_on.wait(WAIT)
        return expect(ticket, error)

    monkeypatch.setattr(loops.Ticket, "expect", halt)
    loop = Slow()
    loop.go_on.clear()
    waiter = Waiter(loop)
    alarm = waiter.alarm.get(timeout=WAIT)
    assert loop.arrived.wait(WAIT)
    ringing = threading.Thread(target=alarm.ring, args=(kind,))
    ringing.start()
    assert halted.wait(WAIT)
    loop.go_on.set()
    assert waiter.waits.wait(WAIT)
    go_on.set()
    ringing.join()
    value = waiter.value.get(timeout=WAIT)
    assert value == "cleaned up" if kind is SOFT else value.check(kind)
    assert waiter.told.get(timeout=WAIT) == kind.__name__
    waiter.thread.join(WAIT)
    loop.stop()
    assert waiter.told.empty()


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_cancelled_in_the_same_breath(loop: Slow, cancelled_first: bool) -> None:
    """It hears of both, one after the other."""
    waits, entered, door = threading.Event(), threading.Event(), threading.Event()
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

    async def blocks() -> None:
        entered.set()
        assert door.wait(WAIT)

    ticket = loop.submit(body, (), value.put, limits.TimeLimit(soft=3600))
    assert waits.wait(WAIT)
    loop.submit(blocks, (), lambda value: None)
    assert entered.wait(WAIT)
    inner = loop._loop
    assert inner is not None
    if cancelled_first:
        loop.cancel(ticket)
    for _ in range(2):
        inner.call_soon_threadsafe(ticket.interrupt, SOFT())
    loop.cancel(ticket)
    door.set()
    assert value.get(timeout=WAIT) == 1, "an interruption counts as no cancellation"
    assert told == ["SoftTimeLimitExceeded", "CancelledError"]
