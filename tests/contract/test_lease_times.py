"""Leases count from the time of the request.

A late reply does not extend a lease, because the store counts from its own write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.waiting import until
from wbengine import engines, exceptions, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import base, models
from wbengine.testing import FaultyBackend

_R = TypeVar("_R")

#: Duration of leases in seconds.
LEASE = 1.0
#: Options with which the start of a task requires no write.
LATE = {"lease": LEASE, "durability": "end", "on_busy": "wait"}


class Slow(FaultyBackend):
    """Backend that delays the reply to one method until it is released."""

    def __init__(self, inner: base.Backend, method: str) -> None:
        super().__init__(inner)
        self._method = method
        self.asked = 0
        #: The method was executed once.
        self.done = threading.Event()
        self.answers = threading.Event()
        #: Later calls wait for this event before they are executed.
        self.goes_on = threading.Event()

    def write(self, method: str, do: Callable[[], _R]) -> _R:
        if method != self._method:
            return super().write(method, do)
        self.asked += 1
        if self.asked == 2:
            assert self.goes_on.wait(60)
        result = super().write(method, do)
        self.done.set()
        if self.asked == 1:
            assert self.answers.wait(60)
        return result


class TwoEngines:
    """Two engines of one flow with two tasks; the first one receives late replies."""

    def __init__(self, backend: base.Backend, method: str) -> None:
        self.slow = Slow(backend, method)
        self._backend = backend
        book, flow = models.LogBook("b"), models.FlowDetail("f")
        book.add(flow)
        with backend.get_connection() as connection:
            connection.save_logbook(book)
        self._uuid = flow.uuid
        #: Started tasks of the first engine.
        self.began: list[str] = []
        self.may_end = threading.Event()
        #: Owner of the lease when the first task started.
        self.holders: list[Any] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _engine(self, backend: base.Backend, *bodies: Callable[[], Any]) -> Any:
        with self._backend.get_connection() as connection:
            detail = connection.get_flow_details(self._uuid)
        flow = linear_flow.Flow("f")
        for name, body in zip("ab", bodies, strict=True):
            flow.add(task.FunctorTask(body, name))
        return engines.load(flow, flow_detail=detail, backend=backend, **LATE)

    def start(self) -> None:
        """Start the first engine."""
        self._thread.start()

    def _run(self) -> None:
        def first() -> None:
            self.holders.append(self.held())
            self.began.append("a")
            assert self.may_end.wait(60)

        try:
            self._engine(self.slow, first, lambda: self.began.append("b")).run()
        except BaseException as error:
            self.error = error

    def held(self) -> Any:
        """Return the stored lease of the flow."""
        with self._backend.get_connection() as connection:
            return connection.get_lease(self._uuid)

    def take_over(self) -> None:
        """Run the flow in the other engine as soon as the lease of the first has expired."""
        other = self._engine(self._backend, lambda: None, lambda: None)
        other.run(deadline=60)
        assert other.storage.get_flow_state() == states.SUCCESS

    def end(self) -> None:
        self._thread.join()


def test_late_reply_to_acquire_lease_renews_lease_before_first_task(
    backend: base.Backend,
) -> None:
    """The lease expired before its reply arrived, so it is renewed before the first task starts."""
    life = TwoEngines(backend, "acquire_lease")
    life.start()
    assert life.slow.done.wait(60)
    until(lambda: life.held() is None)
    life.slow.answers.set()
    life.may_end.set()
    life.end()
    assert life.error is None and life.began == ["a", "b"]
    assert life.holders[0] is not None


def test_late_reply_to_renew_lease_starts_no_further_task(backend: base.Backend) -> None:
    """A running task is not interrupted. The next one does not start, even though the renewal that
    would report the loss is delayed.
    """
    life = TwoEngines(backend, "renew_lease")
    life.start()
    assert life.slow.done.wait(60)
    life.take_over()
    life.slow.answers.set()
    until(lambda: life.slow.asked >= 2)
    life.may_end.set()
    life.end()
    life.slow.goes_on.set()
    assert life.began == ["a"]
    assert isinstance(life.error, exceptions.LeaseLost)
