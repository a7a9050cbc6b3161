"""What is to be published, and the thread that publishes it."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import kombu

from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import lasting, topology, writing
from wbengine.engines.worker_based.connections.parcels import NOTHING, Errand, Parcel
from wbengine.engines.worker_based.messages import envelope as env

LOG = logging.getLogger(__name__)

#: Called with what was to be done of its kind.
Chore = Callable[[list[Any]], object]

#: At most so many parcels go out together, and about so many bytes.
MOST: Final = 64
_MOST_BYTES: Final = 1024 * 1024

#: Seconds that chores wait for more of their kind.
REST: Final = 0.02

#: Seconds that an unhurried parcel waits for a reason not to be sent.
UNHURRIED: Final = 0.005


class Outbox:
    """Publish parcels in order, on one connection of its own, for as long as it takes.

    What queues up while a write is under way goes out together with the next one: errands are run
    for all of it at once.  A parcel that a lost connection or a full disk interrupted is published
    again, in its turn, unless its errand wants to be told that this is `uncertain`.
    """

    def __init__(self, target: transports.Target, layout: topology.Topology, name: str) -> None:
        self._target = target
        self._layout = layout
        self._name = name
        self._closed = threading.Event()
        self._links = lasting.Lasting(target, self._closed)
        self._parcels: deque[Parcel] = deque()
        self._first: deque[Parcel] = deque()
        # By when they are due, on the monotonic clock.
        self._unhurried: deque[tuple[float, Parcel]] = deque()
        # What is to be done when nothing is to be published, and with what.
        self._chores: dict[Chore, list[Any]] = {}
        self._chore_count = 0
        self._chores_due = 0.0
        self._soon_due = 0.0
        self._flushing = 0
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        #: Called on the publisher's thread when there was no exchange, or no queue for something:
        #: perhaps what this side declared is gone, too.
        self.astray: Callable[[], None] = _nobody
        self._over = False
        self._busy = False
        # While the publisher's thread waits: what it writes with, which another one may borrow.
        self._spare: _Straight | None = None
        self._lent = False
        self._awake = True
        self._timed = False
        self._lost: BaseException | None = None
        self._thread: threading.Thread | None = None

    def put(self, parcel: Parcel, first: bool = False) -> None:
        with self._lock:
            (self._first if first else self._parcels).append(parcel)
            if not self._busy:
                self._wake()

    def put_now(self, parcel: Parcel) -> None:
        """As `put`; but where nothing else is to be published, this thread does it, at once.

        Saves the change of threads; for whoever has nothing else to do meanwhile, and holds no
        lock.
        """
        writer, parcels = None, [parcel]
        try:
            with self._lock:
                self._parcels.append(parcel)
                if self._spare is None or self._first:
                    if not self._busy:
                        self._wake()
                    return
                writer, self._spare = self._spare, None
                self._lent = self._busy = True
                parcels = self._together(MOST)
            self._deliver(writer, parcels)
        except self._links.errors as error:
            self._lost = error
        finally:
            if writer is not None:  # whatever ended it: an interruption (Ctrl-C) does, too
                self._take_back(writer, parcels)

    def put_soon(self, parcel: Parcel) -> float:
        """As `put`, but nobody is woken for it: whoever puts the next one sees to it, or `hasten`.

        When that is to be called.
        """
        with self._lock:
            self._parcels.append(parcel)
            if not self._soon_due:
                self._soon_due = time.monotonic() + UNHURRIED
            return self._soon_due

    def _take_back(self, writer: _Straight, parcels: Sequence[Parcel]) -> None:
        """What was lent; the publisher's thread does the rest, if there is any."""
        with self._lock:
            self._lent = self._busy = False
            if self._lost is None and all(p.sent for p in parcels) and not self._awake:
                self._spare = writer
            waits = self._first or self._parcels or self._flushing
            if self._awake or self._lost or waits or (self._chores and not self._timed):
                self._wake()

    def put_unhurried(self, parcel: Parcel) -> float:
        """Put a parcel some milliseconds later, unless it is withdrawn meanwhile.

        When `hasten` is to be called.
        """
        due = time.monotonic() + UNHURRIED
        self._unhurried.append((due, parcel))
        return due

    def hasten(self, now: float) -> float | None:
        """Put what is due of that; when to call it again, if at all.  Of one thread."""
        soon = self.hasten_soon(now)
        waiting = self._unhurried
        busy = bool(waiting)
        while waiting:
            due, parcel = waiting[0]
            if not parcel.withdrawn:
                if due > now:
                    return due if soon is None else min(due, soon)
                self.put(parcel)
            waiting.popleft()
        return now + UNHURRIED if busy else soon  # others will come: so nobody has to say so

    def hasten_soon(self, now: float) -> float | None:
        """As `hasten`, of what was put soon; any thread."""
        if not self._soon_due:
            return None
        with self._lock:
            if not self._parcels:
                self._soon_due = 0.0
            elif now >= self._soon_due:
                self._soon_due = 0.0
                if not self._busy:
                    self._wake()
            return self._soon_due or None

    def later(self, chore: Chore, *things: Any) -> None:
        """Do `chore([thing, ...])` on the publisher's thread, some milliseconds later; things that
        come meanwhile are done together.  What it raises is logged.
        """
        with self._lock:
            if not self._over:
                before, self._chore_count = self._chore_count, self._chore_count + len(things)
                if not before:
                    self._chores_due = time.monotonic() + REST
                self._chores.setdefault(chore, []).extend(things)
                if (not before or before < MOST <= self._chore_count) and not self._busy:
                    self._wake()
                return
        call(chore, list(things))

    def _chores_in(self) -> float | None:
        """Seconds until chores are to be done; None: there are none."""
        if not self._chores:
            return None
        if self._flushing or self._chore_count >= MOST:
            return 0.0
        return max(0.0, self._chores_due - time.monotonic())

    @property
    def behind(self) -> int:
        """How many parcels wait."""
        return len(self._parcels)

    def _wake(self) -> None:
        self._changed.notify_all()

    def flush(self, timeout: float | None) -> bool:
        """Wait until nothing is queued, being published, not yet confirmed, or left to be done."""
        with self._lock:
            self._flushing += 1
            try:
                if self._thread is not None:
                    self._wake()
                    self._changed.wait_for(lambda: self._idle or self._closed.is_set(), timeout)
            finally:
                self._flushing -= 1
            return self._idle

    @property
    def _idle(self) -> bool:
        return not (self._parcels or self._first or self._chores or self._busy)

    def start(self) -> None:
        """Begin to publish; idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._links.run,
                args=(self._publish,),
                name=f"wbengine-publisher-{self._name}",
                daemon=True,
            )
            self._thread.start()

    def close(self) -> None:
        """Publish nothing more."""
        self._closed.set()
        with self._lock:
            self._wake()

    def stop(self) -> None:
        """Close, wait for the thread, and do what is left to be done."""
        self.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            self._over = True
        self._do_chores()

    def _next(self, writer: _Straight | writing.Writer) -> list[Parcel]:
        """What is to go out together, once there is something; nothing: it is closed.

        :raises Exception: the writer was lent, and its connection is lost.
        """
        with self._lock:
            while not self._closed.is_set():
                rest = None
                if not self._lent:
                    lost, self._lost = self._lost, None
                    if lost is not None:
                        raise lost
                    rest = self._chores_in()
                    self._busy = bool(self._first or self._parcels or rest == 0)
                    if self._first or self._parcels:
                        return self._together(MOST)
                    if self._busy:
                        return []
                    if rest is None:
                        self._changed.notify_all()
                    self._spare = writer if isinstance(writer, _Straight) else None
                    self._awake, self._timed = False, rest is not None
                self._changed.wait(rest)
                self._spare, self._awake = None, True
            self._busy = False
            return []

    def _together(self, most: int) -> list[Parcel]:
        found: list[Parcel] = []
        size = 0
        for parcel in itertools.islice(self._first or self._parcels, most):
            if not parcel.sent:
                size += _size(parcel)
                if found and size > _MOST_BYTES:
                    break
                found.append(parcel)
        return found

    def _done(self, parcels: Iterable[Parcel]) -> None:
        """They have left the outbox."""
        for parcel in parcels:
            parcel.sent = True
        with self._lock:
            for queue in (self._first, self._parcels):
                while queue and queue[0].sent:
                    queue.popleft()

    def _do_chores(self) -> None:
        if not self._chores:
            return
        with self._lock:
            chores, self._chores, self._chore_count = self._chores, {}, 0
        for chore, things in chores.items():
            call(chore, things)

    # Errands.

    def _prepared(self, parcels: list[Parcel]) -> list[Parcel]:
        """Those of `parcels` that are to be published now; the others have left the outbox."""
        for errand, group in by_errand(p for p in parcels if not p.withdrawn).items():
            try:
                errand.prepare(group)
            except self._links.errors:
                raise
            except Exception:
                # One of them is to blame.
                for parcel in group:
                    self._prepare_alone(parcel)
        wanted = [parcel for parcel in parcels if not (parcel.withdrawn or parcel.sent)]
        if len(wanted) < len(parcels):
            self._done(parcel for parcel in parcels if parcel.withdrawn)
        return wanted

    def _prepare_alone(self, parcel: Parcel) -> None:
        if parcel.withdrawn:
            return
        try:
            parcel.errand.prepare((parcel,))
        except self._links.errors:
            raise
        except Exception as error:
            self._fail(parcel, error)

    def _fail(self, parcel: Parcel, error: Exception) -> None:
        LOG.error("a message cannot be published: %s", error)
        self._done((parcel,))
        call(parcel.errand.failed, parcel, error)

    def _publish(self, connection: kombu.Connection) -> None:
        """Publish on a connection, until it is lost or all is over; what was written without an
        error is published."""
        kind = _Straight if self._target.ours else writing.Writer
        writer = kind(connection, self._layout)
        while not self._closed.is_set():
            parcels = self._next(writer)
            if parcels:
                self._deliver(writer, parcels)
            if self._chores_in() == 0:
                self._do_chores()

    def _deliver(self, writer: _Straight | writing.Writer, parcels: list[Parcel]) -> None:
        written: list[tuple[Parcel, Any]] = []
        for parcel in self._prepared(parcels):
            try:
                written.append((parcel, writer.prepare(parcel.envelope)))
            except Exception as error:
                self._fail(parcel, error)
        if not written:
            return
        # What is told of a task comes before its end.
        written.sort(key=_writes)
        crashpoint("outbox.before-publish")
        sent: list[Parcel] = []
        count = 0
        try:
            for count, routed in enumerate(_write(writer, written), 1):
                parcel = written[count - 1][0]
                if routed or not parcel.errand.mandatory:
                    sent.append(parcel)
                else:
                    self._done((parcel,))
                    self.astray()
                    call(parcel.errand.unrouted, parcel)
            self._links.told = ""
        except self._links.errors as error:
            if not isinstance(error, lasting.AILMENTS):
                under_way = written[count:] if writer.together else written[count : count + 1]
                self._doubt(parcel for parcel, _ in under_way)
            raise  # the others stay where they are, and go out on the next connection
        except Exception as error:
            self._fail(written[count][0], error)
        finally:
            crashpoint("outbox.after-publish")
            self._done(sent)
            for errand, group in by_errand(sent).items():
                call(errand.sent, group)

    def _doubt(self, parcels: Iterable[Parcel]) -> None:
        """Nobody knows what became of them: some want to be told."""
        for parcel in parcels:
            if not parcel.errand.repeats:
                self._done((parcel,))
                call(parcel.errand.uncertain, parcel)


class _Straight:
    """To our own transports: what kombu's producer does, without what they have no use for."""

    together = True

    def __init__(self, connection: kombu.Connection, layout: topology.Topology) -> None:
        self.channel = connection.channel()
        self._exchange = layout.declare_exchange(self.channel).name

    def prepare(self, envelope: env.Envelope) -> Any:
        return self.channel.lay_out_sealed(envelope, self._exchange)

    def write(self, messages: Sequence[Any]) -> Iterator[bool]:
        found: Iterator[bool] = self.channel.publish_many(messages)
        return found


def _nobody() -> None:
    """Nobody wants to know."""


def _writes(pair: tuple[Parcel, Any]) -> bool:
    return pair[0].errand.writes


def _write(writer: _Straight | writing.Writer, written: list[tuple[Parcel, Any]]) -> Iterator[bool]:
    """Publish, in order: the writer does, and after it the errands that do so themselves."""
    for own, group in itertools.groupby(written, key=_writes):
        pairs = list(group)
        if not own:
            yield from writer.write([message for _, message in pairs])
            continue
        for errand, parcels in by_errand(parcel for parcel, _ in pairs).items():
            messages = [message for parcel, message in pairs if parcel.errand is errand]
            yield from errand.write(writer.channel, parcels, messages)


def _size(parcel: Parcel) -> int:
    try:
        return len(parcel.envelope.encoded)
    except Exception:  # it fails when its turn comes
        return 0


def by_errand(parcels: Iterable[Parcel]) -> dict[Errand, list[Parcel]]:
    found: dict[Errand, list[Parcel]] = {}
    for parcel in parcels:
        if parcel.errand is not NOTHING:
            found.setdefault(parcel.errand, []).append(parcel)
    return found


def call(function: Callable[..., object], *args: Any) -> None:
    try:
        function(*args)
    except Exception:
        LOG.exception("what follows the publishing of a message failed")
