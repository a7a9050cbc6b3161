"""A broker of one test: in this process, with faults."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from wbengine.concurrency import timers
from wbengine.testing import faults
from wbengine.transports import memory

__all__ = ["Broker"]


class Broker:
    """A broker in this process that nobody else uses, at `url`, with an `exchange` of its own.

    Messages are of the kinds REQUEST (to workers), RESPONSE (from them) and NOTIFY (beats, and who
    is there).  Of requests and answers those of one `atom` can be chosen (of all items of a `Map`,
    or of one: `'resize[3]'`), of answers those with a `state`: RUNNING, EVENT, SUCCESS, FAILURE.
    Each fault happens so many `times` (None: always) and counts them.
    """

    def __init__(self) -> None:
        self.exchange = f"test-{uuid.uuid4().hex[:12]}"
        self.url = f"memory://{self.exchange}"
        # Keeps the broker, and what is in it, while nobody else is connected.
        self._broker = memory.MemoryBroker(self.exchange)
        self._passing = threading.local()
        self._gate = faults.Gate(self._let_in)
        self._timers: list[timers.Timer] = []
        #: What kills workers, as one of their `observers`.
        self.saboteur = faults.Saboteur()
        self._broker.hub.gate = self._pass

    @property
    def options(self) -> dict[str, str]:
        """What engines and workers have to be told to meet here."""
        return {"url": self.url, "exchange": self.exchange}

    def drop(
        self, kind: str, *, atom: str | None = None, state: str | None = None, times: int | None = 1
    ) -> faults.Fault:
        """Lose messages."""
        fault = faults.Fault(f"drop {kind}", times)
        return self._gate.add(fault, kind, atom, state, lambda again: True)

    def double(
        self, kind: str, *, atom: str | None = None, state: str | None = None, times: int | None = 1
    ) -> faults.Fault:
        """Deliver messages twice."""

        def act(again: Callable[[], None]) -> bool:
            again()
            return False

        return self._gate.add(faults.Fault(f"double {kind}", times), kind, atom, state, act)

    def delay(
        self,
        kind: str,
        seconds: float,
        *,
        atom: str | None = None,
        state: str | None = None,
        times: int | None = 1,
    ) -> faults.Fault:
        """Deliver messages `seconds` later; others pass them."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"seconds is {seconds!r}: it must be a number from 0")

        def act(again: Callable[[], None]) -> bool:
            self._timers.append(timers.of_process().after(seconds, again))
            return True

        return self._gate.add(faults.Fault(f"delay {kind}", times), kind, atom, state, act)

    def kill_worker_at(
        self, atom: str, *, when: str = "start", times: int | None = 1
    ) -> faults.Fault:
        """Kill the worker that takes this atom, as kill -9 would: before its body runs, or with
        `when='end'` after that, before anybody is told.

        Workers of the fixture `wbe_worker`; others have to have `saboteur` as their observer.
        """
        return self.saboteur.plan(faults.Fault(f"kill a worker at {atom}", times), atom, when)

    def close(self) -> None:
        """Forget what is in it; nothing goes wrong any more.  Idempotent."""
        self.saboteur.release()
        self._broker.hub.gate = None
        for timer in self._timers:
            timers.of_process().cancel(timer)
        self._broker.close()

    def _pass(self, queue: str, priority: int, data: bytes) -> bool:
        return not getattr(self._passing, "now", False) and self._gate(queue, priority, data)

    def _let_in(self, queue: str, priority: int, data: bytes) -> None:
        self._passing.now = True
        try:
            self._broker.put(queue, priority, data)
        finally:
            self._passing.now = False
