"""Finds workers: asks, listens, notices when they fall silent; and knows the queue for a task."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from wbengine import _names
from wbengine._clock import SYSTEM, Clock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.discovery import roster
from wbengine.engines.worker_based.discovery.roster import (
    NO_IDENTITY,
    Roster,
    TopicWorker,
    task_name,
)
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life
from wbengine.transports import _routing as routing


def check_wait(workers: Any, timeout: Any) -> None:
    """See that somebody can wait for so many workers, for so long."""
    if not isinstance(workers, int) or isinstance(workers, bool):
        raise TypeError(f"workers must be a whole number, not {workers!r:.80}")
    if workers <= 0:
        raise ValueError(f"can only wait for one worker or more, not {workers}")
    if timeout is not None and not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds or None, not {timeout!r:.80}")


LOG = logging.getLogger(__name__)

#: Seconds that the clocks of two hosts may differ before it is worth a line in the log.
MOST_APART: Final = 30.0


class Clocks:
    """Name workers in the log, once each, whose clocks differ much from this host's.

    `missed(since, now)` tells how long nothing could be heard: what waited somewhere was written
    long before it came.
    """

    def __init__(self, missed: Callable[[float, float], float]) -> None:
        self._missed = missed
        self._named: set[Any] = set()

    def check(self, identity: Any, notify: env.Envelope, clock: Clock) -> None:
        """Look at the time that a worker tells."""
        told = notify.seconds(env.WBE_TIME)
        if told is None or identity in self._named:
            return
        ahead = told - clock.time()
        now = clock.monotonic()
        if abs(ahead) <= MOST_APART or self._missed(now - 2 * abs(ahead), now):
            return
        if len(self._named) >= roster.MOST_WORKERS:
            return
        self._named.add(identity)
        LOG.warning(
            "the clock of worker %s is %.0f s %s: without a ledger, the time after which a task is"
            " not to be started any more is read there",
            *(identity, abs(ahead), "ahead" if ahead > 0 else "behind"),
        )


#: So many gaps are remembered.
_GAPS: Final = 64


class Hearing:
    """Echoes of what the engine told itself, and the times in which it was deaf, or slept.

    While an echo is overdue it is deaf.  Times are one clock's.
    """

    def __init__(self) -> None:
        self._gaps: deque[tuple[float, float]] = deque(maxlen=_GAPS)
        self._echo: float | None = None

    def echo(self, now: float, patience: float) -> bool:
        """It heard itself; True when that ends a time in which it did not."""
        before, self._echo = self._echo, now
        if before is None or now - before <= patience:
            return False
        self._note(before, now)
        return True

    def sleep(self, start: float, end: float) -> None:
        """Its loop did not turn in that time, and should have."""
        self._note(start, end)

    def is_deaf(self, now: float, patience: float) -> bool:
        """Whether it has not heard itself yet, or not lately."""
        return self._echo is None or now - self._echo > patience

    def missed(self, since: float, now: float, patience: float) -> float:
        """Seconds between `since` and `now` in which it could not hear."""
        seconds = sum(max(0.0, min(end, now) - max(start, since)) for start, end in self._gaps)
        if self._echo is not None and now - self._echo > patience:
            seconds += max(0.0, now - max(self._echo, since))
        return seconds

    def _note(self, start: float, end: float) -> None:
        if self._gaps:
            start = max(start, self._gaps[-1][1])  # two gaps may be one, seen twice
        if end > start:
            self._gaps.append((start, end))


#: A worker that announces a period is lost after this many periods of silence.
SILENT_PERIODS: Final = 3

#: Seconds between two questions of a finder.
BEAT_PERIODICITY: Final = 5.0

#: Seconds between two questions for each worker that is known, so that a large fleet is not kept
#: busy with answers; and how much longer it is as long as nobody needs to know.
SECONDS_PER_WORKER: Final = 0.01
AT_EASE: Final = 6

#: Seconds between two questions while it is urgent, and for so many periods after an outage.
URGENT: Final = 1.0
_AFTERMATH: Final = 3

#: Seconds more that a worker has, which has just begun, for its first answer.
_GRACE: Final = 1.0

#: What a worker takes nothing in, however few tasks it runs.
_RESTING: Final = (life.STARTED, life.SUSPENDED, life.DRAINING)

#: Whatever a worker claims, it is not waited for longer than three times so many seconds.
MOST_PERIOD: Final = 60.0


class ProxyWorkerFinder:
    """Ask for workers, listen to what they say of themselves, and notice when they fall silent.

    Answers are indexed by task class and queue, so that finding a queue for a task does not depend
    on how many workers there are.  Thread-safe.  All times are this process's monotonic clock;
    silence counts only while this engine hears itself (`hear_echo`), so that neither an outage of
    the broker nor a pause of this process makes a worker look lost.

    `on_change(names, lost)` is called (outside the lock) with the task class names that gained a
    worker, and the workers that stopped or were lost; `on_ids(identity, ids)` with the requests of
    this engine that a worker says it runs.  `holds(identity)` tells whether a worker owes an answer
    here: those who do beat each period, the others are heard of when they are asked.  `served` of a
    topic tells whether somebody takes from its queue: TaskFlow's workers are silent when busy.
    `exchange` is where workers take requests from; None: whatever queue they announce is theirs.

    While `hurry` is set they are asked each period (of a large fleet, less often), else six times
    as seldom: whoever starts, stops or changes tells so to all by himself.
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
        #: Whether it matters now what workers say of themselves.
        self.hurry = True
        #: Whether somebody waits for what they say next: they are asked more often than they beat.
        self.urgent = False
        # Names of queues that were announced and are none for their tasks: each is logged once.
        self._refused: set[str] = set()
        #: Who looks whether their clocks are right, if anybody does.
        self.clocks: Clocks | None = None
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # How many wait for workers.
        self._waiters = 0
        # After how many seconds the loop is late.
        self._late = max(2.0, self.period)
        self._channel: Any = None
        # Until when it matters what became of requests while nobody was heard.
        self._aftermath = -math.inf
        self.reset()

    def reset(self) -> None:
        """Forget everything, as if just made."""
        with self._lock:
            self._roster = Roster()
            self._is_full = False
            self._hearing = Hearing()
            self._messages_processed = 0
            self._strangers: dict[str, float] = {}
            # When known workers last told something of a request.
            self._answered: dict[Any, float] = {}
            # When the loop came by last.
            self._turned = math.inf
            self._last_asked: float | None = None
            # When all were asked, the last times that are a period apart.
            self._asked: deque[float] = deque(maxlen=SILENT_PERIODS + 1)
            self._last_pinged: float | None = None

    # What is known.

    @property
    def period(self) -> float:
        """Seconds between two beats that this engine asks its workers for."""
        if self._expiry is None:
            return self._beat_periodicity
        return min(self._beat_periodicity, max(env.LEAST_PERIOD, self._expiry / 4))

    @property
    def patience(self) -> float:
        """Seconds of silence after which a worker is lost that was never heard of; infinite where
        silence is no loss.
        """
        return math.inf if self._expiry is None else SILENT_PERIODS * self.period

    def slots(self, queue: str) -> int:
        """How many tasks the live workers of `queue` run at once; 0 when there are none."""
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.slots if found is not None else 0

    def free(self, queue: str) -> int:
        """How many of those slots were free when the workers last spoke.

        Who was asked, and has not spoken for as long as makes others lost, has none.
        """
        with self._lock:
            found = self._roster.queues.get(queue)
            if found is None:
                return 0
            return found.free_of(self._clock.monotonic() - SILENT_PERIODS * self._interval)

    def speaks(self, queue: str) -> bool:
        """Whether the workers of `queue` speak more than plain TaskFlow."""
        with self._lock:
            found = self._roster.queues.get(queue)
            return found is not None and found.named > 0

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
            known, most, best = self._roster.queues, -1.0, ""
            for name in queues:
                found = known[name]
                appeal = (2 * found.slots - found.busy) / (waiting(name) + 1)
                if appeal > most or (appeal == most and self._rank(name) < self._rank(best)):
                    most, best = appeal, name
            return best

    def queues(self, task_cls: str) -> list[str]:
        """All queues whose live workers offer `task_cls`."""
        with self._lock:
            return list(self._roster.tasks.get(task_cls, ()))

    # Asking and hearing.

    @property
    def _interval(self) -> float:
        """Seconds between two questions: many workers are asked less often."""
        pace = max(self.period, SECONDS_PER_WORKER * len(self._roster))
        # Of several plain peers on a topic one hears each question.
        often = self.hurry or self._waiters or self._interop
        return pace if often else AT_EASE * pace

    @property
    def _pause(self) -> float:
        if self._interop or not (self.urgent or self._clock.monotonic() < self._aftermath):
            return self._interval
        return max(min(URGENT, self.period), SECONDS_PER_WORKER * len(self._roster))

    def maybe_publish(self) -> bool:
        """Ask who is there, unless it was asked a moment ago; call it as often as is convenient.

        Also speaks to itself, each period; returns whether the question was asked.
        """
        now = self._clock.monotonic()
        headers = {env.WBE_VERSION: env.VERSION, env.WBE_PERIOD: self.period}
        due = self._last_asked is None or now - self._last_asked >= self._pause
        due = due or (now - (self._last_asked or now) >= self.period and self._worries(now))
        if due:
            self._last_asked = now
            if not self._asked or now - self._asked[-1] >= self.period:
                self._asked.append(now)
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

    def _worries(self, now: float) -> bool:
        """Whether somebody owes an answer, and has not been heard of in the last period."""
        with self._lock:
            return bool(self._strangers) or any(
                now - worker.last_seen > (worker.period or math.inf) and self._owes(worker)
                for worker in self._roster
            )

    def _owes(self, worker: TopicWorker) -> bool:
        return self._holds is not None and self._holds(worker.identity)

    def next_due(self) -> float | None:
        """When `maybe_publish` has something to publish next, on the finder's clock."""
        if self._last_asked is None or self._last_pinged is None:
            return None
        return min(self._last_asked + self._pause, self._last_pinged + self.period)

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
        if not (self._listens_to(topic) and _sound(notify, topic) and self._owns(notify, topic)):
            return
        gained: set[str] = set()
        lost: list[TopicWorker] = []
        identity = NO_IDENTITY if self._interop else notify.text(env.WBE_WORKER) or NO_IDENTITY
        if self.clocks is not None:
            self.clocks.check(identity, notify, self._clock)
        with self._lock:
            self._messages_processed += 1
            state = headers.get(env.WBE_STATE)
            if state == env.STOPPED:
                lost = self._roster.leave(identity) or self._estrange(identity)
                self._answered.pop(identity, None)
                for worker in lost:
                    worker.goodbye = True
            else:
                gained = self._hear(identity, topic, notify, beat=state == env.BEAT)
            self._changed.notify_all()
        self._tell(gained, lost)
        if gained and isinstance(identity, str):
            self._agree(identity, notify)
        ids = headers.get(env.WBE_IDS)
        if self._on_ids is not None and isinstance(ids, list) and isinstance(identity, str):
            self._on_ids(identity, {name for name in ids if isinstance(name, str)})

    def _agree(self, identity: str, notify: env.Envelope) -> None:
        """A worker that is new may not know yet how often it should be heard of.

        It answers at once: if it does not, its silence counts as that of one who knows.
        """
        if (notify.seconds(env.WBE_PERIOD) or 0.0) <= self.period:
            return
        headers = {env.WBE_VERSION: env.VERSION, env.WBE_PERIOD: self.period}
        self._proxy.publish(pr.Notify(), identity, reply_to=self.uuid, headers=headers, first=True)
        with self._lock:
            for worker in self._roster.topics_of(identity):
                worker.period = self.period
                worker.last_seen += _GRACE

    def _listens_to(self, topic: str) -> bool:
        words = topic.split(".")
        return not self._patterns or any(routing.matches(p, words) for p in self._patterns)

    def _owns(self, notify: env.Envelope, topic: str) -> bool:
        """Whether a worker announces the queue that is that of its topic and its tasks: requests go
        to no other one, whoever asks for them.  TaskFlow's workers announce none with each beat.
        """
        if self._interop or self._exchange is None or not notify.body["tasks"]:
            return True
        queue = notify.text(env.WBE_QUEUE)
        if queue == env.queue_name(self._exchange, topic, notify.body["tasks"]):
            return True
        name = f"{queue or topic:.80}"
        is_new = name not in self._refused and len(self._refused) < roster.MOST_WORKERS
        if is_new:
            self._refused.add(name)
        level = logging.WARNING if is_new else logging.DEBUG
        LOG.log(level, "ignored an announcement: %r is no queue for its tasks", name)
        return False

    def _rank(self, queue: str) -> int:
        # A queue belongs to one topic; any of its workers can say which.
        topic = next(iter(self._roster.queues[queue].members.values())).topic
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
            known, worker = worker, TopicWorker(topic, tasks, identity)
            worker.joined = self._clock.monotonic()
            if known is not None:
                worker.joined = known.joined
                self._roster.remove(known)
            worker.queue = notify.text(env.WBE_QUEUE) or topic
            worker.software = notify.text(env.WBE_SOFTWARE)
            if not self._roster.add(worker):
                if known is not None:
                    self._roster.add(known)
                self._overlook(worker)
                return set()
            self._strangers.pop(identity, None)
            gained = set(tasks)
        else:
            gained = set()
        now = worker.last_seen = self._clock.monotonic()
        worker.ledger = notify.text(env.WBE_LEDGER) or worker.ledger
        worker.period = min(MOST_PERIOD, notify.seconds(env.WBE_PERIOD) or 0.0) or worker.period
        told_life = life.Life.from_header(notify.headers.get(env.WBE_LIFE))
        if told_life is not None:
            self._roster.describe(worker, told_life)
        slots = max(1, notify.number(env.WBE_SLOTS, worker.slots))
        running = notify.number(env.WBE_RUNNING, worker.running)
        if worker.life is not None and worker.life.state in _RESTING:
            running = max(running, slots)  # a slot that takes nothing is not free
        self._roster.update(worker, slots, running)
        told = env.WBE_RUNNING in notify.headers  # plain peers do not
        worker.report(now, worker.period or self.period, told and running < slots)
        return gained

    def _overlook(self, worker: TopicWorker) -> None:
        """There is no room for one more; said once."""
        if not self._is_full:
            self._is_full = True
            LOG.warning(
                "there is no room for %r beside the %d workers that are known: it is not used, nor"
                " are others that come (at most %d workers, and %d bytes of the names they tell)",
                *(worker, len(self._roster), roster.MOST_WORKERS, roster.MOST_BYTES),
            )

    # Noticing silence.

    def watch(self, identity: str, silence: float = 0.0) -> None:
        """Somebody holds work, and said so `silence` seconds ago: they are heard of now.

        If no announcement of theirs was heard, their silence counts too: who is not heard of within
        three periods is told as lost.
        """
        with self._lock:
            now = self._clock.monotonic()
            if identity in self._roster.identities:
                self._answered[identity] = now - silence
            elif self._expiry is not None:
                self._strangers[identity] = now - silence

    def _estrange(self, identity: Any) -> list[TopicWorker]:
        known = self._strangers.pop(identity, None) is not None
        return [TopicWorker("", (), identity)] if known else []

    def hear_echo(self) -> None:
        """This engine heard itself: after a gap, all workers get a full grace period."""
        now = self._clock.monotonic()
        with self._lock:
            if self._hearing.echo(now, self._patience):
                self._forgive(now)

    def turn(self, now: float, channel: Any = None) -> None:
        """This engine's loop comes by, and listens on `channel`.  If it is late by more than a
        beat, the engine slept, and if it is another channel, the broker was away: that others
        seemed silent means nothing.
        """
        before, self._turned = self._turned, now
        other, self._channel = self._channel is not channel, channel
        if now - before > self._late or (other and before < now):
            self._aftermath = now + _AFTERMATH * self.period
            with self._lock:
                self._hearing.sleep(before, now)
                self._forgive(now)

    def _forgive(self, now: float) -> None:
        for worker in self._roster:
            worker.last_seen = now
        self._strangers = dict.fromkeys(self._strangers, now)

    def clean(self) -> int:
        """Forget the workers that fell silent; return how many processes that were."""
        if self._expiry is None:
            return 0
        now = self._clock.monotonic()
        with self._lock:
            if self._hearing.is_deaf(now, self._patience):
                return 0
            silent = self._roster.silent(now, self._silent)
            if not (silent or self._strangers):
                return 0
        busy = self._busy(silent)
        with self._lock:
            for worker in self._roster:
                if worker.topic in busy:  # it is looked at again in a while
                    worker.last_seen = now - self._expiry + self.period
            silent = self._roster.silent(now, self._silent)
            lost = [worker for identity in silent for worker in self._roster.leave(identity)]
            self._answered = {k: v for k, v in self._answered.items() if k not in silent}
            for worker in lost:
                LOG.warning("lost %r: silent for %.1f s", worker, now - worker.last_seen)
            for identity, seen in tuple(self._strangers.items()):
                if now - seen > self.patience:
                    LOG.warning("lost worker %s, which never announced itself", identity)
                    lost += self._estrange(identity)
            if lost:
                self._changed.notify_all()
        self._tell(set(), lost)
        return len(silent)

    def _busy(self, silent: Collection[Any]) -> set[str]:
        """The topics of silent plain peers that somebody takes from.  Costs a round trip each."""
        if self._served is None or not (self._interop and silent):
            return set()
        asked = [topic for topic in self.topics() if roster.nameless(topic) in silent]
        return {topic for topic in asked if self._served(topic)}

    def _silent(self, worker: TopicWorker, now: float) -> bool:
        pace = worker.period
        if pace is not None and now - worker.last_seen <= SILENT_PERIODS * pace:
            return False  # as most are, of thousands
        seen = max(worker.last_seen, self._answered.get(worker.identity, -math.inf))
        if pace is None:
            assert self._expiry is not None
            return now - seen > self._expiry
        if not self._owes(worker):  # it speaks when it is asked
            return len(self._asked) > SILENT_PERIODS and seen < self._asked[0]
        return now - seen > SILENT_PERIODS * pace

    def _tell(self, gained: set[str], lost: list[TopicWorker]) -> None:
        if self._on_change is not None and (gained or lost):
            self._on_change(gained, lost)

    # For whoever asks now and then.

    @property
    def _patience(self) -> float:
        """Seconds after which an echo, or a turn of the loop, is late."""
        return 2 * self.period

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

    def rounds(self, queue: str, since: float) -> int:
        """How often every live worker of `queue` that was there then has spoken since, at most
        twice; 0 when there are none.
        """
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.rounds(since) if found is not None else 0

    def idle_rounds(self, queue: str, since: float) -> int:
        """How often every live worker of `queue` reported a free slot since then, at most twice;
        whoever reported none after that begins anew.
        """
        with self._lock:
            found = self._roster.queues.get(queue)
            return found.idle_rounds(since) if found is not None else 0

    def missed(self, since: float, now: float) -> float:
        """Seconds of that time in which this engine did not hear itself, or slept."""
        with self._lock:
            return self._hearing.missed(since, now, self._patience)

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
        :raises TypeError: `workers` is no whole number, or `timeout` no number.
        """
        check_wait(workers, timeout)
        with self._lock:
            self._waiters += 1
            try:
                self._changed.wait_for(lambda: len(self._roster.identities) >= workers, timeout)
            finally:
                self._waiters -= 1
            return max(0, workers - len(self._roster.identities))


def _sound(notify: env.Envelope, topic: str) -> bool:
    """Whether the names in a worker's announcement may be used as such."""
    try:
        for header in (env.WBE_WORKER, env.WBE_QUEUE):
            if header in notify.headers:
                name = _names.check_label(header, notify.headers[header])
                if name in (env.ALL_WORKERS, env.ALL_ENGINES):
                    raise ValueError(f"{name} is the name of many, not of {header}")
        if notify.ours:
            _names.check_label("topic", topic)
    except ValueError as error:
        LOG.warning("ignored an announcement: %s", error)
        return False
    return True
