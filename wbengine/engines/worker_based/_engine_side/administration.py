"""Inspect and control the workers and requests of an executor, for programs and commands.

Any thread may call it. Replies to pings arrive in the consumer's thread.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wbengine._concurrency import conditions
from wbengine._concurrency.clocks import SYSTEM
from wbengine._introspection import object_names
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._discovery import finder as finders
from wbengine.engines.worker_based._discovery import snapshots
from wbengine.engines.worker_based._engine_side.locked_tracker import LockedTracker
from wbengine.engines.worker_based._messages import notices, worker_commands
from wbengine.engines.worker_based._requests.tracker import Observer
from wbengine.engines.worker_based.proxy import Proxy


@dataclass(frozen=True, slots=True)
class Pong:
    """The reply of a worker to a ping.

    `seconds` is the response time. `ahead` is the difference of the worker's clock to the clock of
    this host, with an error of at most half of `seconds`; None if unknown.
    """

    seconds: float
    ahead: float | None = None


class _Round:
    __slots__ = ("answers", "since", "wall", "workers")

    def __init__(self, workers: Iterable[str]) -> None:
        self.workers = frozenset(workers)
        self.answers: dict[str, Pong] = {}
        self.since = SYSTEM.monotonic()
        self.wall = SYSTEM.time()


class Pings:
    """Pings that wait for replies. Thread-safe.

    If no round is open, a received message costs one comparison.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = conditions.Condition(self._lock)
        self._rounds: tuple[_Round, ...] = ()

    def begin(self, workers: Iterable[str]) -> _Round:
        """Start a round. Call this immediately before you ping the workers."""
        ping_round = _Round(workers)
        with self._lock:
            self._rounds = (*self._rounds, ping_round)
        return ping_round

    def wait(self, round: _Round, timeout: float) -> dict[str, Pong]:
        """Return the replies that arrive within `timeout` seconds, and close the round."""
        self._changed.wait_for(lambda: len(round.answers) == len(round.workers), timeout)
        with self._lock:
            self._rounds = tuple(each for each in self._rounds if each is not round)
            return dict(round.answers)

    def record_reply(self, headers: Any) -> None:
        reply = notices.worker_and_time(headers) if self._rounds else None
        if reply is None:
            return
        worker, sent_at = reply
        with self._lock:
            for each in self._rounds:
                if worker in each.workers and worker not in each.answers:
                    each.answers[worker] = _pong(each, sent_at)
                    self._changed.notify_all()


def _pong(round: _Round, reported_time: Any) -> Pong:
    seconds = SYSTEM.monotonic() - round.since
    if type(reported_time) not in (int, float):
        return Pong(seconds)
    return Pong(seconds, reported_time - (round.wall + seconds / 2))


class Administration(abc.ABC):
    """The methods of an executor that inspect or control its workers and requests."""

    _requests: LockedTracker
    _proxy: Proxy
    _finder: finders.ProxyWorkerFinder
    #: Receives the replies to pings.
    _pings: Pings
    _interop: str | None

    @abc.abstractmethod
    def start(self) -> None:
        """Start the executor, if it is not started."""

    def add_observer(self, observer: Observer) -> None:
        """Add an observer of published and completed requests. Idempotent."""
        tracker = self._requests.tracker
        with self._requests.lock:
            if observer not in tracker.observers:
                tracker.observers = (*tracker.observers, observer)

    def remove_observer(self, observer: Observer) -> None:
        """Remove an observer. Idempotent."""
        tracker = self._requests.tracker
        with self._requests.lock:
            tracker.observers = tuple(each for each in tracker.observers if each is not observer)

    @property
    def ignored(self) -> dict[str, int]:
        """Number of dropped replies by reason.

        Reasons: late (the request had ended), duplicate, reordered (RUNNING after a later reply),
        old_epoch, unknown, unexpected, unreadable, misaddressed, untrusted (any message without a
        valid signature).
        """
        with self._requests.lock:
            return {**self._requests.tracker.ignored, **self._proxy.untrusted}

    def unserved(self) -> dict[str, int]:
        """Return the number of requests that no known worker can run, by class of the task."""
        with self._requests.lock:
            return self._requests.tracker.unserved()

    def workers(self) -> list[snapshots.WorkerSnapshot]:
        """Return the known worker processes, in the order of their first announcements."""
        return snapshots.of_workers(self._finder.workers(), SYSTEM.monotonic(), SYSTEM.time())

    def wait_for_workers(self, workers: int = 1, timeout: float | None = None) -> int:
        """Start if necessary, and wait until `workers` processes are known.

        :returns: the number of processes that are missing after `timeout` seconds.
        :raises ValueError: if `workers` is less than 1.
        :raises TypeError: if `workers` is not an integer, or `timeout` is not a number.
        """
        finders.check_wait(workers, timeout)
        self.start()
        return self._finder.wait_for_workers(workers, timeout)

    def ping(self, workers: Iterable[str] | None = None, timeout: float = 2.0) -> dict[str, Pong]:
        """Ping workers (by their identities; None: all known workers). Start if necessary.

        :returns: the replies that arrived within `timeout` seconds.
        :raises ValueError: if an identity is not valid, or the workers are TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(
                f"interop={self._interop!r} does not support queries to individual workers"
            )
        self.start()
        identities = (each.identity for each in self.workers()) if workers is None else workers
        names = [
            object_names.check_label("worker", each) for each in identities if each is not None
        ]
        ping_round = self._pings.begin(names)
        for name in names:
            query = notices.Query(self._finder.uuid).to_message(name)
            self._proxy.send(OutgoingMessage(query), first=True, defer=True)
        return self._pings.wait(ping_round, timeout)

    def requests(self, state: str | None = None) -> list[snapshots.RequestSnapshot]:
        """Return the requests of all engines that use this executor, oldest first.

        The states are 'deferred' (not due yet, or without a known worker), 'queued', 'started',
        'finished' and 'failed'. Only the newest finished and failed requests are kept.

        :param state: return only the requests in this state.
        :raises ValueError: if the state is unknown.
        """
        snapshots.check_state(state)
        wall = SYSTEM.time() - SYSTEM.monotonic()
        tracker = self._requests.tracker
        with self._requests.lock:
            descriptions = [*tracker.ended, *(e.described() for e in tracker.requests.unfinished())]
        return [
            dataclasses.replace(each, submitted=wall + (each.submitted or 0.0))
            for each in itertools.starmap(snapshots.RequestSnapshot, descriptions)
            if state in (None, each.state)
        ]

    def control(self, what: str, worker: str | None = None) -> None:
        """Send 'suspend', 'resume', 'drain' or 'stop' to one worker (by its identity), or to all.

        This does not wait for the workers. Workers that are not running never receive it.

        :raises ValueError: if the command or the identity is not valid, or the workers are
            TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(
                f"interop={self._interop!r} does not support the command {what} for workers"
            )
        message = worker_commands.control(worker_commands.check_action(what), worker)
        self.start()
        self._proxy.send(OutgoingMessage(message), first=True, defer=True)
