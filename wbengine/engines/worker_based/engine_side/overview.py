"""What an executor shows of itself, and how workers are told what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import _names
from wbengine._clock import SYSTEM
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.connections.parcels import Parcel
from wbengine.engines.worker_based.discovery import outlook, snapshots
from wbengine.engines.worker_based.engine_side import clerk
from wbengine.engines.worker_based.messages import controlling, pinging
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import Observer

__all__ = ["Overview"]

_STATES: Final[Mapping[str, snapshots.State]] = {
    pr.WAITING: snapshots.DEFERRED,
    pr.PENDING: snapshots.QUEUED,
    pr.RUNNING: snapshots.STARTED,
}


class Overview(clerk.Clerk):
    """An executor that can be looked at.  Costs nothing unless it is."""

    def __init__(self) -> None:
        super().__init__()
        self._pings = pinging.Pings()

    @property
    def system(self) -> str:
        """What carries its messages, such as `rabbitmq`."""
        return self._proxy.target.system

    @property
    def tells_times(self) -> bool:
        """Whether its workers tell when a task began and ended: TaskFlow's do not."""
        return self._interop is None

    def add_observer(self, observer: Observer) -> None:
        """Tell `observer` what is sent and what ends, from now on; idempotent."""
        with self._lock:
            if observer not in self._tracker.observers:
                self._tracker.observers = (*self._tracker.observers, observer)

    def remove_observer(self, observer: Observer) -> None:
        """Undo `add_observer`; idempotent."""
        with self._lock:
            left = tuple(each for each in self._tracker.observers if each is not observer)
            self._tracker.observers = left

    def _tell_publishing(self, parcels: Iterable[Parcel]) -> None:
        for observer in self._tracker.observers:
            for parcel in parcels:
                if not parcel.withdrawn:
                    observer.publishing(parcel.matter.tracked, parcel.envelope)

    @property
    def ignored(self) -> dict[str, int]:
        """Number of answers that were dropped, by reason: late (it had ended), duplicate, reordered
        (RUNNING after what follows it), old_epoch, unknown, unexpected, unreadable.
        """
        with self._lock:
            return dict(self._tracker.ignored)

    def workers(self) -> list[snapshots.WorkerSnapshot]:
        """The worker processes that are known, in the order in which they were first heard of."""
        return snapshots.of_workers(self._finder.workers(), SYSTEM.monotonic(), SYSTEM.time())

    def wait_for_workers(self, workers: int = 1, timeout: float | None = None) -> int:
        """Start if need be, and wait until `workers` processes are known.

        Returns how many are still missing when `timeout` seconds are over.

        :raises ValueError: fewer than one worker is asked for.
        :raises TypeError: `workers` is no whole number, or `timeout` no number.
        """
        outlook.check_wait(workers, timeout)
        self.start()
        return self._finder.wait_for_workers(workers, timeout)

    def ping(
        self, workers: Iterable[str] | None = None, timeout: float = 2.0
    ) -> dict[str, pinging.Pong]:
        """Ask workers (by their identities; None: all that are known) whether they are there.

        What those answered who did so within `timeout` seconds.  Start if need be.

        :raises ValueError: there can be no such identity; or the workers are TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(f"workers cannot be asked one by one: interop={self._interop!r}")
        self.start()
        known = (each.identity for each in self.workers()) if workers is None else workers
        names = [_names.check_label("worker", each) for each in known if each is not None]
        headers = {env.WBE_VERSION: env.VERSION}
        asked = self._pings.begin(names)
        for name in names:
            question = env.Envelope(pr.NOTIFY, {}, name, None, self._finder.uuid, dict(headers))
            self._proxy.send(Parcel(question), first=True)
        return self._pings.wait(asked, timeout)

    def requests(self, state: str | None = None) -> list[snapshots.RequestSnapshot]:
        """The requests of all engines that use this executor: those in one state, or all.

        They are 'deferred' (not due yet, or nobody known could run them), 'queued', 'started',
        'finished' or 'failed'; of the last two the newest only.  Oldest first.

        :raises ValueError: there is no such state.
        """
        snapshots.check_state(state)
        wall = SYSTEM.time() - SYSTEM.monotonic()
        with self._lock:
            live = [(tracked, tracked.described()) for tracked in self._tracker.unfinished()]
            ended = list(self._tracker.ended)
        found = [_ended(described, wall) for described in ended]
        found += [_live(tracked, described, wall) for tracked, described in live]
        return [each for each in found if state is None or each.state == state]

    def control(self, what: str, worker: str | None = None) -> None:
        """Tell one worker (by its identity), or all, to 'suspend', 'resume', 'drain' or 'stop'.

        Returns at once; whoever is not there does not hear of it.

        :raises ValueError: there is no such order, or no such identity can be; or the workers are
            TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(f"workers cannot be told to {what}: interop={self._interop!r}")
        order = controlling.order(controlling.check(what), worker)
        self.start()
        self._proxy.send(Parcel(order), first=True)


def _live(
    tracked: TrackedRequest, described: tuple[Any, ...], wall: float
) -> snapshots.RequestSnapshot:
    return _snapshot(described, wall, _STATES.get(tracked.state, snapshots.QUEUED))


def _ended(told: tuple[Any, ...], wall: float) -> snapshots.RequestSnapshot:
    *described, error, started, ended = told
    state: snapshots.State = snapshots.FINISHED if error is None else snapshots.FAILED
    more = {"started": started, "ended": ended, "error": error and error.partition("\n")[0][:500]}
    return _snapshot(tuple(described), wall, state, **more)


def _snapshot(
    described: tuple[Any, ...], wall: float, state: snapshots.State, **more: Any
) -> snapshots.RequestSnapshot:
    id, task, task_cls, action, attempt, epoch, atom, flow, queue, worker, priority, born = (
        described
    )
    return snapshots.RequestSnapshot(
        id, task, task_cls, action, attempt, epoch, state, atom, flow,
        queue, worker, priority, submitted=wall + born, **more,
    )  # fmt: skip
