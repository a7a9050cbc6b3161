"""Known workers by identity, by queue and by task class."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine._introspection import object_names
from wbengine.engines.worker_based._messages import notices
from wbengine.engines.worker_based._messages import worker_life as lives

LOG = logging.getLogger(__name__)

#: Maximum number of workers, and approximate maximum memory for the names of tasks and requests.
MAX_WORKERS: Final = 20_000
MAX_NAME_BYTES: Final = 64 * 1024 * 1024

#: Estimated memory for the name of a task in addition to its characters, and for a running task.
_BYTES_PER_NAME: Final = 64
_BYTES_PER_RUNNING_TASK: Final = 256

#: Minimum interval of two separate reports, as a fraction of a heartbeat period.
_MIN_GAP_PERIODS: Final = 0.5

#: Maximum heartbeat period of a worker.
MAX_PERIOD_SECONDS: Final = 60.0

#: States in which a worker accepts no requests, even with free slots.
_RESTING_STATES: Final = (lives.STARTED, lives.SUSPENDED, lives.DRAINING)

_NEVER: Final = (-math.inf, -math.inf)

#: Represents the identity of a peer that does not send one.
NO_IDENTITY: Final = object()


def anonymous_key(topic: str) -> str:
    return f"taskflow:{topic}"  # An identity contains no colon.


def task_name(task: Any) -> str:
    return task if isinstance(task, str) else object_names.dotted(task)


@dataclass(slots=True, eq=False, repr=False)
class TopicWorker:
    """One worker process on one topic, according to its last report.

    `queue` is the queue of its requests, `running` the number of running tasks. A worker that
    `rests` accepts no requests. Plain peers of TaskFlow have no identity: all workers of a topic
    share one entry, and the topic is the queue.

    `last_seen` is the time of the last report, or the start of a new grace period;
    `last_reply` that of the last message about a request. `last_reports` are the times of
    the last two reports, `last_free_reports` those of the last two reports with a free slot,
    without a report in between that had none.
    """

    topic: str
    tasks: Sequence[Any]
    identity: Any = NO_IDENTITY
    queue: str = field(init=False)
    key: tuple[Any, str] = field(init=False)
    slots: int = field(init=False, default=1)
    running: int = field(init=False, default=0)
    rests: bool = field(init=False, default=False)
    period: float | None = field(init=False, default=None)
    last_seen: float = field(init=False, default=0.0)
    last_reply: float = field(init=False, default=-math.inf)
    joined: float = field(init=False, default=math.inf)
    life: lives.Life | None = field(init=False, default=None)
    #: Version of wbengine of the worker, and digest of its ledger.
    software: str | None = field(init=False, default=None)
    code: str | None = field(init=False, default=None)
    ledger: str | None = field(init=False, default=None)
    last_reports: tuple[float, float] = field(init=False, default=_NEVER)
    last_free_reports: tuple[float, float] = field(init=False, default=_NEVER)
    announced_end: bool = field(init=False, default=False)
    #: Approximate size of the names that only this worker announced.
    name_bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.tasks = tuple(map(task_name, self.tasks))
        self.key, self.queue = _key(self.identity, self.topic), self.topic

    def report(self, now: float, period: float, free: bool) -> None:
        apart = _MIN_GAP_PERIODS * period
        if now - self.last_reports[1] >= apart:
            self.last_reports = self.last_reports[1], now
        if not free:
            self.last_free_reports = _NEVER
        elif now - self.last_free_reports[1] >= apart:
            self.last_free_reports = self.last_free_reports[1], now

    @property
    def free(self) -> int:
        return max(0, self.slots - self.running)

    def performs(self, task: Any) -> bool:
        return task_name(task) in self.tasks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicWorker):
            return NotImplemented
        if NO_IDENTITY in (self.identity, other.identity):
            return self.topic == other.topic and set(self.tasks) == set(other.tasks)
        return self.identity == other.identity and self.topic == other.topic

    def __hash__(self) -> int:
        return hash(self.topic)

    def __repr__(self) -> str:
        identity = "*" if self.identity is NO_IDENTITY else self.identity
        return f"<TopicWorker {identity} on {self.topic!r}, {len(self.tasks)} tasks>"


class Queue:
    """The workers of one queue, and their sums.

    Queries cost O(1), except that `report_rounds` and `free_slot_rounds` read all members once
    after each report.
    """

    __slots__ = ("_idle", "_since", "busy", "identified_count", "members", "resting", "slots")

    def __init__(self) -> None:
        self.members: dict[tuple[Any, str], TopicWorker] = {}
        self.slots = 0
        self.busy = 0
        #: The slots of members that accept no requests.
        self.resting = 0
        self.identified_count = 0
        # Members with a free slot, ordered by the time of their last report.
        self._idle: dict[tuple[Any, str], TopicWorker] = {}
        # The latest times since which all members have reported twice, or once; then the same
        # times for reports with free slots. None: not computed since the last change.
        self._since: tuple[float, float, float, float] | None = (*_NEVER, *_NEVER)

    @property
    def rests(self) -> bool:
        """Whether there are members, and all of them accept no requests."""
        return 0 < self.slots == self.resting

    def free_of(self, since: float) -> int:
        """Return the free slots of the members that have reported since `since`.

        Cost: O(members with free slots that have not reported).
        """
        free = self.slots - self.busy
        for worker in self._idle.values():
            if worker.last_seen >= since:
                break
            free -= worker.free
        return free

    def report_rounds(self, since: float) -> int:
        """Return how many times (at most 2) every member has reported since `since`."""
        twice, once, _, _ = self._since or self._compute_since()
        return (since < twice) + (since < once)

    def free_slot_rounds(self, since: float) -> int:
        """Return how many times (at most 2) every member has reported a free slot since `since`.

        A later report without a free slot resets the count.
        """
        if len(self._idle) < len(self.members):
            return 0
        _, _, twice, once = self._since or self._compute_since()
        return (since < twice) + (since < once)

    def _compute_since(self) -> tuple[float, float, float, float]:
        since = self._since = (
            min(max(worker.joined, worker.last_reports[0]) for worker in self.members.values()),
            min(max(worker.joined, worker.last_reports[1]) for worker in self.members.values()),
            min(worker.last_free_reports[0] for worker in self.members.values()),
            min(worker.last_free_reports[1] for worker in self.members.values()),
        )
        return since

    def count(self, worker: TopicWorker, sign: int) -> None:
        """Add a member to the sums (`sign` +1), or subtract it (-1)."""
        self._since = None
        busy = min(worker.slots, worker.running)
        self.slots += sign * worker.slots
        self.busy += sign * busy
        self.resting += sign * worker.slots * worker.rests
        self.identified_count += sign * (worker.identity is not NO_IDENTITY)
        if sign < 0:
            self._idle.pop(worker.key, None)
        elif busy < worker.slots:
            self._idle[worker.key] = worker


#: A queue without workers.
NO_WORKERS: Final = Queue()


class Roster:
    """The index of workers. Not thread-safe.

    `identities` maps each identity to its workers by topic. Workers without an identity share an
    entry for each topic. `tasks` maps task class names to queues with their numbers of workers.
    """

    __slots__ = ("_bytes", "_is_full", "_workers", "identities", "queues", "tasks")

    def __init__(self) -> None:
        self._bytes = 0
        self._is_full = False
        self._workers: dict[tuple[Any, str], TopicWorker] = {}
        self.identities: dict[Any, dict[str, TopicWorker]] = {}
        self.queues: dict[str, Queue] = {}
        self.tasks: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[TopicWorker]:
        return iter(self._workers.values())

    def record(
        self,
        identity: Any,
        heartbeat: notices.Heartbeat,
        queue: str,
        now: float,
        default_period: float,
    ) -> set[str]:
        """Record a report of a worker; return its tasks if they are new.

        A heartbeat of an unknown worker is ignored, because it does not contain tasks: the reply
        to the next NOTIFY does. If a maximum is reached, further workers are ignored.
        """
        topic, beat = heartbeat.topic, heartbeat.state == notices.BEAT
        worker = self._workers.get(_key(identity, topic))
        if worker is None and beat:
            return set()
        tasks = tuple(dict.fromkeys(heartbeat.tasks))
        gained: set[str] = set()
        if worker is None or (not beat and tasks != worker.tasks):
            previous, worker = worker, TopicWorker(topic, tasks, identity)
            worker.joined = now if previous is None else previous.joined
            worker.queue = queue
            worker.software, worker.code = heartbeat.software, heartbeat.code
            if previous is not None:
                self.remove(previous)
            if not self.add(worker):
                if previous is not None:
                    self.add(previous)
                self._ignore(worker)
                return set()
            gained = set(tasks)
        worker.last_seen = now
        worker.ledger = heartbeat.ledger or worker.ledger
        worker.period = min(MAX_PERIOD_SECONDS, heartbeat.period or 0.0) or worker.period
        if heartbeat.life is not None:
            self.describe(worker, heartbeat.life)
        slots = max(1, worker.slots if heartbeat.slots is None else heartbeat.slots)
        running = worker.running if heartbeat.running is None else heartbeat.running
        rests = worker.life is not None and worker.life.state in _RESTING_STATES
        if rests:
            running = max(running, slots)
        self.update(worker, slots, running, rests=rests)
        has_load = heartbeat.running is not None  # Plain peers do not report it.
        worker.report(now, worker.period or default_period, has_load and running < slots)
        return gained

    def _ignore(self, worker: TopicWorker) -> None:
        if not self._is_full:
            self._is_full = True
            LOG.warning(
                "too many workers: %r and all further workers are ignored (%d are in use;"
                " limits: %d workers, %d bytes of names)",
                *(worker, len(self), MAX_WORKERS, MAX_NAME_BYTES),
            )

    def restart_grace(self, now: float) -> None:
        for worker in self:
            worker.last_seen = now

    def add(self, worker: TopicWorker) -> bool:
        """Add a new worker; return False if a maximum is reached."""
        key = worker.key
        queue = self.queues.get(worker.queue) or Queue()
        peer = next(iter(queue.members.values()), None)
        if peer is not None and peer.tasks == worker.tasks:
            # Share the names: thousands of workers may offer the same hundred tasks.
            worker.tasks, worker.name_bytes = peer.tasks, 0
        else:
            worker.name_bytes = sum(_BYTES_PER_NAME + len(name) for name in worker.tasks)
        if len(self._workers) >= MAX_WORKERS or self._bytes + worker.name_bytes > MAX_NAME_BYTES:
            return False
        self._bytes += worker.name_bytes + _bytes_of(worker.life)
        self._workers[key] = worker
        self.identities.setdefault(key[0], {})[worker.topic] = worker
        self.queues[worker.queue] = queue
        queue.members[key] = worker
        queue.count(worker, +1)
        for task in worker.tasks:
            queues = self.tasks.setdefault(task, {})
            queues[worker.queue] = queues.get(worker.queue, 0) + 1
        return True

    def describe(self, worker: TopicWorker, life: lives.Life) -> None:
        """Store the reported state of a worker, if the memory limit permits."""
        added_bytes = _bytes_of(life) - _bytes_of(worker.life)
        if added_bytes <= 0 or self._bytes + added_bytes <= MAX_NAME_BYTES:
            self._bytes += added_bytes
            worker.life = life

    def update(self, worker: TopicWorker, slots: int, running: int, *, rests: bool = False) -> None:
        queue = self.queues[worker.queue]
        queue.count(worker, -1)
        worker.slots, worker.running, worker.rests = slots, running, rests
        queue.count(worker, +1)

    def remove(self, worker: TopicWorker) -> None:
        key = worker.key
        self._bytes -= _bytes_of(worker.life)
        del self._workers[key]
        topics = self.identities[key[0]]
        del topics[worker.topic]
        if not topics:
            del self.identities[key[0]]
        queue = self.queues[worker.queue]
        queue.count(worker, -1)
        del queue.members[key]
        sharing = (peer for peer in queue.members.values() if peer.tasks is worker.tasks)
        if (heir := next(sharing, None)) is not None:
            heir.name_bytes += worker.name_bytes
        else:
            self._bytes -= worker.name_bytes
        if not queue.members:
            del self.queues[worker.queue]
        for task in worker.tasks:
            queues = self.tasks[task]
            queues[worker.queue] -= 1
            if not queues[worker.queue]:
                del queues[worker.queue]
            if not queues:
                del self.tasks[task]

    def leave(self, identity: Any) -> list[TopicWorker]:
        """Remove a process from all its topics; return its workers."""
        removed = self.topics_of(identity)
        for worker in removed:
            self.remove(worker)
        return removed

    def topics_of(self, identity: Any) -> list[TopicWorker]:
        return list(self.identities.get(identity, {}).values())


def _bytes_of(life: lives.Life | None) -> int:
    return 0 if life is None else _BYTES_PER_RUNNING_TASK * len(life.current)


def _key(identity: Any, topic: str) -> tuple[Any, str]:
    return (anonymous_key(topic) if identity is NO_IDENTITY else identity), topic
