"""Find workers, detect lost workers, and select the queue for a task."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from wbengine import _names
from wbengine import exceptions as exc
from wbengine._clock import SYSTEM, Clock
from wbengine.concurrency import conditions
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery import roster
from wbengine.engines.worker_based.discovery.roster import (
    NO_IDENTITY,
    Roster,
    TopicWorker,
    task_name,
)
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life, notices
from wbengine.transports import _routing as routing


def check_wait(workers: Any, timeout: Any) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise TypeError(f"workers must be a whole number, got {workers!r:.80}")
    if workers <= 0:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, got {timeout!r:.80}")


LOG = logging.getLogger(__name__)

#: Clock difference above which a warning is logged.
MAX_CLOCK_DIFFERENCE_SECONDS: Final = 30.0


class Clocks:
    """Logs, once for each worker, that its clock differs much from this host's clock.

    `missed(since, now)` returns the seconds in which this engine received nothing. Messages that
    waited in that time have old timestamps.
    """

    def __init__(self, missed: Callable[[float, float], float]) -> None:
        self._missed = missed
        self._reported: set[Any] = set()

    def check(self, identity: Any, reported_time: float | None, clock: Clock) -> None:
        if reported_time is None or identity in self._reported:
            return
        ahead = reported_time - clock.time()
        now = clock.monotonic()
        if abs(ahead) <= MAX_CLOCK_DIFFERENCE_SECONDS or self._missed(now - 2 * abs(ahead), now):
            return
        if len(self._reported) >= roster.MAX_WORKERS:
            return
        self._reported.add(identity)
        LOG.warning(
            "the clock of worker %s is %.0f s %s: without a ledger, the worker decides by"
            " this clock whether a task has expired",
            *(identity, abs(ahead), "ahead" if ahead > 0 else "behind"),
        )


_MAX_GAPS: Final = 64


class ReceptionGaps:
    """Records the times in which the engine received nothing or did not run.

    The engine sends echo messages to itself. If an echo is overdue, it receives nothing. All times
    are on the same clock.
    """

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_MAX_GAPS)
        self._echo: float | None = None

    def echo(self, now: float, patience: float) -> bool:
        """Record an echo; return True if it ends a gap."""
        previous, self._echo = self._echo, now
        if previous is None or now - previous <= patience:
            return False
        self._add_gap(previous, now)
        return True

    def record_pause(self, start: float, end: float) -> None:
        self._add_gap(start, end)

    def is_deaf(self, now: float, patience: float) -> bool:
        """Return whether there was no echo in the last `patience` seconds."""
        return self._echo is None or now - self._echo > patience

    def missed(self, since: float, now: float, patience: float) -> float:
        """Return the seconds since `since` in which the engine received nothing."""
        seconds = sum(max(0.0, min(end, now) - max(start, since)) for start, end in self._gaps)
        if self._echo is not None and now - self._echo > patience:
            seconds += max(0.0, now - max(self._echo, since))
        return seconds

    def _add_gap(self, start: float, end: float) -> None:
        if self._gaps:
            start = max(start, self._gaps[-1][1])  # Gaps may overlap: a pause also delays the echo.
        if end > start:
            self._gaps.append((start, end))


#: Number of missing heartbeats after which a worker with a known period is lost.
SILENT_PERIODS: Final = 3

#: Default interval between two NOTIFY of the engine, in seconds.
BEAT_PERIODICITY: Final = 5.0

#: Minimum interval between two NOTIFY of the engine, in seconds for each known worker.
#: RELAXED_FACTOR multiplies the interval while no result is urgent.
SECONDS_PER_WORKER: Final = 0.01
RELAXED_FACTOR: Final = 6

#: Interval between two NOTIFY in seconds while `urgent` is set, or for a number of periods after an
#: outage.
URGENT_SECONDS: Final = 1.0
_AFTERMATH_PERIODS: Final = 3

#: Additional seconds for the first reply of a new worker.
_GRACE_SECONDS: Final = 1.0

#: States in which a worker accepts no requests, even with free slots.
_RESTING_STATES: Final = (life.STARTED, life.SUSPENDED, life.DRAINING)

MAX_PERIOD_SECONDS: Final = 60.0


class ProxyWorkerFinder:
    """Finds workers, processes their announcements and heartbeats, and detects lost workers.

    Thread-safe. The cost of `queue_for` does not depend on the number of workers. All times are on
    the monotonic clock of this process. Silence of a worker counts only while this engine receives
    its own echo. So neither an outage of the broker nor a pause of this process makes a worker
    look lost.

    The engine sends a NOTIFY, to which all workers reply. While `hurry` is set, it does so once
    per period (less often for large fleets), otherwise less often. Workers announce start, stop
    and changes without it.

    :param exchange: the exchange of the workers' queues; None: any announced queue is accepted.
    :param on_change: called without the lock as `on_change(names, lost)`, with the names of
        task classes that gained a worker, and the workers that stopped or were lost.
    :param on_ids: called as `on_ids(identity, ids)` with the requests of this engine that a worker
        runs.
    :param holds: `holds(identity)` returns whether a worker has requests of this engine. Only such
        workers send heartbeats; the others only reply to NOTIFY.
    :param served: `served(topic)` returns whether the queue has a consumer. Busy workers of
        TaskFlow send nothing.
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
        exchange: str | None = None,
        on_change: Callable[[set[str], list[TopicWorker]], None] | None = None,
        on_ids: Callable[[str, Collection[str]], None] | None = None,
        holds: Callable[[str], bool] | None = None,
        served: Callable[[str], bool] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.uuid = uuid
        self._proxy = proxy
        self._topics = self.wanted = tuple(topics)
        self._patterns = tuple(
            _names.check_pattern("topic", topic).split(".") for topic in self._topics
        )
        self._beat_periodicity = beat_periodicity
        self._expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self._interop = interop
        self._exchange = exchange
        self._on_change = on_change
        self._on_ids = on_ids
        self._holds = holds
        self._served = served
        self._clock = clock
        #: Whether recent reports of workers are needed now.
        self.hurry = True
        #: Whether a component waits for the next reports.
        self.urgent = False
        # Queue names that were refused and logged.
        self._refused: set[str] = set()
        self.clocks: Clocks | None = None
        self._lock = threading.RLock()
        self._changed = conditions.Condition(self._lock)
        # One entry for each waiting thread.
        self._waiters: set[object] = set()
        # Delay after which an iteration of the engine's loop is late.
        self._late_after = max(2.0, self.period)
        self._channel: Any = None
        # Until this time after an outage, NOTIFY is sent more often.
        self._aftermath_until = -math.inf
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._roster = Roster()
            self._is_full = False
            self._reception = ReceptionGaps()
            self._messages_processed = 0
            self._unannounced: dict[str, float] = {}
            # Time of the last report of each worker about a request.
            self._last_replies: dict[Any, float] = {}
            self._last_iteration = math.inf
            self._last_notify_at: float | None = None
            # Times of the last NOTIFY that were at least a period apart.
            self._notify_times: deque[float] = deque(maxlen=SILENT_PERIODS + 1)
            self._last_pinged: float | None = None

    @property
    def period(self) -> float:
        """The heartbeat period that this engine requests, in seconds."""
        if self._expiry is None:
            return self._beat_periodicity
        return min(self._beat_periodicity, max(notices.MIN_PERIOD_SECONDS, self._expiry / 4))

    @property
    def patience(self) -> float:
        """Seconds after which a worker without any message is lost."""
        return math.inf if self._expiry is None else SILENT_PERIODS * self.period

    def slots(self, queue: str) -> int:
        with self._lock:
            members = self._roster.queues.get(queue)
            return members.slots if members is not None else 0

    def free(self, queue: str) -> int:
        """Return the number of free slots in the last reports of the workers of `queue`.

        Workers without a report in `SILENT_PERIODS` intervals have none.
        """
        with self._lock:
            members = self._roster.queues.get(queue)
            if members is None:
                return 0
            return members.free_of(self._clock.monotonic() - SILENT_PERIODS * self._interval)

    def uses_extended_protocol(self, queue: str) -> bool:
        """Return whether the workers of `queue` use the extended protocol."""
        with self._lock:
            members = self._roster.queues.get(queue)
            return members is not None and members.identified_count > 0

    def queue_for(self, task_cls: str, waiting: Callable[[str], int]) -> str | None:
        """Return the queue with the most slots per waiting request for `task_cls`, or None.

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
                score = (2 * members.slots - members.busy) / (waiting(name) + 1)
                if score > best_score or (
                    score == best_score and self._rank(name) < self._rank(best)
                ):
                    best_score, best = score, name
            return best

    def queues(self, task_cls: str) -> list[str]:
        with self._lock:
            return list(self._roster.tasks.get(task_cls, ()))

    # Questions and replies.

    @property
    def _interval(self) -> float:
        pace = max(self.period, SECONDS_PER_WORKER * len(self._roster))
        # Only one of several plain peers on a topic receives each NOTIFY.
        often = self.hurry or self._waiters or self._interop
        return pace if often else RELAXED_FACTOR * pace

    @property
    def _pause(self) -> float:
        if self._interop or not (self.urgent or self._clock.monotonic() < self._aftermath_until):
            return self._interval
        return max(min(URGENT_SECONDS, self.period), SECONDS_PER_WORKER * len(self._roster))

    def maybe_publish(self) -> bool:
        """Publish NOTIFY to all workers, and the echo, if they are due. Call this at any rate.

        :returns: whether NOTIFY was published.
        """
        now = self._clock.monotonic()
        headers = notices.Query(self.uuid, self.period).headers()
        due = self._last_notify_at is None or now - self._last_notify_at >= self._pause
        due = due or (
            now - (self._last_notify_at or now) >= self.period and self._awaits_report(now)
        )
        if due:
            self._last_notify_at = now
            if not self._notify_times or now - self._notify_times[-1] >= self.period:
                self._notify_times.append(now)
            for key in self._topics if self._interop else (env.ALL_WORKERS,):
                self._proxy.publish(
                    pr.Notify(), key, reply_to=self.uuid, headers=headers, first=True
                )
        if self._last_pinged is None or now - self._last_pinged >= self.period:
            self._last_pinged = now
            echo = notices.Query(None, self.period, self.uuid)
            self._proxy.publish(pr.Notify(), self.uuid, headers=echo.headers(), first=True)
        return due

    def _awaits_report(self, now: float) -> bool:
        """Return whether an expected report of a worker is more than a period late."""
        with self._lock:
            return bool(self._unannounced) or any(
                now - worker.last_seen > (worker.period or math.inf) and self._must_report(worker)
                for worker in self._roster
            )

    def _must_report(self, worker: TopicWorker) -> bool:
        return self._holds is not None and self._holds(worker.identity)

    def next_due(self) -> float | None:
        if self._last_notify_at is None or self._last_pinged is None:
            return None
        return min(self._last_notify_at + self._pause, self._last_pinged + self.period)

    def process_response(self, data: Any, message: Any) -> None:
        """Process a validated NOTIFY; `message` is any object with `headers`."""
        notify = env.Envelope(pr.NOTIFY, data, headers=message.headers or {})
        if data.get("topic") is None:  # This is the echo, or the NOTIFY of another engine.
            if notices.Query.from_message(notify).echo == self.uuid:
                self.record_echo()
            return
        if not self._accepts_topic(data["topic"]):
            return
        try:
            heartbeat = notices.Heartbeat.from_message(notify)
        except exc.InvalidFormat as error:
            LOG.warning("ignored an announcement: %s", error)
            return
        if not self._owns_queue(heartbeat):
            return
        gained: set[str] = set()
        lost: list[TopicWorker] = []
        identity = NO_IDENTITY if self._interop else heartbeat.worker or NO_IDENTITY
        if self.clocks is not None:
            self.clocks.check(identity, heartbeat.sent_at, self._clock)
        with self._lock:
            self._messages_processed += 1
            if heartbeat.state == notices.STOPPED:
                lost = self._roster.leave(identity) or self._forget_unannounced(identity)
                self._last_replies.pop(identity, None)
                for worker in lost:
                    worker.announced_end = True
            else:
                gained = self._update_worker(identity, heartbeat)
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
        headers = notices.Query(self.uuid, self.period).headers()
        self._proxy.publish(pr.Notify(), identity, reply_to=self.uuid, headers=headers, first=True)
        with self._lock:
            for worker in self._roster.topics_of(identity):
                worker.period = self.period
                worker.last_seen += _GRACE_SECONDS

    def _accepts_topic(self, topic: str) -> bool:
        words = topic.split(".")
        return not self._patterns or any(routing.matches(p, words) for p in self._patterns)

    def _owns_queue(self, heartbeat: notices.Heartbeat) -> bool:
        """Return whether the announced queue has the name for its topic and tasks.

        Requests are sent to no other queue. Workers of TaskFlow announce none.
        """
        if self._interop or self._exchange is None or not heartbeat.tasks:
            return True
        queue, topic = heartbeat.queue, heartbeat.topic
        if queue == env.queue_name(self._exchange, topic, heartbeat.tasks):
            return True
        name = f"{queue or topic:.80}"
        is_new = name not in self._refused and len(self._refused) < roster.MAX_WORKERS
        if is_new:
            self._refused.add(name)
        level = logging.WARNING if is_new else logging.DEBUG
        LOG.log(level, "ignored an announcement: queue %r does not match its topic and tasks", name)
        return False

    def _rank(self, queue: str) -> int:
        # All workers of a queue have the same topic.
        topic = next(iter(self._roster.queues[queue].members.values())).topic
        words = topic.split(".")
        ranks = (i for i, p in enumerate(self._patterns) if routing.matches(p, words))
        return next(ranks, 0)

    def _update_worker(self, identity: Any, heartbeat: notices.Heartbeat) -> set[str]:
        topic, beat = heartbeat.topic, heartbeat.state == notices.BEAT
        worker = self._roster.find(identity, topic)
        tasks = tuple(dict.fromkeys(heartbeat.tasks))
        if worker is None and beat:
            # Its reply to the next NOTIFY contains its tasks.
            if identity in self._unannounced:
                self._unannounced[identity] = self._clock.monotonic()
            return set()
        if worker is None or (not beat and tasks != worker.tasks):
            previous, worker = worker, TopicWorker(topic, tasks, identity)
            worker.joined = self._clock.monotonic()
            if previous is not None:
                worker.joined = previous.joined
                self._roster.remove(previous)
            worker.queue = heartbeat.queue or topic
            worker.software = heartbeat.software
            if not self._roster.add(worker):
                if previous is not None:
                    self._roster.add(previous)
                self._ignore_worker(worker)
                return set()
            self._unannounced.pop(identity, None)
            gained = set(tasks)
        else:
            gained = set()
        now = worker.last_seen = self._clock.monotonic()
        worker.ledger = heartbeat.ledger or worker.ledger
        worker.period = min(MAX_PERIOD_SECONDS, heartbeat.period or 0.0) or worker.period
        if heartbeat.life is not None:
            self._roster.describe(worker, heartbeat.life)
        slots = max(1, worker.slots if heartbeat.slots is None else heartbeat.slots)
        running = worker.running if heartbeat.running is None else heartbeat.running
        if worker.life is not None and worker.life.state in _RESTING_STATES:
            running = max(running, slots)  # This worker accepts no requests.
        self._roster.update(worker, slots, running)
        has_load = heartbeat.running is not None  # Plain peers do not report it.
        worker.report(now, worker.period or self.period, has_load and running < slots)
        return gained

    def _ignore_worker(self, worker: TopicWorker) -> None:
        if not self._is_full:
            self._is_full = True
            LOG.warning(
                "too many workers: %r and all further workers are ignored (%d are in use;"
                " limits: %d workers, %d bytes of names)",
                *(worker, len(self._roster), roster.MAX_WORKERS, roster.MAX_NAME_BYTES),
            )

    # Detection of lost workers.

    def watch(self, identity: str, silence: float = 0.0) -> None:
        """Watch a worker that reported a request `silence` seconds ago.

        If it never announces itself, it is lost after `patience` seconds of silence.
        """
        with self._lock:
            now = self._clock.monotonic()
            if identity in self._roster.identities:
                self._last_replies[identity] = now - silence
            elif self._expiry is not None:
                self._unannounced[identity] = now - silence

    def _forget_unannounced(self, identity: Any) -> list[TopicWorker]:
        was_watched = self._unannounced.pop(identity, None) is not None
        return [TopicWorker("", (), identity)] if was_watched else []

    def record_echo(self) -> None:
        """Record an echo. After a gap, restart the grace periods of all workers."""
        now = self._clock.monotonic()
        with self._lock:
            if self._reception.echo(now, self._gap_seconds):
                self._restart_grace(now)

    def record_iteration(self, now: float, channel: Any = None) -> None:
        """Record an iteration of the engine's loop, which listens on `channel`.

        A late iteration means that the engine was paused; another channel means that the broker was
        unavailable. In both cases the silence of workers does not count.
        """
        previous, self._last_iteration = self._last_iteration, now
        channel_changed, self._channel = self._channel is not channel, channel
        if now - previous > self._late_after or (channel_changed and previous < now):
            self._aftermath_until = now + _AFTERMATH_PERIODS * self.period
            with self._lock:
                self._reception.record_pause(previous, now)
                self._restart_grace(now)

    def _restart_grace(self, now: float) -> None:
        for worker in self._roster:
            worker.last_seen = now
        self._unannounced = dict.fromkeys(self._unannounced, now)

    def clean(self) -> int:
        """Remove workers that are silent for too long; return the number of processes."""
        if self._expiry is None:
            return 0
        now = self._clock.monotonic()
        with self._lock:
            if self._reception.is_deaf(now, self._gap_seconds):
                return 0
            silent = self._roster.silent(now, self._is_silent)
            if not (silent or self._unannounced):
                return 0
        busy = self._served_topics(silent)
        with self._lock:
            for worker in self._roster:
                if worker.topic in busy:  # Check it again after one period.
                    worker.last_seen = now - self._expiry + self.period
            silent = self._roster.silent(now, self._is_silent)
            lost = [worker for identity in silent for worker in self._roster.leave(identity)]
            self._last_replies = {k: v for k, v in self._last_replies.items() if k not in silent}
            for worker in lost:
                LOG.warning("lost %r: no message for %.1f s", worker, now - worker.last_seen)
            for identity, seen in tuple(self._unannounced.items()):
                if now - seen > self.patience:
                    LOG.warning("lost worker %s, which never announced itself", identity)
                    lost += self._forget_unannounced(identity)
            if lost:
                self._changed.notify_all()
        self._notify(set(), lost)
        return len(silent)

    def _served_topics(self, silent: Collection[Any]) -> set[str]:
        """Return the topics of silent plain peers with a consumer. Cost: a round trip for each."""
        if self._served is None or not (self._interop and silent):
            return set()
        silent_topics = [topic for topic in self.topics() if roster.anonymous_key(topic) in silent]
        return {topic for topic in silent_topics if self._served(topic)}

    def _is_silent(self, worker: TopicWorker, now: float) -> bool:
        pace = worker.period
        if pace is not None and now - worker.last_seen <= SILENT_PERIODS * pace:
            return False  # The usual case, checked first.
        seen = max(worker.last_seen, self._last_replies.get(worker.identity, -math.inf))
        if pace is None:
            assert self._expiry is not None
            return now - seen > self._expiry
        if not self._must_report(worker):  # It only replies to NOTIFY.
            return len(self._notify_times) > SILENT_PERIODS and seen < self._notify_times[0]
        return now - seen > SILENT_PERIODS * pace

    def _notify(self, gained: set[str], lost: list[TopicWorker]) -> None:
        if self._on_change is not None and (gained or lost):
            self._on_change(gained, lost)

    # Queries.

    @property
    def _gap_seconds(self) -> float:
        return 2 * self.period

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

    def rounds(self, queue: str, since: float) -> int:
        """Return how many times (at most 2) every live worker has reported since `since`.

        Only the workers of `queue` count that joined before. Without workers, return 0.
        """
        with self._lock:
            members = self._roster.queues.get(queue)
            return members.rounds(since) if members is not None else 0

    def idle_rounds(self, queue: str, since: float) -> int:
        """Return how many times (at most 2) every live worker has reported a free slot.

        Reports before `since` are ignored. A report without a free slot resets the count.
        """
        with self._lock:
            members = self._roster.queues.get(queue)
            return members.idle_rounds(since) if members is not None else 0

    def missed(self, since: float, now: float) -> float:
        with self._lock:
            return self._reception.missed(since, now, self._gap_seconds)

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
            self._waiters.add(me)
            self._changed.wait_for(lambda: len(self._roster.identities) >= workers, timeout)
        finally:
            self._waiters.discard(me)
        return max(0, workers - len(self._roster.identities))
