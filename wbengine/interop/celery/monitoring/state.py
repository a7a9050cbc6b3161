"""What events tell of a cluster: which workers live, and what became of which task."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wbengine.interop.celery.monitoring import events

__all__ = ["MAX_TASKS", "MAX_WORKERS", "STATES", "State", "Task", "Worker"]

#: So many are remembered; of those heard of longest ago, nothing is known any more.
MAX_TASKS: Final = 10_000
MAX_WORKERS: Final = 5_000

#: The state of a task by what was last told of it.
STATES: Final[Mapping[str, str]] = {
    "sent": "PENDING",
    "received": "RECEIVED",
    "started": "STARTED",
    "succeeded": "SUCCESS",
    "failed": "FAILURE",
    "retried": "RETRY",
    "revoked": "REVOKED",
    "rejected": "REJECTED",
}

# Events may come out of order: what stands further left stays, whatever comes after it.  Unknown
# states stand between FAILURE and REVOKED.
_ORDER: Final = {
    state: place
    for place, state in enumerate(
        ("SUCCESS", "FAILURE", "", "REVOKED", "STARTED", "RECEIVED", "REJECTED", "RETRY", "PENDING")
    )
}
_ENDED: Final = frozenset(("SUCCESS", "FAILURE", "REVOKED"))

_TEXTS: Final = (
    *("name", "args", "kwargs", "eta", "expires", "root_id", "parent_id"),
    *("result", "exception", "queue", "exchange", "routing_key"),
)
#: So many characters of a text are kept; of a traceback, its end.
_LONGEST: Final = 1024
_LONGEST_TRACEBACK: Final = 8192
_MOST_TIMES: Final = 16

#: Seconds between two heartbeats of who did not say so yet.
_FREQ: Final = 60.0
_MOST_FREQ: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as it was when it was heard last; `heard` is then, in unix seconds of this host.

    None: it did not say.  `heard` is 0 when it has said goodbye.
    """

    hostname: str
    heard: float = 0.0
    pid: int | None = None
    clock: int | None = None
    freq: float = _FREQ
    active: int | None = None
    processed: int | None = None
    loadavg: tuple[float, ...] = ()
    sw_ident: str | None = None
    sw_ver: str | None = None
    sw_sys: str | None = None

    def is_alive(self, now: float | None = None) -> bool:
        """Whether it was heard of within twice the time between two heartbeats."""
        return (time.time() if now is None else now) < self.heard + 2 * self.freq


@dataclass(frozen=True, slots=True)
class Task:
    """A task as far as events have told; what none has told is None.

    `state` is one of `STATES`, or the action of an event that Celery does not know, in capitals.
    `times` has the unix seconds of the last event of each action (`received`, `started`, ...).
    `worker` is the node that told of it last, `client` the one that sent it.
    """

    uuid: str
    state: str = "PENDING"
    timestamp: float = 0.0
    clock: int | None = None
    worker: str | None = None
    client: str | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    name: str | None = None
    args: str | None = None
    kwargs: str | None = None
    retries: int | None = None
    eta: str | None = None
    expires: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    result: str | None = None
    runtime: float | None = None
    exception: str | None = None
    traceback: str | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing is to be expected of it any more."""
        return self.state in _ENDED


class State:
    """The picture that events make, in bounded memory.  Any thread may use it.

    What it gives out does not change: ask again for what is known by then.
    """

    def __init__(self, max_tasks: int = MAX_TASKS, max_workers: int = MAX_WORKERS) -> None:
        self._max_tasks = max_tasks
        self._max_workers = max_workers
        self._workers: OrderedDict[str, Worker] = OrderedDict()
        self._tasks: OrderedDict[str, Task] = OrderedDict()
        self._lock = threading.Lock()
        #: How many events it was told, by group.
        self.counts: Counter[str] = Counter()

    def on(self, event: events.Event, now: float | None = None) -> None:
        """An event came, at `now` in unix seconds.  Never raises, whatever is in it."""
        heard = time.time() if now is None else now
        with self._lock:
            if event.group == "worker":
                self.counts["worker"] += 1
                self._on_worker(event, heard)
            elif event.group == "task" and event.uuid is not None:
                self.counts["task"] += 1
                self._on_task(event, event.uuid, heard)
            else:
                self.counts["other"] += 1

    # What is known.

    def worker(self, hostname: str) -> Worker | None:
        """None: nothing is known of it (any more)."""
        with self._lock:
            return self._workers.get(hostname)

    def workers(self) -> list[Worker]:
        """All that are known, who was heard of last first."""
        with self._lock:
            return list(reversed(self._workers.values()))

    def alive(self, now: float | None = None) -> list[Worker]:
        """Those that live, as far as their heartbeats tell."""
        return [worker for worker in self.workers() if worker.is_alive(now)]

    def task(self, uuid: str) -> Task | None:
        """None: nothing is known of it (any more)."""
        with self._lock:
            return self._tasks.get(uuid)

    def tasks(
        self, *, name: str | None = None, worker: str | None = None, state: str | None = None
    ) -> list[Task]:
        """All that are known, or those of a name, of a worker, in a state; the last told first."""
        with self._lock:
            found = list(reversed(self._tasks.values()))
        return [
            task
            for task in found
            if (name is None or task.name == name)
            and (worker is None or task.worker == worker)
            and (state is None or task.state == state)
        ]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._workers.clear()
            self._tasks.clear()
            self.counts.clear()

    # Events.

    def _on_worker(self, event: events.Event, heard: float) -> None:
        known = self._workers.get(event.hostname)
        said = event.fields
        facts: dict[str, Any] = {name: _count(said.get(name)) for name in ("active", "processed")}
        facts |= {name: _text(said.get(name)) for name in ("sw_ident", "sw_ver", "sw_sys")}
        facts["freq"] = _seconds(said.get("freq"))
        facts["loadavg"] = _load(said.get("loadavg"))
        facts = {name: value for name, value in facts.items() if value is not None}
        worker = known or Worker(event.hostname)
        self._keep_worker(
            replace(
                worker,
                heard=0.0 if event.action == "offline" else max(heard, worker.heard),
                clock=event.clock,
                pid=event.pid,
                **facts,
            )
        )

    def _keep_worker(self, worker: Worker) -> None:
        self._workers[worker.hostname] = worker
        self._workers.move_to_end(worker.hostname)
        if len(self._workers) > self._max_workers:
            self._workers.popitem(last=False)

    def _on_task(self, event: events.Event, uuid: str, heard: float) -> None:
        action = event.action[:_LONGEST]
        task = self._tasks.get(uuid) or Task(uuid)
        state = STATES.get(action, action.upper())
        is_late = "RETRY" not in (state, task.state) and _place(state) > _place(task.state)
        told = _facts(event.fields)
        if not is_late:
            told |= {"state": state, "timestamp": event.timestamp, "clock": event.clock}
        if action == "sent":
            told["client"] = event.hostname
        else:
            told["worker"] = event.hostname
            known = self._workers.get(event.hostname) or Worker(event.hostname, pid=event.pid)
            self._keep_worker(replace(known, heard=max(heard, known.heard)))
        if action in task.times or len(task.times) < _MOST_TIMES:
            told["times"] = {**task.times, action: event.timestamp}
        self._tasks[uuid] = replace(task, **told)
        self._tasks.move_to_end(uuid)
        if len(self._tasks) > self._max_tasks:
            self._tasks.popitem(last=False)


def _place(state: str) -> int:
    return _ORDER.get(state, _ORDER[""])


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    """What an event tells of its task; what is null tells nothing."""
    found: dict[str, Any] = {name: _text(said[name]) for name in _TEXTS if name in said}
    if "retries" in said:
        found["retries"] = _count(said["retries"])
    if "runtime" in said:
        found["runtime"] = _seconds(said["runtime"], None)
    if "traceback" in said:
        found["traceback"] = _text(said["traceback"], None, -_LONGEST_TRACEBACK)
    return {name: value for name, value in found.items() if value is not None}


def _text(value: Any, first: int | None = _LONGEST, last: int | None = None) -> str | None:
    """A part of a text; other languages send what is no text."""
    if value is None:
        return None
    return (value if isinstance(value, str) else repr(value))[last:first]


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _seconds(value: Any, most: float | None = _MOST_FREQ) -> float | None:
    if not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return value if most is None else min(value, most)


def _load(value: Any) -> tuple[float, ...] | None:
    if type(value) is not list or not 1 <= len(value) <= 3:
        return None
    return tuple(value) if all(type(each) in (int, float) for each in value) else None
