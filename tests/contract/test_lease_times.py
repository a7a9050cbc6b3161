"""A lease counts from the moment at which it was asked for: an answer that comes late does not make
it longer, for the store has counted since.
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

#: Seconds that leases last here.
LEASE = 1.0
#: What a store may be asked without a write to go ahead of what starts.
LATE = {"lease": LEASE, "durability": "end", "on_busy": "wait"}


class Slow(FaultyBackend):
    """Does what one method asks, and holds the answer back until it is let go."""

    def __init__(self, inner: base.Backend, method: str) -> None:
        super().__init__(inner)
        self._method = method
        self.asked = 0
        #: It was done once.
        self.done = threading.Event()
        self.answers = threading.Event()
        #: What is asked after the first time waits for this before it is done.
        self.goes_on = threading.Event()

    def write(self, method: str, do: Callable[[], _R]) -> _R:
        if method != self._method:
            return super().write(method, do)
        self.asked += 1
        if self.asked == 2:
            assert self.goes_on.wait(60)
        found = super().write(method, do)
        self.done.set()
        if self.asked == 1:
            assert self.answers.wait(60)
        return found


class Life:
    """Two engines for one flow of two tasks: the first one hears late from the store."""

    def __init__(self, backend: base.Backend, method: str) -> None:
        self.slow = Slow(backend, method)
        self._backend = backend
        book, flow = models.LogBook("b"), models.FlowDetail("f")
        book.add(flow)
        with backend.get_connection() as connection:
            connection.save_logbook(book)
        self._uuid = flow.uuid
        #: Which tasks of the first engine began.
        self.began: list[str] = []
        self.may_end = threading.Event()
        #: Who had the lease when its first task began.
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
        """The first engine."""
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
        """The lease of the flow, as the store tells it."""
        with self._backend.get_connection() as connection:
            return connection.get_lease(self._uuid)

    def take_over(self) -> None:
        """The other engine runs the flow to its end, as soon as the lease of the first is over."""
        other = self._engine(self._backend, lambda: None, lambda: None)
        other.run(deadline=60)
        assert other.storage.get_flow_state() == states.SUCCESS

    def end(self) -> None:
        self._thread.join()


def test_late_answer_to_a_lease_that_was_taken_has_it_asked_for_again(
    backend: base.Backend,
) -> None:
    """It was over before it was told of: the first task begins when it is renewed."""
    life = Life(backend, "take_lease")
    life.start()
    assert life.slow.done.wait(60)
    until(lambda: life.held() is None)
    life.slow.answers.set()
    life.may_end.set()
    life.end()
    assert life.error is None and life.began == ["a", "b"]
    assert life.holders[0] is not None


def test_late_answer_to_a_renewal_lets_nothing_more_begin(backend: base.Backend) -> None:
    """What runs cannot be helped; the next task does not begin, although a next renewal, which
    would tell that the flow is taken, does not come through.
    """
    life = Life(backend, "renew_lease")
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
