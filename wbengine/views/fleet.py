"""The workers of one exchange: who is there, what they do, and telling them what to do."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from wbengine import _names, exceptions, transports
from wbengine.engines.worker_based import executor
from wbengine.engines.worker_based.connections import connecting
from wbengine.engines.worker_based.discovery import snapshots
from wbengine.engines.worker_based.messages import commands, life, signing
from wbengine.engines.worker_based.worker_side import describing
from wbengine.keys import Keyring
from wbengine.views import formatting

__all__ = ["Fleet", "PingView", "WorkView", "WorkerView"]

LOG = logging.getLogger(__name__)

#: Seconds to wait for the first worker, and for another one after each, where nobody says how many
#: there are.
WAIT: Final = 2.0
_QUIET: Final = 0.4
#: Seconds between two looks at what is known.
_LOOK: Final = 0.02

#: Seconds after which a broker counts as away.
TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkView:
    """A task that a worker runs: the id of its request, its name, and since when (unix seconds)."""

    request: str
    task: str
    began: float | None

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker process, as it last described itself.

    Moments are unix seconds: `heard` on this host's clock, the others on the worker's; `working` is
    the sum of the runtimes of its tasks that ended.  `version` is that of wbengine, `ledger` the
    digest of its ledger; None where it does not tell.
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

    @property
    def identity(self) -> str | None:
        """Its name, if it has one of its own: TaskFlow's workers have none."""
        return self.name if self.host else None

    @classmethod
    def of(cls, seen: snapshots.WorkerSnapshot) -> WorkerView:
        """What an executor saw."""
        host, pid = describing.host_and_pid(seen.identity or "")
        itself = seen.life or life.Life()
        began = (*itself.since, *[0.0] * len(itself.current))
        return cls(
            name=seen.identity or f"taskflow:{', '.join(seen.topics)}",
            host=host,
            pid=pid,
            state=seen.state,
            topics=seen.topics,
            queues=seen.queues,
            tasks=seen.tasks,
            slots=seen.slots,
            running=len(itself.current) if seen.life is not None else seen.running,
            heard=seen.heard,
            born=itself.birth,
            version=seen.software,
            ledger=seen.ledger,
            succeeded=itself.successes,
            failed=itself.failures,
            working=itself.working,
            current=tuple(
                WorkView(request, task, began[number] or None)
                for number, (request, task) in enumerate(itself.current)
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        return {**formatting.as_dict(self), "working": round(self.working, 3)}


@dataclass(frozen=True, slots=True)
class PingView:
    """How long a worker took to answer, in seconds (None: it did not), and by how many seconds its
    clock is ahead of this host's, give or take half of that."""

    name: str
    seconds: float | None
    ahead: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return formatting.as_dict(self)


class _Looks:
    """The time of who looks again and again.  A long while between two looks does not count: this
    process, or all of its host, stood still, and nobody could be heard."""

    def __init__(self) -> None:
        self._seconds, self._before = 0.0, time.monotonic()

    def seconds(self) -> float:
        """How much has passed, by this look."""
        before, self._before = self._before, time.monotonic()
        self._seconds += min(self._before - before, 5 * _LOOK)
        return self._seconds


class Fleet:
    """Looks at an exchange, and tells its workers what to do.

    To be opened, and closed (or a context manager); it speaks with the broker meanwhile, in threads
    of its own, and leaves nothing there.  Thread-safe.  `timeout` is how many seconds a broker may
    take to be reached.

    :raises TypeError, ValueError: the broker's URL or an option is wrong.
    """

    def __init__(
        self,
        exchange: str = "default",
        *,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        timeout: float = TIMEOUT,
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
            ledger="none",
            keys=keys,
        )
        # Whether those who are there had time to say so.
        self._settled = False

    @property
    def signer(self) -> signing.Signer | None:
        """What signs what is said here, and verifies what is heard; None: nothing does."""
        return self._executor.signer

    @property
    def own_queue(self) -> str:
        """The queue of whoever looks."""
        return self._executor.uuid

    @property
    def is_blocked(self) -> bool:
        """Whether the broker says that it takes no messages: it is short of memory or disk."""
        return self._executor.is_blocked

    def open(self) -> Fleet:
        """Begin to look.  Idempotent.

        :raises TransportFailure: the broker cannot be reached in time, or used.
        """
        connecting.release(self.connect())  # an executor would try for longer
        self._executor.start()
        self._executor.finder.clocks = None  # nothing here depends on them
        return self

    def connect(self) -> Any:
        """A connection to the broker, for other questions; to be closed.

        :raises TransportFailure: the broker cannot be reached in time.
        """
        return connecting.reach_soon(self.target, max(1.0, self.timeout))

    def close(self) -> None:
        """Look no more.  Idempotent."""
        self._executor.stop()

    def __enter__(self) -> Fleet:
        return self.open()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # Looking.

    def workers(self, least: int = 0, wait: float = WAIT) -> list[WorkerView]:
        """Who is there, in the order of their names.

        The first call waits until nobody else answers, `wait` seconds at most; any call waits as
        long until there are `least`.
        """
        self._settle(least, wait)
        found = (WorkerView.of(seen) for seen in self._executor.workers())
        return sorted(found, key=lambda worker: worker.name)

    def _settle(self, least: int, wait: float) -> None:
        looks = _Looks()
        missing = bool(least or not self._settled)
        while missing:
            missing = self._executor.wait_for_workers(max(1, least), _LOOK) > 0
            missing = missing and looks.seconds() < wait
        known, changed = -1, 0.0
        while not self._settled:
            now, count = looks.seconds(), len(self._executor.workers())
            if count != known:
                known, changed = count, now
            self._settled = now >= wait or now - changed >= _QUIET
            if not self._settled:
                time.sleep(_LOOK)

    def find(self, names: Iterable[str], wait: float = WAIT) -> list[WorkerView]:
        """The workers of these names, each once: whole ones, their beginnings, or names of hosts.

        :raises NotFound: there is none of a name, or several are meant by it.
        """
        wanted = list(names)
        known = {worker.name: worker for worker in self.workers(wait=wait)}
        found = {_one(name, known.values()).name: None for name in wanted}
        return [known[name] for name in found]

    def ping(self, names: Collection[str] | None = None, timeout: float = 2.0) -> list[PingView]:
        """Ask workers (None: all) whether they are there, and wait so many seconds at most.

        :raises NotFound: as `find`.
        """
        asked = self.workers() if names is None else self.find(names)
        pongs = self._executor.ping([each.name for each in asked if each.host], timeout)
        return [_ping_of(each.name, pongs.get(each.name)) for each in asked]

    # Telling.

    def control(self, what: str, names: Collection[str] | None = None) -> list[WorkerView]:
        """Tell workers (None: all) to 'suspend', 'resume', 'drain' or 'stop'; who was told.

        Returns at once: see `obeyed`.  None of them is told anything when one cannot be found.

        :raises NotFound: as `find`.
        :raises ValueError: a worker cannot be told that.
        """
        commands.check_order(what)
        workers = self.workers() if names is None else self.find(names)
        # All: also those that were not heard of.
        for name in [None] if names is None else [worker.name for worker in workers]:
            self._executor.control(what, name)
        return workers

    def obeyed(
        self, what: str, workers: Sequence[WorkerView], timeout: float, *, to_the_end: bool = False
    ) -> list[str]:
        """Wait until they have done what they were told; the names of those who have not.

        One that was told to drain has when it takes nothing new; `to_the_end`: when it is gone.
        """
        until = time.monotonic() + timeout
        while True:
            states = {each.identity: each.state for each in self._executor.workers()}
            left = [
                worker.name
                for worker in workers
                if not _did(what, states.get(worker.name), to_the_end)
            ]
            if not left or time.monotonic() >= until:
                return left
            time.sleep(_LOOK)


def _did(what: str, state: str | None, to_the_end: bool) -> bool:
    if state is None or state == life.DEAD:
        return True
    if what == commands.STOP or to_the_end:
        return False
    if what == commands.RESUME:
        return state != life.SUSPENDED
    return state == life.DRAINING or (what == commands.SUSPEND and state == life.SUSPENDED)


def _one(name: str, known: Collection[WorkerView]) -> WorkerView:
    host = describing.host_name(name)
    by_name = [worker for worker in known if name and worker.name == name]
    by_host = [worker for worker in known if name and worker.host == host]
    by_beginning = [worker for worker in known if name and worker.name.startswith(name)]
    for found in (by_name, by_host, by_beginning):
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(worker.name for worker in found[:5])
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise exceptions.NotFound(f"{name!r} are several workers: {several}{more}")
    there = [worker.name for worker in known]
    who = f"{len(there)} others are there" if there else "nobody is there"
    raise exceptions.NotFound(f"there is no worker {name!r}{_names.hint(name, there)}; {who}")


def _ping_of(name: str, pong: Any) -> PingView:
    return PingView(name, None) if pong is None else PingView(name, pong.seconds, pong.ahead)
