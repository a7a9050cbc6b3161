"""An in-process broker for one test, with fault injection."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

from wbengine._concurrency import timers
from wbengine.testing import _faults
from wbengine.transports._memory import memory_broker

__all__ = ["Broker"]


class Broker:
    """An in-process broker at `url`, with a unique `exchange`.

    Methods that inject faults have these parameters:

    :param kind: REQUEST (to workers), RESPONSE (from workers) or NOTIFY (heartbeats and queries).
    :param atom: only requests and replies of this atom; for a `Map` all items, or one:
        `'resize[3]'`.
    :param state: only replies with this state: RUNNING, EVENT, SUCCESS or FAILURE.
    :param times: the number of messages (None: all); the result counts them.
    """

    def __init__(self) -> None:
        #: Name of the exchange.
        self.exchange = f"test-{uuid.uuid4().hex[:12]}"
        #: URL for engines and workers.
        self.url = f"memory://{self.exchange}"
        # Keeps the broker and its messages while no client is connected.
        self._broker = memory_broker.MemoryBroker(self.exchange)
        self._redelivery = threading.local()
        self._gate = _faults.Gate(self._deliver)
        self._timers: list[timers.Timer] = []
        #: Kills workers that have it among their `observers`.
        self.saboteur = _faults.Saboteur()
        self._broker.hub.gate = self._intercept

    @property
    def options(self) -> dict[str, str]:
        """Options for engines and workers that use this broker."""
        return {"url": self.url, "exchange": self.exchange}

    def drop(
        self, kind: str, *, atom: str | None = None, state: str | None = None, times: int | None = 1
    ) -> _faults.Fault:
        """Lose messages."""
        fault = _faults.Fault(f"drop {kind}", times)
        return self._gate.add(fault, kind, atom, state, lambda deliver: True)

    def double(
        self, kind: str, *, atom: str | None = None, state: str | None = None, times: int | None = 1
    ) -> _faults.Fault:
        """Deliver messages twice."""

        def act(deliver: Callable[[], None]) -> bool:
            deliver()
            return False

        return self._gate.add(_faults.Fault(f"double {kind}", times), kind, atom, state, act)

    def delay(
        self,
        kind: str,
        seconds: float,
        *,
        atom: str | None = None,
        state: str | None = None,
        times: int | None = 1,
    ) -> _faults.Fault:
        """Deliver messages `seconds` later. Later messages can overtake them."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"seconds must be a number from 0, got {seconds!r}")

        def act(deliver: Callable[[], None]) -> bool:
            self._timers.append(timers.of_process().after(seconds, deliver))
            return True

        return self._gate.add(_faults.Fault(f"delay {kind}", times), kind, atom, state, act)

    def kill_worker_at(
        self, atom: str, *, when: str = "start", times: int | None = 1
    ) -> _faults.Fault:
        """Kill the worker that receives this atom, like `kill -9`.

        :param when: `'start'`: before the body of the task; `'end'`: after it, before a reply is
            sent.

        Workers that are not created by the fixture `wbe_worker` need `saboteur` as an observer.
        """
        return self.saboteur.plan(_faults.Fault(f"kill a worker at {atom}", times), atom, when)

    def close(self) -> None:
        """Delete all messages and end all faults. Idempotent."""
        self.saboteur.release()
        self._broker.hub.gate = None
        for timer in self._timers:
            timers.of_process().cancel(timer)
        self._broker.close()

    def _intercept(self, queue: str, priority: int, data: bytes) -> bool:
        return not getattr(self._redelivery, "now", False) and self._gate(queue, priority, data)

    def _deliver(self, queue: str, priority: int, data: bytes) -> None:
        self._redelivery.now = True
        try:
            self._broker.put(queue, priority, data)
        finally:
            self._redelivery.now = False
