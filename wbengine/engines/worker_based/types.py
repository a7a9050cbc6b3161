"""Who works: the workers an engine knows of, and the queue a task should go to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine import _names
from wbengine._clock import SYSTEM, Clock
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.roster import NO_IDENTITY, Roster, TopicWorker, task_name
from wbengine.transports import _routing as routing

__all__ = ["NO_IDENTITY", "ProxyWorkerFinder", "TopicWorker"]

LOG = logging.getLogger(__name__)

#: A worker that announces a period is lost after this many periods of silence.
SILENT_PERIODS: Final = 3

#: Seconds between two questions of a finder.
BEAT_PERIODICITY: Final = 5.0

#: Whatever a worker claims, it is not waited for longer than three times so many seconds.
MOST_PERIOD: Final = 60.0


class ProxyWorkerFinder:
    """Ask for workers, listen to what they say of themselves, and notice when they fall silent.

    Answers are indexed by task class and queue, so that finding a queue for a task does not depend
    on how many workers there are.  Thread-safe.  All times are this process's monotonic clock;
    silence counts only while this engine hears itself (`hear_echo`), so that neither an outage of
    the broker nor a pause of this process makes a worker look lost.

    `on_change(names, lost)` is called (outside the lock) with the task class names that gained a
    worker, and the workers that stopped or were lost.
    """

    def __init__(
        self,
        uuid: str,
        proxy: Any,
        topics: Iterable[str],
        beat_periodicity: float = BEAT_PERIODICITY,
        worker_expiry: float | None = 60,
        *,
        interop: bool = False,
        on_change: Callable[[set[str], list[TopicWorker]], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.uuid = uuid
        self._proxy = proxy
        self._topics = tuple(topics)
        self._patterns = tuple(
            _names.check_pattern("topic", topic).split(".") for topic in self._topics
        )
        self._beat_periodicity = beat_periodicity
        self._expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self._interop = interop
        self._on_change = on_change
        self._clock = clock
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._roster = Roster()
        self._messages_processed = 0
        self._strangers: dict[str, float] = {}
        self._last_asked: float | None = None
        self._last_pinged: float | None = None
        self._last_echo: float | None = None

    # What is known.

    @property
    def period(self) -> float:
        """Seconds between two beats that this engine asks its workers for."""
        if self._expiry is None:
            return self._beat_periodicity
        return min(self._beat_periodicity, max(env.LEAST_PERIOD, self._expiry / 4))

    @property
    def total_workers(self) -> int:
        """Number of worker processes (not topics) known to be alive."""
        return len(self._roster.identities)

    @property
    def messages_processed(self) -> int:
        return self._messages_processed

    def workers(self) -> list[TopicWorker]:
        with self._lock:
            return list(self._roster)

    def topics(self) -> list[str]:
        """Topics on which somebody is known to work, sorted."""
        with self._lock:
            return sorted({worker.topic for worker in self._roster})

    def tasks(self) -> list[str]:
        """Names of all task classes that somebody offers, sorted."""
        with self._lock:
            return sorted(self._roster.tasks)

    def slots(self, queue: str) -> int:
        """How many tasks the live workers of `queue` run at once."""
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.slots if found is not None else 0

    def free(self, queue: str) -> int:
        """How many of those slots were free when the workers last spoke."""
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.free if found is not None else 0

    def speaks(self, queue: str) -> bool:
        """Whether the workers of `queue` speak more than plain TaskFlow."""
        with self._lock:
            found = self._roster.queues.get(queue)
            return found is not None and any(
                worker.identity is not NO_IDENTITY for worker in found.members.values()
            )

    def queue_for(self, task_cls: str, waiting: Callable[[str], int]) -> str | None:
        """The queue whose live workers offer `task_cls` with most slots per waiting request.

        `waiting(queue)` says how many requests of this engine are on their way to that queue.
        Among equals, the topic named first wins.  Costs O(queues that offer the task).
        """
        with self._lock:
            queues = self._roster.tasks.get(task_cls)
            if not queues:
                return None
            if len(queues) == 1:
                return next(iter(queues))
            return max(queues, key=lambda queue: self._appeal(queue, waiting(queue)))

    def _appeal(self, queue: str, waiting: int) -> tuple[float, int]:
        found = self._roster.queues[queue]
        # A queue belongs to one topic; any of its workers can say which.
        rank = self._rank(next(iter(found.members.values())).topic)
        return (found.free + found.slots) / (2.0 * (waiting + 1)), -rank

    def get_worker_for_task(self, task: Any) -> TopicWorker | None:
        """A live worker that performs `task`, the least busy of them, or None."""
        name = task_name(task)
        with self._lock:
            able = [
                worker
                for queue in self._roster.tasks.get(name, ())
                for worker in self._roster.queues[queue].members.values()
                if worker.performs(name)
            ]
            return max(able, key=lambda worker: worker.slots - worker.running, default=None)

    def wait_for_workers(self, workers: int = 1, timeout: float | None = None) -> int:
        """Wait until `workers` worker processes are known; return how many are still missing.

        :raises ValueError: fewer than one worker is asked for.
        """
        if workers <= 0:
            raise ValueError(f"can only wait for one worker or more, not {workers}")
        with self._lock:
            self._changed.wait_for(lambda: len(self._roster.identities) >= workers, timeout)
            return max(0, workers - len(self._roster.identities))

    # Asking and hearing.

    @property
    def _interval(self) -> float:
        """Seconds between two questions: many workers are asked less often."""
        return max(self.period, 0.01 * len(self._roster))

    def maybe_publish(self) -> bool:
        """Ask who is there, unless it was asked a moment ago; call it as often as is convenient.

        Also speaks to itself, each period; returns whether the question was asked.
        """
        now = self._clock.monotonic()
        headers = {env.WBE_VERSION: env.VERSION, env.WBE_PERIOD: self.period}
        due = self._last_asked is None or now - self._last_asked >= self._interval
        if due:
            self._last_asked = now
            for key in self._topics if self._interop else (env.ALL_WORKERS,):
                self._proxy.publish(
                    pr.Notify(), key, reply_to=self.uuid, headers=headers, first=True
                )
        if self._last_pinged is None or now - self._last_pinged >= self.period:
            self._last_pinged = now
            self._proxy.publish(
                pr.Notify(), self.uuid, headers={**headers, env.WBE_ECHO: self.uuid}, first=True
            )
        return due

    def next_due(self) -> float | None:
        """When `maybe_publish` has something to publish next, on the finder's clock."""
        if self._last_asked is None or self._last_pinged is None:
            return None
        return min(self._last_asked + self._interval, self._last_pinged + self.period)

    def process_response(self, data: Any, message: Any) -> None:
        """Take in a validated NOTIFY; `message` is the kombu message or anything with `headers`."""
        headers = message.headers or {}
        if headers.get(env.WBE_ECHO) == self.uuid:
            self.hear_echo()
            return
        notify = env.Envelope(pr.NOTIFY, data, headers=headers)
        topic = data.get("topic")
        if topic is None:
            return  # a question of another engine
        if not self._listens_to(topic) or not _sound(notify, topic):
            return
        gained: set[str] = set()
        lost: list[TopicWorker] = []
        with self._lock:
            self._messages_processed += 1
            identity = notify.text(env.WBE_WORKER) or NO_IDENTITY
            state = headers.get(env.WBE_STATE)
            if state == env.STOPPED:
                lost = self._roster.leave(identity) or self._estrange(identity)
            else:
                gained = self._hear(identity, topic, notify, beat=state == env.BEAT)
            self._changed.notify_all()
        self._tell(gained, lost)

    def _listens_to(self, topic: str) -> bool:
        words = topic.split(".")
        return not self._patterns or any(routing.matches(p, words) for p in self._patterns)

    def _rank(self, topic: str) -> int:
        words = topic.split(".")
        ranks = (i for i, p in enumerate(self._patterns) if routing.matches(p, words))
        return next(ranks, 0)

    def _hear(self, identity: Any, topic: str, notify: env.Envelope, beat: bool) -> set[str]:
        worker = self._roster.find(identity, topic)
        tasks = tuple(dict.fromkeys(notify.body["tasks"]))
        if worker is None and beat:
            # What it offers comes with its next answer to a question; but it lives.
            if identity in self._strangers:
                self._strangers[identity] = self._clock.monotonic()
            return set()
        if worker is None or (not beat and tasks != worker.tasks):
            if worker is not None:
                self._roster.remove(worker)
            worker = TopicWorker(topic, tasks, identity)
            worker.queue = notify.text(env.WBE_QUEUE) or topic
            self._roster.add(worker)
            self._strangers.pop(identity, None)
            gained = set(tasks)
        else:
            gained = set()
        worker.last_seen = self._clock.monotonic()
        worker.period = min(MOST_PERIOD, notify.seconds(env.WBE_PERIOD) or 0.0) or worker.period
        slots = max(1, notify.number(env.WBE_SLOTS, worker.slots))
        self._roster.update(worker, slots, notify.number(env.WBE_RUNNING, worker.running))
        return gained

    # Noticing silence.

    def watch(self, identity: str) -> None:
        """Somebody holds work: if no announcement of theirs was heard, their silence counts too.

        Whoever is not heard of within the time that known workers have is told as lost.
        """
        with self._lock:
            if self._expiry is not None and identity not in self._roster.identities:
                self._strangers[identity] = self._clock.monotonic()

    def _estrange(self, identity: Any) -> list[TopicWorker]:
        known = self._strangers.pop(identity, None) is not None
        return [TopicWorker("", (), identity)] if known else []

    def hear_echo(self) -> None:
        """This engine heard itself: after a gap, all workers get a full grace period."""
        now = self._clock.monotonic()
        with self._lock:
            if self._last_echo is not None and now - self._last_echo > 2 * self.period:
                for worker in self._roster:
                    worker.last_seen = now
                self._strangers = dict.fromkeys(self._strangers, now)
            self._last_echo = now

    def clean(self) -> int:
        """Forget the workers that fell silent; return how many processes that were."""
        if self._expiry is None:
            return 0
        now = self._clock.monotonic()
        with self._lock:
            if self._last_echo is None or now - self._last_echo > 2 * self.period:
                return 0
            silent = self._roster.silent(lambda worker: self._silent(worker, now))
            lost = [worker for identity in silent for worker in self._roster.leave(identity)]
            for worker in lost:
                LOG.warning("lost %r: silent for %.1f s", worker, now - worker.last_seen)
            for identity, seen in tuple(self._strangers.items()):
                if now - seen > SILENT_PERIODS * self._interval:
                    LOG.warning("lost worker %s, which never announced itself", identity)
                    lost += self._estrange(identity)
            if lost:
                self._changed.notify_all()
        self._tell(set(), lost)
        return len(silent)

    def _silent(self, worker: TopicWorker, now: float) -> bool:
        if worker.period is not None:
            limit = SILENT_PERIODS * max(worker.period, self._interval)
        else:
            assert self._expiry is not None
            limit = self._expiry
        return now - worker.last_seen > limit

    def reset(self) -> None:
        """Forget everything, as if just made."""
        with self._lock:
            self._roster = Roster()
            self._strangers.clear()
            self._messages_processed = 0
            self._last_asked = self._last_pinged = self._last_echo = None

    def _tell(self, gained: set[str], lost: list[TopicWorker]) -> None:
        if self._on_change is not None and (gained or lost):
            self._on_change(gained, lost)


def _sound(notify: env.Envelope, topic: str) -> bool:
    """Whether the names in a worker's announcement may be used as such."""
    try:
        for header in (env.WBE_WORKER, env.WBE_QUEUE):
            if header in notify.headers:
                _names.check_label(header, notify.headers[header])
        if notify.ours:
            _names.check_label("topic", topic)
    except ValueError as error:
        LOG.warning("ignored an announcement: %s", error)
        return False
    return True
