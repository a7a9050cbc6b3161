"""What a worker tells Celery's monitors: events of its tasks, and that it lives."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import kombu

from wbengine import version
from wbengine.interop.celery import brokers
from wbengine.interop.celery import clock as clocks
from wbengine.interop.celery.monitoring import events
from wbengine.transports import reasons

__all__ = ["PERIOD", "EventPublisher"]

LOG = logging.getLogger(__name__)

#: Seconds between two heartbeats.
PERIOD: Final = 2.0

#: Seconds that an event waits for others to go out with.
LINGER: Final = 0.05

#: So many events are in one message at most.
BATCH: Final = 100

#: So many are kept for a broker that is away, or slow.
LIMIT: Final = 10_000

#: Seconds before a broken connection is replaced: what broke it may last.
_PAUSE: Final = 0.5

#: What tells who sends the heartbeats.
SOFTWARE: Final[Mapping[str, str]] = {
    "sw_ident": "py-wbengine",
    "sw_ver": version.version_string(),
    "sw_sys": platform.system(),
}

#: (type, clock, timestamp, fields)
_Told = tuple[str, int, float, dict[str, Any]]


class EventPublisher:
    """Tell the monitors at the broker `url` what happens on the node `hostname`.

    `tell` may be called by any thread, and never waits: a thread of its own publishes, over a
    connection of its own, and connects again for as long as it takes.  What a broker that is away
    does not get stays in a buffer of `limit` events; the oldest go first.  Events may get lost, and
    after a broken connection some may come twice.

    `worker-online` is told whenever it has connected, `worker-heartbeat` every `period` seconds,
    and `worker-offline` by `stop`.  They say what `facts` does: `active`, `processed`.  Events of
    tasks wait for `LINGER` seconds and go out together, as lists.

    :raises ValueError: the URL or an option makes no sense.
    """

    def __init__(
        self,
        url: str,
        hostname: str,
        clock: clocks.Clock | None = None,
        *,
        facts: Callable[[], Mapping[str, Any]] | None = None,
        period: float = PERIOD,
        limit: int = LIMIT,
        exchange: str = events.EXCHANGE,
        transport_options: Mapping[str, Any] | None = None,
        tasks: bool = True,
    ) -> None:
        self.hostname = hostname
        self.clock = clock or clocks.Clock()
        #: What heartbeats say of the worker: `active` and `processed`.
        self.facts: Callable[[], Mapping[str, Any]] = facts or dict
        #: How many events were `sent`, `dropped` because the buffer was full, and `refused` because
        #: JSON cannot hold them.
        self.counts: Counter[str] = Counter()
        self._broker = brokers.Broker(url, transport_options)
        self._exchange = exchange
        self._period = period
        self._limit = limit
        self._tasks = tasks
        self._changed = threading.Condition()
        self._told: deque[_Told] = deque()
        # What was taken out and is not published yet.
        self._taken: list[_Told] = []
        self._asleep = False
        self._away = False
        self._beat_at = 0.0
        # As of the last heartbeat: it changes twice a year.
        self._utcoffset = events.utcoffset()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # For any thread.

    @property
    def enabled(self) -> bool:
        """Whether events of tasks are told."""
        return self._tasks

    def enable(self) -> bool:
        """Tell events of tasks from now on; False: it did already."""
        before, self._tasks = self._tasks, True
        return not before

    def disable(self) -> bool:
        """Tell no events of tasks any more, but go on with the worker's; False: it told none."""
        before, self._tasks = self._tasks, False
        return before

    def tell(self, type: str, /, **fields: Any) -> None:
        """An event happened just now.  Never raises, never waits for a broker."""
        if not self._tasks and type.startswith("task-"):
            return
        with self._changed:
            told = self._told
            if len(told) >= self._limit:
                told.popleft()
                self.counts["dropped"] += 1
            told.append((type, self.clock.forward(), time.time(), fields))
            if self._asleep:
                self._asleep = False
                self._changed.notify()

    def beat(self) -> None:
        """Tell at once that it lives: somebody asked."""
        with self._changed:
            self._beat_at = 0.0
            self._changed.notify()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread = threading.Thread(target=self._run, name="wbengine-events", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """Tell what is left, say goodbye, and end; for `timeout` seconds at most.  Idempotent."""
        with self._changed:
            self._stopping.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    # Its thread.

    def _run(self) -> None:
        while True:
            try:
                with self._broker.reach(self._stopping, on_failure=self._fail) as connection:
                    self._serve(_Channel(connection, self._exchange))
                return
            except Exception as error:  # whatever it is, it is the connection's end
                if self._stopping.is_set():  # what is left will not be told
                    return
                self._fail(reasons.explain(error))
                self._stopping.wait(_PAUSE)

    def _fail(self, why: str) -> None:
        """Once for each time that the broker is away."""
        if not self._away and not self._stopping.is_set():
            LOG.warning("events cannot be told to %s: %s", self._broker.shown, why)
        self._away = True

    def _serve(self, channel: _Channel) -> None:
        """Until told to stop, and all is told."""
        self._publish_beat(channel, "worker-online")
        self._away = False
        while True:
            with self._changed:
                stopping = self._rest()
                if not self._taken:
                    self._taken = [self._told.popleft() for _ in range(self._batch())]
                more = bool(self._told)
            self._publish_taken(channel)
            if stopping and not more:
                self._publish_beat(channel, "worker-offline")
                return
            if time.monotonic() >= self._beat_at:
                channel.check()
                self._publish_beat(channel, "worker-heartbeat")

    def _rest(self) -> bool:
        """Wait until there is something to do; whether that is to end."""
        changed = self._changed
        if not self._told and not self._taken:
            self._asleep = True
            changed.wait_for(lambda: not self._asleep or self._is_due(), self._patience())
            self._asleep = False
            if self._told:  # perhaps others come soon
                changed.wait_for(self._is_due, LINGER)
        return self._stopping.is_set()

    def _is_due(self) -> bool:
        return self._stopping.is_set() or time.monotonic() >= self._beat_at

    def _patience(self) -> float:
        return max(0.0, self._beat_at - time.monotonic())

    def _batch(self) -> int:
        return min(BATCH, len(self._told))

    def _publish_taken(self, channel: _Channel) -> None:
        """What fails is left to be published again, over another connection."""
        while self._taken:
            count = 1
            if self._taken[0][0].startswith("task-"):
                count = next(
                    (n for n, told in enumerate(self._taken) if not told[0].startswith("task-")),
                    len(self._taken),
                )
            self._publish(channel, [self._event(*told) for told in self._taken[:count]])
            del self._taken[:count]

    def _publish_beat(self, channel: _Channel, kind: str) -> None:
        self._beat_at = time.monotonic() + self._period
        self._utcoffset = events.utcoffset()
        fields = {
            "freq": self._period,
            "active": 0,
            "processed": 0,
            "loadavg": _load(),
            **self._facts(),
            **SOFTWARE,
        }
        self._publish(channel, [self._event(kind, self.clock.forward(), time.time(), fields)])

    def _facts(self) -> Mapping[str, Any]:
        try:
            return self.facts()
        except Exception:
            LOG.exception("what a heartbeat says of the worker is not known")
            return {}

    def _event(self, kind: str, number: int, when: float, fields: dict[str, Any]) -> events.Event:
        return events.Event(kind, self.hostname, number, when, self._utcoffset, os.getpid(), fields)

    def _publish(self, channel: _Channel, told: list[events.Event]) -> None:
        try:
            wire, key = events.encode(told if len(told) > 1 else told[0])
        except (TypeError, ValueError) as error:
            if len(told) > 1:  # the others are not to suffer
                for event in told:
                    self._publish(channel, [event])
                return
            self.counts["refused"] += 1
            LOG.warning("a %.100s event cannot be told: %s", told[0].type, error)
            return
        channel.publish(wire, key)
        self.counts["sent"] += len(told)


class _Channel:
    """Where events go, over one connection."""

    def __init__(self, connection: Any, exchange: str) -> None:
        self._connection = connection
        channel = connection.default_channel
        kind = events.exchange_type(connection.transport.driver_type)
        self._exchange = kombu.Exchange(exchange, type=kind, channel=channel)
        self._exchange.declare()
        self._producer = kombu.Producer(channel, auto_declare=False)

    def publish(self, wire: Any, key: str) -> None:
        self._producer.publish(
            wire.body, exchange=self._exchange, routing_key=key, **wire.arguments()
        )

    def check(self) -> None:
        """See that the broker is there, where it says so by itself.

        :raises Exception: it is not.
        """
        if self._connection.supports_heartbeats:
            with contextlib.suppress(TimeoutError):
                self._connection.drain_events(timeout=0.001)
            self._connection.heartbeat_check()


def _load() -> list[float]:
    try:
        return [round(each, 2) for each in os.getloadavg()]
    except OSError:
        return [0.0, 0.0, 0.0]
