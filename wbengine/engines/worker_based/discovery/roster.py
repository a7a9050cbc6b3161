"""Who is there: workers by identity, by queue, and by what they offer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import _names
from wbengine.engines.worker_based.messages import life as lives

#: So many workers (a process on a topic is one) are known, and about so many bytes are kept of the
#: names of their tasks and of what they run: any number could be announced.
MOST_WORKERS: Final = 20_000
MOST_BYTES: Final = 64 * 1024 * 1024

#: Bytes that the name of a task takes besides its characters, and that one that runs takes.
_NAME: Final = 64
_RUNS: Final = 256

#: Two reports of a worker that are to count as two are so many of its periods apart, at least.
_APART: Final = 0.5

_NEVER: Final = (-math.inf, -math.inf)

#: Stands for the identity of a peer that tells none.
NO_IDENTITY: Final = object()


def nameless(topic: str) -> str:
    """Stands for all the workers of a topic that tell no identity."""
    return f"taskflow:{topic}"  # no label holds a colon: nobody can be called so


def task_name(task: Any) -> str:
    """The dotted name of a task or task class; a name is one already."""
    return task if isinstance(task, str) else _names.dotted(task)


@dataclass(slots=True, eq=False, repr=False)
class TopicWorker:
    """One worker process on one topic, as it last described itself (read-only to everybody else).

    `queue` is where requests for it go, `slots` how many tasks it runs at once, `running` how many
    it ran when it last spoke.  Peers that speak plain TaskFlow have no identity: their topic is
    their queue, and all workers of a topic look like one.

    `spoke` and `was_free` are when it reported last, and before that: at all, and (ever since the
    first of them) a free slot.
    """

    topic: str
    tasks: Sequence[Any]
    identity: Any = NO_IDENTITY
    queue: str = field(init=False)
    #: Under which it is kept.
    key: tuple[Any, str] = field(init=False)
    slots: int = field(init=False, default=1)
    running: int = field(init=False, default=0)
    period: float | None = field(init=False, default=None)
    last_seen: float = field(init=False, default=0.0)
    #: When it was heard of first.
    joined: float = field(init=False, default=math.inf)
    life: lives.Life | None = field(init=False, default=None)
    #: The version of wbengine that it runs, and the digest of its ledger, as far as it says so.
    software: str | None = field(init=False, default=None)
    ledger: str | None = field(init=False, default=None)
    spoke: tuple[float, float] = field(init=False, default=_NEVER)
    was_free: tuple[float, float] = field(init=False, default=_NEVER)
    #: Whether it said itself that it ends.
    goodbye: bool = field(init=False, default=False)
    #: About how many bytes of names are kept that it was the first to tell.
    names: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.tasks = tuple(map(task_name, self.tasks))
        self.key, self.queue = _key(self.identity, self.topic), self.topic

    def report(self, now: float, period: float, free: bool) -> None:
        """Note that it spoke, and whether a slot is free."""
        apart = _APART * period
        if now - self.spoke[1] >= apart:
            self.spoke = self.spoke[1], now
        if not free:
            self.was_free = _NEVER
        elif now - self.was_free[1] >= apart:
            self.was_free = self.was_free[1], now

    @property
    def free(self) -> int:
        return max(0, self.slots - self.running)

    def performs(self, task: Any) -> bool:
        """Whether the worker offers `task` (a task, a task class, or its dotted name)."""
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
        who = "*" if self.identity is NO_IDENTITY else self.identity
        return f"<TopicWorker {who} on {self.topic!r}, {len(self.tasks)} tasks>"


class Queue:
    """The workers that take requests from one queue, and what they add up to.

    Whatever is asked for each request costs O(1), however many members there are; `rounds` and
    `idle_rounds` look at all of them once after one has spoken.
    """

    __slots__ = ("_idle", "_since", "busy", "members", "named", "slots")

    def __init__(self) -> None:
        self.members: dict[tuple[Any, str], TopicWorker] = {}
        self.slots = 0
        self.busy = 0
        #: How many of them tell their identity.
        self.named = 0
        # Those that have a free slot; who spoke longest ago is the first.
        self._idle: dict[tuple[Any, str], TopicWorker] = {}
        # Up to when twice, and once, all have spoken; and were free.
        self._since: tuple[float, float, float, float] | None = None

    @property
    def free(self) -> int:
        return self.slots - self.busy

    def free_of(self, since: float) -> int:
        """The free slots of those that have spoken since then.

        Costs O(those with free slots who have not).
        """
        free = self.slots - self.busy
        for worker in self._idle.values():
            if worker.last_seen >= since:
                break
            free -= worker.free
        return free

    def rounds(self, since: float) -> int:
        """How often every member that was there then has spoken since, at most twice."""
        twice, once, _, _ = self._since or self._look()
        return (since < twice) + (since < once)

    def idle_rounds(self, since: float) -> int:
        """How often every member reported a free slot since then, and nothing else after that."""
        if len(self._idle) < len(self.members):
            return 0
        _, _, twice, once = self._since or self._look()
        return (since < twice) + (since < once)

    def _look(self) -> tuple[float, float, float, float]:
        found = self._since = (
            min(max(worker.joined, worker.spoke[0]) for worker in self.members.values()),
            min(max(worker.joined, worker.spoke[1]) for worker in self.members.values()),
            min(worker.was_free[0] for worker in self.members.values()),
            min(worker.was_free[1] for worker in self.members.values()),
        )
        return found

    def count(self, worker: TopicWorker, sign: int) -> None:
        """Count a member in (+1), as one that has just spoken, or out (-1)."""
        self._since = None
        busy = min(worker.slots, worker.running)
        self.slots += sign * worker.slots
        self.busy += sign * busy
        self.named += sign * (worker.identity is not NO_IDENTITY)
        if sign < 0:
            self._idle.pop(worker.key, None)
        elif busy < worker.slots:
            self._idle[worker.key] = worker


class Roster:
    """Workers, indexed.  Not thread-safe.

    `identities` maps each identity to the topics it works on; those who have none are one for each
    topic.  `queues` maps queues to the workers that take from them, `tasks` maps task class names
    to the queues where they are offered, with the number of workers that do.
    """

    __slots__ = ("_bytes", "_workers", "identities", "queues", "tasks")

    def __init__(self) -> None:
        self._bytes = 0
        self._workers: dict[tuple[Any, str], TopicWorker] = {}
        self.identities: dict[Any, set[str]] = {}
        self.queues: dict[str, Queue] = {}
        self.tasks: dict[str, dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[TopicWorker]:
        return iter(self._workers.values())

    def find(self, identity: Any, topic: str) -> TopicWorker | None:
        return self._workers.get(_key(identity, topic))

    def add(self, worker: TopicWorker) -> bool:
        """Take in a worker that is not there yet; False: there is no room for it."""
        key = worker.key
        queue = self.queues.get(worker.queue) or Queue()
        other = next(iter(queue.members.values()), worker)
        shares = other is not worker and other.tasks == worker.tasks
        if shares:
            worker.tasks = other.tasks  # thousands may offer the same hundred
        worker.names = 0 if shares else sum(map(len, worker.tasks)) + _NAME * len(worker.tasks)
        if len(self._workers) >= MOST_WORKERS or self._bytes + worker.names > MOST_BYTES:
            return False
        self._bytes += worker.names + _bytes_of(worker.life)
        self._workers[key] = worker
        self.identities.setdefault(key[0], set()).add(worker.topic)
        self.queues[worker.queue] = queue
        queue.members[key] = worker
        queue.count(worker, +1)
        for task in worker.tasks:
            queues = self.tasks.setdefault(task, {})
            queues[worker.queue] = queues.get(worker.queue, 0) + 1
        return True

    def describe(self, worker: TopicWorker, life: lives.Life) -> None:
        """A worker tells of its life, which is not kept where there is no room for it."""
        known = worker.life.current if worker.life is not None else ()
        more = _RUNS * (len(life.current) - len(known))
        if more <= 0 or self._bytes + more <= MOST_BYTES:
            self._bytes += more
            worker.life = life

    def update(self, worker: TopicWorker, slots: int, running: int) -> None:
        """A worker has just said how many tasks it can run, and does."""
        queue = self.queues[worker.queue]
        queue.count(worker, -1)
        worker.slots, worker.running = slots, running
        queue.count(worker, +1)

    def remove(self, worker: TopicWorker) -> None:
        """Forget a worker that is there."""
        key = worker.key
        self._bytes -= _bytes_of(worker.life)
        del self._workers[key]
        topics = self.identities[key[0]]
        topics.discard(worker.topic)
        if not topics:
            del self.identities[key[0]]
        queue = self.queues[worker.queue]
        queue.count(worker, -1)
        del queue.members[key]
        sharing = (each for each in queue.members.values() if each.tasks is worker.tasks)
        if (heir := next(sharing, None)) is not None:
            heir.names += worker.names
        else:
            self._bytes -= worker.names
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
        """Forget a process, on all its topics; what it was."""
        gone = self.topics_of(identity)
        for worker in gone:
            self.remove(worker)
        return gone

    def topics_of(self, identity: Any) -> list[TopicWorker]:
        """A process, on all its topics."""
        return [self._workers[identity, topic] for topic in self.identities.get(identity, ())]

    def silent(self, now: float, is_silent: Callable[[TopicWorker, float], bool]) -> set[Any]:
        """The identities of those workers of whom `is_silent` is true by `now`."""
        return {worker.key[0] for worker in self if is_silent(worker, now)}


def _bytes_of(life: lives.Life | None) -> int:
    return 0 if life is None else _RUNS * len(life.current)


def _key(identity: Any, topic: str) -> tuple[Any, str]:
    return (nameless(topic) if identity is NO_IDENTITY else identity), topic
