"""The workers of one exchange: views of them and commands to them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wbengine import exceptions, transports
from wbengine._introspection import object_names
from wbengine._security.keys import Keyring
from wbengine.engines.worker_based import executor
from wbengine.engines.worker_based._connections import connecting
from wbengine.engines.worker_based._discovery import snapshots
from wbengine.engines.worker_based._messages import signing, worker_commands
from wbengine.engines.worker_based._messages import worker_life as life
from wbengine.engines.worker_based._worker_side import describing
from wbengine.views import _formatting

__all__ = ["Fleet", "PingView", "WorkView", "WorkerView"]

#: Maximum number of seconds to wait for the first worker.
WAIT_SECONDS: Final = 2.0
#: Seconds without a new worker after which the list is considered complete.
_QUIET_SECONDS: Final = 0.4
_POLL_SECONDS: Final = 0.02

#: Seconds after which a broker is considered unavailable.
TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkView:
    """A running task: id of its request, name, and start in Unix time."""

    request: str
    task: str
    began: float | None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker process, according to its last report.

    Times are Unix time: `heard` on this host's clock, all others on the worker's clock.

    :ivar working: total runtime of completed tasks in seconds.
    :ivar version: version of wbengine; None if the worker does not report it.
    :ivar code: version of the user's code; None if the worker does not report it.
    :ivar ledger: digest of the worker's ledger; None if the worker does not report it.
    """

    name: str
    host: str | None
    pid: int | None
    state: str
    topics: tuple[str, ...]
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    running: int
    heard: float
    born: float | None = None
    version: str | None = None
    ledger: str | None = None
    succeeded: int = 0
    failed: int = 0
    working: float = 0.0
    current: tuple[WorkView, ...] = ()
    code: str | None = None

    @property
    def identity(self) -> str | None:
        """The name of the worker; None for TaskFlow's workers, which have no names."""
        return self.name if self.host else None

    @classmethod
    def of(cls, snapshot: snapshots.WorkerSnapshot) -> WorkerView:
        """Return the view of a snapshot of an executor."""
        host, pid = describing.host_and_pid(snapshot.identity or "")
        worker_life = snapshot.life or life.Life()
        start_times = (*worker_life.since, *[0.0] * len(worker_life.current))
        return cls(
            name=snapshot.identity or f"taskflow:{', '.join(snapshot.topics)}",
            host=host,
            pid=pid,
            state=snapshot.state,
            topics=snapshot.topics,
            queues=snapshot.queues,
            tasks=snapshot.tasks,
            slots=snapshot.slots,
            running=len(worker_life.current) if snapshot.life is not None else snapshot.running,
            heard=snapshot.heard,
            born=worker_life.birth,
            version=snapshot.software,
            ledger=snapshot.ledger,
            succeeded=worker_life.successes,
            failed=worker_life.failures,
            working=worker_life.working,
            current=tuple(
                WorkView(request, task, start_times[number] or None)
                for number, (request, task) in enumerate(worker_life.current)
            ),
            code=snapshot.code,
        )

    def to_dict(self) -> dict[str, Any]:
        return {**_formatting.as_dict(self), "working": round(self.working, 3)}


@dataclass(frozen=True, slots=True)
class PingView:
    """The reply of a worker to a ping.

    :ivar seconds: response time; None if the worker did not reply.
    :ivar ahead: difference of the worker's clock to the clock of this host, with an error of at
        most half of `seconds`; None if unknown.
    """

    name: str
    seconds: float | None
    ahead: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return _formatting.as_dict(self)


class _PollTimer:
    """Stopwatch of a polling loop.

    The interval between two polls has a maximum, so that time in which this process or its host was
    suspended is not counted.
    """

    def __init__(self) -> None:
        self._seconds, self._before = 0.0, time.monotonic()

    def elapsed(self) -> float:
        before, self._before = self._before, time.monotonic()
        self._seconds += min(self._before - before, 5 * _POLL_SECONDS)
        return self._seconds


class Fleet:
    """Client that lists the workers of an exchange and sends commands to them.

    Open it before use and close it after use, or use it as a context manager. While open, it
    communicates with the broker in separate threads. It leaves nothing on the broker. Thread-safe.

    :param timeout: seconds in which the broker must be reached.
    :raises TypeError, ValueError: if the URL of the broker or an option is invalid.
    """

    def __init__(
        self,
        exchange: str = "default",
        *,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        keys: str | Path | Keyring | None = None,
    ) -> None:
        self.exchange = exchange
        self.timeout = timeout
        self.target = transports.resolve(url, transport, transport_options, exchange=exchange)
        self.target.check()
        self._executor = executor.WorkerTaskExecutor(
            str(uuid.uuid4()),
            exchange,
            url=url,
            transport=transport,
            transport_options=transport_options,
            opens_ledger=False,
            keys=keys,
        )
        # Whether all workers had time to report.
        self._settled = False

    @property
    def signer(self) -> signing.Signer | None:
        """The signer of sent and received messages; None if messages are not signed."""
        return self._executor.signer

    @property
    def own_queue(self) -> str:
        """The queue of this object on the broker."""
        return self._executor.uuid

    @property
    def is_blocked(self) -> bool:
        """Whether the broker accepts no messages because of a memory or disk alarm."""
        return self._executor.is_blocked

    def open(self) -> Fleet:
        """Connect, and start to collect the reports of workers. Idempotent.

        :raises TransportFailure: if the broker cannot be reached in time or cannot be used.
        """
        connecting.release(self.connect())  # Fails in time; an executor would try for longer.
        self._executor.start()
        self._executor.finder.clocks = None  # Disables the check of the workers' clocks.
        return self

    def connect(self) -> Any:
        """Return a new connection to the broker. The caller closes it.

        :raises TransportFailure: if the broker cannot be reached in time.
        """
        return connecting.reach_soon(self.target, max(1.0, self.timeout))

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self._executor.stop()

    def __enter__(self) -> Fleet:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def workers(self, least: int = 0, wait: float = WAIT_SECONDS) -> list[WorkerView]:
        """Return the known workers, ordered by name.

        Each call waits until `least` workers are known. The first call also waits until no new
        worker reports. The wait takes at most `wait` seconds.
        """
        self._wait_for_workers(least, wait)
        views = (WorkerView.of(snapshot) for snapshot in self._executor.workers())
        return sorted(views, key=lambda worker: worker.name)

    def _wait_for_workers(self, least: int, wait: float) -> None:
        timer = _PollTimer()
        is_missing = bool(least or not self._settled)
        while is_missing:
            is_missing = self._executor.wait_for_workers(max(1, least), _POLL_SECONDS) > 0
            is_missing = is_missing and timer.elapsed() < wait
        last_count, changed_at = -1, 0.0
        while not self._settled:
            now, count = timer.elapsed(), len(self._executor.workers())
            if count != last_count:
                last_count, changed_at = count, now
            self._settled = now >= wait or now - changed_at >= _QUIET_SECONDS
            if not self._settled:
                time.sleep(_POLL_SECONDS)

    def find(self, names: Iterable[str], wait: float = WAIT_SECONDS) -> list[WorkerView]:
        """Return the workers with these names, without duplicates.

        :param names: full names, beginnings of names, or names of hosts.
        :raises NotFound: if a name matches no worker or several.
        """
        workers = self.workers(wait=wait)
        return list(dict.fromkeys(_worker_named(name, workers) for name in names))

    def ping(self, names: Collection[str] | None = None, timeout: float = 2.0) -> list[PingView]:
        """Ping workers (None: all known workers), and wait `timeout` seconds at most.

        :raises NotFound: if a name matches no worker or several.
        """
        workers = self.workers() if names is None else self.find(names)
        pongs = self._executor.ping([worker.name for worker in workers if worker.host], timeout)
        return [_ping_view(worker.name, pongs.get(worker.name)) for worker in workers]

    def control(self, command: str, names: Collection[str] | None = None) -> list[WorkerView]:
        """Send 'suspend', 'resume', 'drain' or 'stop' to workers (None: all).

        This does not wait for the workers; see `wait_until_obeyed`. If a name is not found, no
        worker receives the command.

        :returns: the known workers to which the command was sent.
        :raises NotFound: if a name matches no worker or several.
        :raises ValueError: if the command is unknown.
        """
        worker_commands.check_action(command)
        workers = self.workers() if names is None else self.find(names)
        # None addresses all workers of the exchange, also unknown ones.
        for name in [None] if names is None else [worker.name for worker in workers]:
            self._executor.control(command, name)
        return workers

    def wait_until_obeyed(
        self,
        command: str,
        workers: Sequence[WorkerView],
        timeout: float,
        *,
        until_stopped: bool = False,
    ) -> list[str]:
        """Wait until workers have obeyed a command.

        A drained worker has obeyed when it accepts no new tasks or, with `until_stopped`, when it
        has stopped.

        :param timeout: maximum number of seconds to wait.
        :returns: the names of the workers that have not obeyed.
        """
        deadline = time.monotonic() + timeout
        while True:
            states = {snapshot.identity: snapshot.state for snapshot in self._executor.workers()}
            pending_names = [
                worker.name
                for worker in workers
                if not _has_obeyed(command, states.get(worker.name), until_stopped)
            ]
            if not pending_names or time.monotonic() >= deadline:
                return pending_names
            time.sleep(_POLL_SECONDS)


def _has_obeyed(command: str, state: str | None, until_stopped: bool) -> bool:
    if state is None or state == life.DEAD:
        return True
    if command == worker_commands.STOP or until_stopped:
        return False
    if command == worker_commands.RESUME:
        return state != life.SUSPENDED
    return state == life.DRAINING or (
        command == worker_commands.SUSPEND and state == life.SUSPENDED
    )


def _worker_named(name: str, workers: Collection[WorkerView]) -> WorkerView:
    host = describing.host_name(name)
    by_name = [worker for worker in workers if worker.name == name]
    by_host = [worker for worker in workers if worker.host == host]
    by_beginning = [worker for worker in workers if worker.name.startswith(name)]
    for matches in (by_name, by_host, by_beginning) if name else ():
        if len(matches) == 1:
            return matches[0]
        if matches:
            shown_names = ", ".join(worker.name for worker in matches[:5])
            rest = f" and {len(matches) - 5} more" if len(matches) > 5 else ""
            raise exceptions.NotFound(f"worker name {name!r} is ambiguous: {shown_names}{rest}")
    known_names = [worker.name for worker in workers]
    answered = f"{len(known_names)} workers answered" if known_names else "no worker answered"
    raise exceptions.NotFound(
        f"unknown worker {name!r}{object_names.hint(name, known_names)}; {answered}"
    )


def _ping_view(name: str, pong: Any) -> PingView:
    return PingView(name, None) if pong is None else PingView(name, pong.seconds, pong.ahead)
