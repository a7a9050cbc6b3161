"""Find workers, detect lost workers, and select the queue for a task."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._concurrency import conditions
from wbengine._concurrency.clocks import SYSTEM, Clock
from wbengine._introspection import object_names
from wbengine._text import data_formats
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._discovery import roster
from wbengine.engines.worker_based._discovery.clock_differences import Clocks
from wbengine.engines.worker_based._discovery.lost_worker_detection import (
    SILENT_PERIODS,
    LossDetector,
)
from wbengine.engines.worker_based._discovery.notify_schedule import NotifySchedule
from wbengine.engines.worker_based._discovery.roster import (
    NO_IDENTITY,
    NO_WORKERS,
    Roster,
    TopicWorker,
    task_name,
)
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import notices
from wbengine.transports import _routing as routing

LOG = logging.getLogger(__name__)

#: Default heartbeat period that engines request, in seconds. NOTIFY is sent at least as rarely.
BEAT_PERIODICITY: Final = 5.0

#: Additional seconds for the first reply of a new worker.
_GRACE_SECONDS: Final = 1.0

_MAX_OUTAGES: Final = 64

#: Minimum delay in seconds after which an iteration of the engine's loop is late.
_MIN_LATE_SECONDS: Final = 2.0


#: Maximum number of names in an error message.
_MAX_NAMES: Final = 8


def _shown_names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(names[:_MAX_NAMES]) or "none") + more


def check_wait(workers: Any, timeout: Any) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise TypeError(f"workers must be a whole number, got {workers!r:.80}")
    if workers <= 0:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, got {timeout!r:.80}")


class Reception:
    """Records outages: periods in which the engine received no messages or did not run.

    There are three signs of an outage. An echo, which the engine sends to itself, is overdue: no
    messages arrive. An iteration of the loop is late: the process was paused. The loop has another
    channel than before: the connection to the broker was lost.

    Thread-safe; a single thread records the iterations of the loop.

    :param period: interval of echoes in seconds.
    """

    def __init__(self, period: float) -> None:
        self._lock = threading.Lock()
        self._echo_limit = 2 * period
        self._iteration_limit = max(_MIN_LATE_SECONDS, period)
        self._outages: deque[tuple[float, float]] = deque(maxlen=_MAX_OUTAGES)
        self._last_echo: float | None = None
        self._last_iteration = math.inf
        self._channel: Any = None

    def record_echo(self, now: float) -> bool:
        """Record an echo; return whether it ends an outage."""
        with self._lock:
            previous, self._last_echo = self._last_echo, now
            if previous is None or now - previous <= self._echo_limit:
                return False
            self._add_outage(previous, now)
        return True

    def record_loop_iteration(self, now: float, channel: Any) -> bool:
        """Record an iteration of the loop on this channel; return whether it ends an outage."""
        previous, self._last_iteration = self._last_iteration, now
        is_new_channel, self._channel = self._channel is not channel, channel
        if now - previous <= self._iteration_limit and not (is_new_channel and previous < now):
            return False
        with self._lock:
            self._add_outage(previous, now)
        return True

    def is_interrupted(self, now: float) -> bool:
        """Return whether the echo is overdue."""
        return self._last_echo is None or now - self._last_echo > self._echo_limit

    def outage_seconds(self, since: float, now: float) -> float:
        """Return the seconds of outages since `since`."""
        with self._lock:
            seconds = sum(
                max(0.0, min(end, now) - max(start, since)) for start, end in self._outages
            )
            if self._last_echo is not None and now - self._last_echo > self._echo_limit:
                seconds += max(0.0, now - max(self._last_echo, since))
        return seconds

    def _add_outage(self, start: float, end: float) -> None:
        if self._outages:
            # Outages may overlap: a pause also delays the echo.
            start = max(start, self._outages[-1][1])
        if end > start:
            self._outages.append((start, end))


class ProxyWorkerFinder:
    """Finds workers, processes their announcements and heartbeats, and detects lost workers.

    Thread-safe. The cost of `queue_for` does not depend on the number of workers. All times are on
    the monotonic clock of this process. Silence of a worker counts only while this engine receives
    its own echo. So neither an outage of the broker nor a pause of this process makes a worker
    look lost.

    The engine sends a NOTIFY, to which all workers reply, in the intervals of `schedule`. Workers
    announce start, stop and changes without it.

    :param queue_name: `queue_name(topic, tasks)` names the queue of the workers that offer these
        tasks; None: it is the topic.
    :param on_change: called without the lock as `on_change(names, lost)`, with the names of
        task classes that gained a worker, and the workers that stopped or were lost.
    :param on_ids: called as `on_ids(identity, ids)` with the requests of this engine that a worker
        runs.
    :param has_requests: `has_requests(identity)` returns whether a worker has requests of this
        engine. Only such workers send periodic heartbeats.
    :param has_consumer: `has_consumer(topic)` returns whether the queue of a topic of TaskFlow's
        workers has a consumer. Busy workers of TaskFlow send nothing.
    :ivar period: the heartbeat period that this engine requests, in seconds.
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
        queue_name: Callable[[str, Sequence[str]], str] | None = None,
        on_change: Callable[[set[str], list[TopicWorker]], None] | None = None,
        on_ids: Callable[[str, Collection[str]], None] | None = None,
        has_requests: Callable[[str], bool] = lambda _: False,
        has_consumer: Callable[[str], bool] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.uuid = uuid
        self._proxy = proxy
        self.topic_patterns = tuple(topics)
        self._patterns = tuple(
            object_names.check_pattern("topic", topic).split(".") for topic in self.topic_patterns
        )
        self._expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self.period = beat_periodicity
        if self._expiry is not None:
            self.period = min(beat_periodicity, max(notices.MIN_PERIOD_SECONDS, self._expiry / 4))
        self._interop = interop
        self._queue_name = queue_name
        self._on_change = on_change
        self._on_ids = on_ids
        self._has_requests = has_requests
        self._has_consumer = has_consumer
        self._clock = clock
        # Workers that cannot read requests, and that were logged.
        self._refused: set[str] = set()
        self.clocks: Clocks | None = None
        self._lock = threading.RLock()
        self._changed = conditions.Condition(self._lock)
        self.schedule = NotifySchedule(self.period, plain=interop)
        self.reset()

    def reset(self) -> None:
        """Forget all workers, so that the engine can start again."""
        with self._lock:
            self._roster = Roster()
            self.reception = Reception(self.period)
            self._loss_detector = LossDetector(self.period, self._expiry, self._has_requests)
            self._messages_processed = 0
            self.schedule.reset()

    @property
    def patience(self) -> float:
        """Seconds after which a worker without any message is lost."""
        return self._loss_detector.patience

    def slots(self, queue: str) -> int:
        with self._lock:
            return self._roster.queues.get(queue, NO_WORKERS).slots

    def free(self, queue: str) -> int:
        """Return the number of free slots in the last reports of the workers of `queue`.

        Workers without a report in `SILENT_PERIODS` intervals have none.
        """
        with self._lock:
            interval = self.schedule.interval(len(self._roster))
            since = self._clock.monotonic() - SILENT_PERIODS * interval
            return self._roster.queues.get(queue, NO_WORKERS).free_of(since)

    def uses_extended_protocol(self, queue: str) -> bool:
        """Return whether the workers of `queue` use the extended protocol."""
        with self._lock:
            return self._roster.queues.get(queue, NO_WORKERS).identified_count > 0

    def queue_for(self, task_cls: str, waiting: Callable[[str], int]) -> str | None:
        """Return the queue with the most capacity per waiting request for `task_cls`, or None.

        The capacity is the number of slots plus that of free slots, so that a queue with free slots
        is preferred to a busy one of the same size. Workers that accept no requests have none.
        Of equal queues, the one of the first topic is used. Cost: O(queues that offer the task).

        :param waiting: `waiting(queue)` returns the number of requests of this engine in a queue.
        """
        with self._lock:
            queues = self._roster.tasks.get(task_cls)
            if not queues:
                return None
            if len(queues) == 1:
                return next(iter(queues))
            by_name, best_score, best = self._roster.queues, -1.0, ""
            for name in queues:
                members = by_name[name]
                # Workers that rest are counted as busy.
                capacity = 2 * members.slots - members.busy - members.resting
                score = capacity / (waiting(name) + 1)
                if score > best_score or (
                    score == best_score and self._rank(name) < self._rank(best)
                ):
                    best_score, best = score, name
            return best

    def queues(self, task_cls: str) -> list[str]:
        with self._lock:
            return list(self._roster.tasks.get(task_cls, ()))

    def rests(self, queue: str) -> bool:
        """Return whether all workers of `queue` accept no requests: they drain or are suspended."""
        with self._lock:
            return self._roster.queues.get(queue, NO_WORKERS).rests

    def is_avoided(self, queue: str, task_cls: str) -> bool:
        """Return whether `queue` rests, and workers of another queue accept `task_cls`.

        Cost: O(queues that offer the task), if `queue` rests.
        """
        return self.rests(queue) and not all(map(self.rests, self.queues(task_cls)))

    # Questions and replies.

    def maybe_publish(self) -> bool:
        """Publish NOTIFY to all workers, and the echo, if they are due. Call this at any rate.

        :returns: whether NOTIFY was published.
        """
        now = self._clock.monotonic()
        due = self.schedule.take_notify(now, len(self._roster), self._is_report_late)
        if due:
            for key in self.topic_patterns if self._interop else (env.ALL_WORKERS,):
                self._publish(notices.Query(self.uuid, self.period), key)
        if self.schedule.take_echo(now):
            self._publish(notices.Query(None, self.period, self.uuid), self.uuid)
        return due

    def _publish(self, query: notices.Query, key: str) -> None:
        self._proxy.publish(
            pr.Notify(), key, reply_to=query.reply_to, headers=query.headers(), first=True
        )

    def _is_report_late(self, now: float) -> bool:
        with self._lock:
            return self._loss_detector.is_report_late(self._roster, now)

    def next_due(self) -> float:
        return self.schedule.next_due(self._clock.monotonic(), len(self._roster))

    def process_response(self, data: Any, message: Any) -> None:
        """Process a validated NOTIFY; `message` is any object with `headers`."""
        notify = env.Envelope(pr.NOTIFY, data, headers=message.headers or {})
        if data.get("topic") is None:  # This is the echo, or the NOTIFY of another engine.
            if notices.Query.from_message(notify).echo == self.uuid:
                self.record_echo()
            return
        words = data["topic"].split(".")
        if self._patterns and not any(routing.matches(p, words) for p in self._patterns):
            return
        try:
            heartbeat = notices.Heartbeat.from_message(notify)
        except exc.InvalidFormat as error:
            LOG.warning("ignored an announcement: %s", error)
            return
        queue = heartbeat.topic
        if heartbeat.tasks and not self._interop and self._queue_name is not None:
            if data_formats.MESSAGE.written not in heartbeat.formats:
                self._log_unreadable(heartbeat)
                return
            queue = self._queue_name(heartbeat.topic, heartbeat.tasks)
        gained: set[str] = set()
        lost: list[TopicWorker] = []
        identity = NO_IDENTITY if self._interop else heartbeat.worker or NO_IDENTITY
        if self.clocks is not None:
            self.clocks.check(identity, heartbeat.sent_at, self._clock)
        with self._lock:
            self._messages_processed += 1
            now = self._clock.monotonic()
            if heartbeat.state == notices.STOPPED:
                lost = self._roster.leave(identity) or self._loss_detector.stop_watching(identity)
                for worker in lost:
                    worker.announced_end = True
            else:
                gained = self._roster.record(identity, heartbeat, queue, now, self.period)
                if identity in self._loss_detector.watched:
                    if identity in self._roster.identities:
                        self._loss_detector.stop_watching(identity)
                    elif heartbeat.state == notices.BEAT:
                        self._loss_detector.watched[identity] = now
            self._changed.notify_all()
        self._notify(gained, lost)
        if gained and isinstance(identity, str):
            self._send_period(identity, heartbeat.period)
        if self._on_ids is not None and heartbeat.ids is not None and isinstance(identity, str):
            self._on_ids(identity, set(heartbeat.ids))

    def _send_period(self, identity: str, reported_period: float | None) -> None:
        """Send the heartbeat period of this engine to a new worker.

        Without a reply, the worker is lost after the usual number of these periods.
        """
        if (reported_period or 0.0) <= self.period:
            return
        self._publish(notices.Query(self.uuid, self.period), identity)
        with self._lock:
            for worker in self._roster.topics_of(identity):
                worker.period = self.period
                worker.last_seen += _GRACE_SECONDS

    def _log_unreadable(self, heartbeat: notices.Heartbeat) -> None:
        """Log a worker that cannot read the requests of this engine."""
        name = f"{heartbeat.worker or heartbeat.topic:.80}"
        is_new = name not in self._refused and len(self._refused) < roster.MAX_WORKERS
        if is_new:
            self._refused.add(name)
        LOG.log(
            logging.WARNING if is_new else logging.DEBUG,
            "worker %s (wbengine %.20s) gets no requests: it reads message formats %.80s, and this"
            " engine writes %d",
            *(name, heartbeat.software, [*heartbeat.formats], data_formats.MESSAGE.written),
        )

    def _rank(self, queue: str) -> int:
        # All workers of a queue have the same topic.
        topic = next(iter(self._roster.queues[queue].members.values())).topic
        words = topic.split(".")
        ranks = (i for i, p in enumerate(self._patterns) if routing.matches(p, words))
        return next(ranks, 0)

    # Detection of lost workers.

    def watch(self, identity: str, silence: float = 0.0) -> None:
        """Watch a worker that replied about a request `silence` seconds ago.

        If it never announces itself, it is lost after `patience` seconds of silence.
        """
        with self._lock:
            last_reply = self._clock.monotonic() - silence
            workers = self._roster.identities.get(identity)
            if workers is not None:
                for worker in workers.values():
                    worker.last_reply = last_reply
            elif self._expiry is not None:
                self._loss_detector.watched[identity] = last_reply

    def record_echo(self) -> None:
        """Record an echo. After an outage, restart the grace periods of all workers."""
        now = self._clock.monotonic()
        if self.reception.record_echo(now):
            self._restart_grace(now)

    def record_outage(self, now: float) -> None:
        """Restart the grace periods of all workers, and query them more often for some time."""
        self.schedule.record_outage(now)
        self._restart_grace(now)

    def _restart_grace(self, now: float) -> None:
        with self._lock:
            self._roster.restart_grace(now)
            self._loss_detector.restart_grace(now)

    def clean(self) -> int:
        """Remove workers that are silent for too long.

        :returns: the number of processes, without those that never announced themselves.
        """
        if self._expiry is None:
            return 0
        now = self._clock.monotonic()
        if self.reception.is_interrupted(now):
            return 0
        with self._lock:
            silent = self._loss_detector.silent(self._roster, now, self.schedule.queried_since)
            if not (silent or self._loss_detector.watched):
                return 0
        busy = self._consumed_topics(silent)
        with self._lock:
            for worker in self._roster:
                if worker.topic in busy:  # Check it again after one period.
                    worker.last_seen = now - self._expiry + self.period
            silent = self._loss_detector.silent(self._roster, now, self.schedule.queried_since)
            lost = self._loss_detector.remove(self._roster, silent, now)
            if lost:
                self._changed.notify_all()
        self._notify(set(), lost)
        return len(silent)

    def _consumed_topics(self, silent: Collection[Any]) -> set[str]:
        """Return the topics of silent plain peers with a consumer. Cost: a round trip for each."""
        if self._has_consumer is None or not silent:
            return set()
        silent_topics = [topic for topic in self.topics() if roster.anonymous_key(topic) in silent]
        return {topic for topic in silent_topics if self._has_consumer(topic)}

    def _notify(self, gained: set[str], lost: list[TopicWorker]) -> None:
        if self._on_change is not None and (gained or lost):
            self._on_change(gained, lost)

    # Queries.

    @property
    def total_workers(self) -> int:
        return len(self._roster.identities)

    @property
    def messages_processed(self) -> int:
        return self._messages_processed

    def workers(self) -> list[TopicWorker]:
        with self._lock:
            return list(self._roster)

    def topics(self) -> list[str]:
        with self._lock:
            return sorted({worker.topic for worker in self._roster})

    def tasks(self) -> list[str]:
        with self._lock:
            return sorted(self._roster.tasks)

    def why_unserved(self, task_cls: str) -> str:
        """Return, for users, the reason why no known worker runs a task."""
        tasks, topics = self.tasks(), self.topics()
        if not topics:
            topic_list = ", ".join(map(repr, self.topic_patterns))
            where = f"on {topic_list} (other topics are ignored)" if topic_list else "on any topic"
            return f"no worker is known {where}, so none offers {task_cls}"
        return (
            f"no worker offers {task_cls}{object_names.hint(task_cls, tasks)};"
            f" known topics: {_shown_names(topics)}; known tasks: {_shown_names(tasks)}"
        )

    def report_rounds(self, queue: str, since: float) -> int:
        """Return how many times (at most 2) every live worker has reported since `since`.

        Workers of `queue` that joined after `since` are ignored. Without workers, return 0.
        """
        with self._lock:
            return self._roster.queues.get(queue, NO_WORKERS).report_rounds(since)

    def free_slot_rounds(self, queue: str, since: float) -> int:
        """Return how many times (at most 2) every live worker has reported a free slot.

        Reports before `since` are ignored. A report without a free slot resets the count.
        """
        with self._lock:
            return self._roster.queues.get(queue, NO_WORKERS).free_slot_rounds(since)

    def outage_seconds(self, since: float, now: float) -> float:
        """Return the seconds since `since` in which this engine received nothing."""
        return self.reception.outage_seconds(since, now)

    def get_worker_for_task(self, task: Any) -> TopicWorker | None:
        """Return the live worker with the most free slots that offers `task`, or None."""
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
        """Wait until `workers` processes are known; return how many are missing.

        :raises ValueError: if `workers` is less than 1.
        :raises TypeError: if `workers` is not an integer, or `timeout` is not a number.
        """
        check_wait(workers, timeout)
        me = object()
        try:
            self.schedule.waiters.add(me)
            self._changed.wait_for(lambda: len(self._roster.identities) >= workers, timeout)
        finally:
            self.schedule.waiters.discard(me)
        return max(0, workers - len(self._roster.identities))
