"""Interruption and cancellation of threads that wait for a coroutine."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.workers import until
from wbengine import exceptions, time_limits
from wbengine._concurrency import event_loop, interrupts
from wbengine.types import failure as ft

WAIT = 60.0
SOFT, HARD = exceptions.SoftTimeLimitExceeded, exceptions.TimeLimitExceeded


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


@pytest.fixture
def loop() -> Iterator[event_loop.EventLoop]:
    made = event_loop.EventLoop()
    yield made
    made.stop()


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
    entered, door = threading.Event(), threading.Event()

    async def blocks() -> None:
        entered.set()
        assert door.wait(WAIT)

    loop.submit(blocks, (), lambda value: None)
    assert entered.wait(WAIT)
    waiter = Waiter(loop)
    interrupt = waiter.interrupt.get(timeout=WAIT)
    # The call is submitted, but the loop has not read it yet.
    until(lambda: interrupt.redirected)
    interrupt.deliver(kind)
    door.set()
    check(waiter, kind)


@pytest.mark.parametrize("cancelled_first", [False, True])
def test_interrupt_and_cancel_together_are_both_delivered_in_order(
    loop: event_loop.EventLoop, cancelled_first: bool
) -> None:
    """The coroutine receives both, one after the other, in the order of arrival."""
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

    ticket = loop.submit(body, (), value.put, time_limits.TimeLimit(soft=3600))
    assert waits.wait(WAIT)
    loop.submit(blocks, (), lambda value: None)
    assert entered.wait(WAIT)
    inner = loop._loop
    assert inner is not None
    if cancelled_first:
        ticket.cancellation.cancel()
    inner.call_soon_threadsafe(ticket.interrupt, SOFT())
    ticket.cancellation.cancel()
    door.set()
    assert value.get(timeout=WAIT) == 1, "an interruption counts as no cancellation"
    heard = ["SoftTimeLimitExceeded", "CancelledError"]
    assert told == (heard[::-1] if cancelled_first else heard)
