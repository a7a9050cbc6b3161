"""The port of our own brokers: what each of them does on one connection, and what all share.

A `Broker` publishes, and hands out what its `Consumer`s take.  Order: consumers are served in the
order in which they were made, and the first queue of each is emptied first; within a queue
priority 9 comes first, then first in, first out per publisher.  Threads: one thread drains a
connection.  Publishing, acknowledging, giving back and `wake()` are allowed from any thread.
"""

from __future__ import annotations

import abc
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from wbengine import exceptions
from wbengine._log_rate import RareWarnings
from wbengine.transports import _envelope

LOG = logging.getLogger(__name__)

#: A message as it is published: exchange ('': `key` is a queue), key, priority, head, body.
LaidOut = tuple[str, str, int, bytes, bytes]

Handle = Callable[[_envelope.Message], object]

#: Seconds after which the thread that drains looks up, however much there is.
_TURN: Final = 0.5


class Taken:
    """A message that left its queue and is not settled yet; `token` belongs to its broker.

    `claim`: what the ledger said of the request in it, where the broker asked it in the same step;
    `label`: of the row that it looked at, as far as it is known; `at`: when that step was begun, on
    the monotonic clock.  `away`: where its body is, which `Broker.fetch` brings.  No `data`: it was
    in a row, and went with that.
    """

    __slots__ = ("again", "at", "away", "body", "claim", "data", "label", "queue", "token")

    def __init__(self, queue: str, token: Any, data: bytes | None, again: bool) -> None:
        self.queue = queue
        self.claim: Any = None
        self.label = b""
        self.at: float | None = None
        self.token = token
        self.data = data
        self.body = self.away = b""
        self.again = again


class Broker(abc.ABC):
    """One connection to a broker of ours.

    `refresh`, `take_many`, `watch`, `unwatch`, `wait` and `drain` are of the thread that drains;
    the rest may be called from any thread.  Once it is closed nothing may be called.
    """

    #: How many messages are taken at once, at most, where a consumer has no limit of its own.
    batch = 1
    #: Whether it reads labels (see `_envelope.label`).
    labels = False
    # As kombu calls them.
    recoverable_connection_errors: tuple[type[BaseException], ...] = (ConnectionError,)
    channel_errors: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        #: Called for each message that cannot be read.
        self.on_discard: Callable[[], object] | None = None
        #: Of those, by queue.
        self.discards = RareWarnings(LOG)
        self._woken = False

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        """Give back all that is not acknowledged, and disconnect; idempotent.

        What cannot be given back one by one, as the connection is lost or the server refuses, goes
        back with the connection.
        """
        for consumer in tuple(self.consumers):
            try:
                consumer.close()
            except Exception as error:
                LOG.debug("a consumer was not closed in order: %s", error)
        self.close()

    # Declaring.

    @abc.abstractmethod
    def declare_exchange(self, name: str) -> None:
        """Make the topic exchange when it is not there."""

    @abc.abstractmethod
    def declare_queue(self, queue: str, *, owned: bool = False) -> None:
        """Make the queue when it is not there.

        One that is `owned` is deleted when this process dies.  It outlives the connection, so that
        a process which connects again finds what came meanwhile.
        """

    @abc.abstractmethod
    def delete_queue(self, queue: str) -> int:
        """Remove the queue, its messages and its bindings; how many messages went."""

    @abc.abstractmethod
    def purge(self, queue: str) -> int:
        """Remove the waiting messages; how many."""

    @abc.abstractmethod
    def size(self, queue: str) -> int:
        """How many messages wait."""

    @abc.abstractmethod
    def bind(self, exchange: str, key: str, queue: str) -> None:
        """Bind; doing it twice is once.

        :raises ValueError: the key is too long.
        """

    @abc.abstractmethod
    def unbind(self, exchange: str, key: str, queue: str) -> None:
        """Undo `bind`; fine when there is no such binding."""

    @abc.abstractmethod
    def bindings(self) -> Iterable[tuple[str, str, str]]:
        """All (queue, exchange, key)."""

    # Publishing.

    def lay_out(self, message: _envelope.Sealed, exchange: str) -> LaidOut:
        """What `publish_many` takes.

        :raises TooLarge: it has more than 64 MiB.
        :raises ValueError, TypeError: headers are no JSON, or no JSON numbers.
        """
        head = _envelope.head_of(message, exchange)
        if self.labels:
            head = _envelope.label(head, message.headers, message.correlation_id)
        return exchange, message.routing_key, message.priority, head, message.encoded

    @abc.abstractmethod
    def publish_many(self, messages: Sequence[LaidOut]) -> Iterator[bool]:
        """Publish, in order; whether each had a queue is told as soon as it is published.

        :raises TransportFailure: it cannot be written (no space, no permission).
        """

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int], Taken, LaidOut]],
        told: Any = None,
    ) -> tuple[Sequence[int], Sequence[Taken]]:
        """For each request that was claimed while it was `taken`: store its answer in the row
        (id, epoch), publish it, and forget the request, in one step.  In it messages are taken,
        too, where `told`, by `order`, says so.

        In how many queues each answer is; -1, and it is in none, where the row is somebody else's.
        And what was taken.
        """
        raise NotImplementedError

    def answer_many(
        self,
        ended: Sequence[tuple[tuple[str, int], _envelope.Message, LaidOut]],
        order: AnswerAndTake | None = None,
    ) -> Sequence[int]:
        """`end_many` of requests that were taken by whatever consumer; and what is ordered."""
        wanted = [(row, message.origin, laid_out) for row, message, laid_out in ended]
        if order is None:
            return self.end_many(wanted)[0]
        try:
            counts, order.taken = self.end_many(wanted, order.told)
        except exceptions.TransportFailure:  # nothing was done
            order.deliver()
            raise
        except BaseException:
            order.consumer.miss(order)
            raise
        return counts

    def order(self, most: int, queues: Sequence[str]) -> Any:
        """What `end_many`, of whatever connection, is to be told so that it takes so many messages
        for this one; None: they have to be taken in the usual way.

        What becomes of it is told: `heard`, or it is as if nobody knew of what was taken.
        """
        return None

    def heard(self, told: Any, left: Sequence[Taken]) -> None:  # noqa: B027 - who makes none
        """What `end_many` took is known here now, but for what is `left`: of that nobody knows."""

    def missed(self, told: Any) -> None:  # noqa: B027
        """Nobody knows what `end_many` took: this connection is of no use any more."""

    # Taking.

    @abc.abstractmethod
    def watch(self, queue: str) -> None:
        """From now on `wait` also ends when something comes into this queue; counted."""

    @abc.abstractmethod
    def unwatch(self, queue: str) -> None:
        """Undo one `watch`."""

    @abc.abstractmethod
    def refresh(self) -> int:
        """Look what came into the watched queues; an upper bound of what can be taken now."""

    @abc.abstractmethod
    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        """Take messages out, so that nobody else gets them: for each group at most so many, the
        first queue before the second.

        Each comes with the number of its group.  With `batch` 1, one message at most.
        """

    def fetch(self, taken: Iterable[Taken]) -> None:  # noqa: B027 - where all come whole
        """Bring the bodies of those that are `away`; any thread."""

    @abc.abstractmethod
    def settle_many(self, taken: Sequence[Taken]) -> bool:
        """Acknowledged: forget them.  False when one of them was no longer ours."""

    def refuse(self, taken: Taken) -> None:
        """Acknowledged, and not run: what was claimed with it is as if it had not been, for a
        request that names the same row and can be believed."""
        self.settle_many((taken,))

    @abc.abstractmethod
    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        """Put it back in its old place, marked as redelivered if it was delivered; else it is as if
        it had never been taken, nor claimed.  What cannot be put back now goes back when this is
        closed, in the same way."""

    @abc.abstractmethod
    def discard(self, taken: Taken, why: str) -> None:
        """It cannot be delivered to anyone: put it aside and say so."""

    @abc.abstractmethod
    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Block until something may have come, `nudge` is called, or the timeout is over.

        `queues` are those from which something could be taken.
        """

    @abc.abstractmethod
    def nudge(self) -> None:
        """End a `wait` that runs, or the next one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free everything; doing it twice is once."""

    # Draining.

    def wake(self) -> None:
        """Make a blocked `drain`, or the next one, return at once; from any thread."""
        self._woken = True
        self.nudge()

    def drain(self, timeout: float | None = None) -> None:
        """Deliver all that is there, up to the limits; wait for it when there is nothing.

        Returns after at least one delivery.  What comes in while callbacks run, or is left after
        half a second, is delivered by the next call.  A message that cannot be read is put aside,
        never raised.

        :raises TimeoutError: nothing came in `timeout` seconds (None: wait for ever), or `wake()`
            was called.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._deliver_available():
                self._woken = False
                return
            if self._woken:
                self._woken = False
                raise TimeoutError("woken")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            waiting = [each for each in self.consumers if each.queues and each.has_room]
            self.wait(left, [queue for each in waiting for queue in each.queues])

    def _deliver_available(self) -> int:
        most, delivered = self.refresh(), 0
        until = time.monotonic() + _TURN
        found: Sequence[tuple[int, Taken]] = ()
        # At first, what is left of the last time: a callback raised.
        consumers = tuple(self.consumers)
        while True:
            for consumer in consumers:
                if consumer.ready:
                    delivered += consumer.deliver()
            if delivered >= most or (found and self.batch > 1 and not self.refresh()):
                return delivered
            if delivered and time.monotonic() >= until:
                return delivered
            asked = [(each, each.ask()) for each in self.consumers if each.queues]
            asked = [(each, room) for each, room in asked if room > 0]
            consumers = tuple(each for each, _ in asked)
            found = self.take_many([(room, each.queues) for each, room in asked]) if asked else ()
            for group, taken in found:
                consumers[group].ready.append(taken)
            for consumer in consumers:
                consumer.room.asked = 0
            if not found:
                return delivered


class CreditWindow:
    """What was given to a consumer and is not settled, by its number, and what may be given
    besides.

    At most `limit` (0: as much as there is) at a time, less what was asked for and is not there
    yet: by the thread that drains, and by those who order.  `found()` is called when there is room
    again after that thread was told that there is none.  Any thread, unless told otherwise.
    """

    def __init__(self, found: Callable[[], object]) -> None:
        self.limit = 0
        self.held: dict[int, Taken] = {}
        self._found = found
        self._released: set[int] = set()
        self._lock = threading.Lock()
        #: How many were asked for; 0 as soon as they are ready, or not there.
        self.asked = 0
        self._ordered = 0
        self._starved = False

    def ask(self, most: int, ready: int) -> int:
        """How many there is room for, up to `most`, beside `ready` ones; they are `asked` for from
        now on.  Of the thread that drains."""
        if not self.limit:
            return most
        self._starved = True  # before it looks: whoever makes room meanwhile sees one of both
        with self._lock:
            self.asked = 0
            self.asked = room = max(0, min(most, self._left(ready)))
        self._starved = room <= 0
        return room

    def look(self, ready: int) -> bool:
        """Whether there is room; as `ask`, but nothing is asked for."""
        if not self.limit:
            return True
        self._starved = True
        self._starved = starved = self._left(ready) <= 0
        return not starved

    def order(self, most: int, ready: int) -> int:
        """As `ask`, by another thread, until `delivered`; 0 unless the one that drains was told
        that there is none: else it sees to that itself."""
        if not self._starved:
            return 0
        with self._lock:
            room = max(0, min(most, self._left(ready)))
            self._ordered += room
        return room

    def delivered(self, ordered: int, count: int) -> None:
        """Of what was ordered so many came, which are held by now."""
        with self._lock:
            self._ordered -= ordered
        if count < ordered:
            self.made()

    def _left(self, ready: int) -> int:
        held = len(self.held) - len(self._released) + ready
        return self.limit - held - self.asked - self._ordered

    def release(self, numbers: Iterable[int]) -> None:
        """These count no more."""
        self._released |= self.held.keys() & set(numbers)

    def settle(self, numbers: Iterable[int]) -> list[Taken]:
        """These are not held any more; what of them was."""
        found: list[Taken] = []
        room = False
        for number in numbers:
            counted = number not in self._released
            self._released.discard(number)
            taken = self.held.pop(number, None)
            if taken is not None:
                found.append(taken)
                room = room or counted
        if room:
            self.made()
        return found

    def made(self) -> None:
        """There may be more than there was."""
        if self._starved:
            self._starved = False
            self._found()


class AnswerAndTake:
    """What a consumer takes while other requests are answered, in the same step: at most `most`
    messages; `told` is how its broker says so.

    Made by `Consumer.order`, given to `Broker.answer_many`, which fills in what was `taken`, and
    ended by `deliver`; if nobody knows what was taken, by `Consumer.miss`.
    """

    __slots__ = ("consumer", "most", "taken", "told")

    def __init__(self, consumer: Consumer, most: int, told: Any) -> None:
        self.consumer = consumer
        self.most = most
        self.told = told
        self.taken: Sequence[Taken] = ()

    def deliver(self) -> None:
        """Hand out what was taken, in this thread.  What is raised there is logged, and the
        connection is given up: what nobody saw goes back as if it had not been taken."""
        left: Sequence[_envelope.Message] = ()
        over = False
        try:
            left = self.consumer.receive(self)
            while left:
                message, *left = left
                self.consumer.handle(message)
            over = True
        except Exception:
            LOG.exception("failed to hand out what was taken")
        finally:
            if not over:
                self.consumer.miss(self)
                self.consumer.put_back(left)


class Consumer:
    """Takes from queues of one connection, and calls `handle(message)` for each message, in the
    thread that drains.

    At most `limit` messages are delivered and not yet acknowledged (0: any number).  What is not
    acknowledged when it is closed goes back to its queue, marked as redelivered.
    """

    def __init__(self, broker: Broker, handle: Handle) -> None:
        self.handle = handle
        self.closed = False
        self._broker = broker
        #: From which it takes, the first one first.
        self.queues: tuple[str, ...] = ()
        #: Taken, and not delivered yet.
        self.ready: deque[Taken] = deque()
        #: What is held, and how much more may be given.
        self.room = CreditWindow(broker.nudge)
        self._tags = itertools.count(1)
        self._closing = threading.Lock()
        broker.consumers.append(self)

    def consume(self, queues: Iterable[str], limit: int = 0) -> None:
        """Take from these, which are there, besides those that it takes from."""
        self.limit(limit)
        for queue in queues:
            if queue not in self.queues:
                self._broker.watch(queue)
                self.queues = (*self.queues, queue)
        self._broker.nudge()

    def limit(self, most: int) -> None:
        """Hold no more than so many."""
        self.room.limit = most
        self._broker.nudge()

    def cancel(self) -> None:
        """Take nothing more; what it got stays unacknowledged, what it did not get goes back."""
        queues, self.queues = self.queues, ()
        for queue in queues:
            self._broker.unwatch(queue)

    def close(self) -> None:
        """Cancel, and give back what is not acknowledged; idempotent."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        self._broker.consumers.remove(self)
        self.cancel()
        self.deliver()
        for tag in tuple(self.room.held):
            self.reject(tag, requeue=True)

    # Delivering; of the thread that drains.

    @property
    def has_room(self) -> bool:
        return self.room.look(len(self.ready))

    def ask(self) -> int:
        """How many messages may be taken for it now, at most."""
        return self.room.ask(self._broker.batch, len(self.ready))

    def deliver(self) -> int:
        """Hand out what is `ready`; how many."""
        count = 0
        while self.ready:
            message = self.hold(self.ready[0], self.ready)
            self.ready.popleft()  # not before it is held: orders of others count it
            if message is not None:
                count += 1
                self.handle(message)
        return count

    def hold(self, taken: Taken, ready: Iterable[Taken]) -> _envelope.Message | None:
        """What was taken, and is the first of what is `ready`, as a message.  None: it cannot be
        read, or nobody wants it, and it went back."""
        if self.closed or taken.queue not in self.queues:
            self._broker.give_back(taken, delivered=False)
            return None
        if taken.away:
            self._broker.fetch(ready)
        if taken.data is None:  # whoever waited for it has it from there
            self._broker.refuse(taken)
            return None
        tag = next(self._tags)
        try:
            message = _envelope.Message(taken.data, self, tag, taken.again, taken.body)
            if taken.claim is not None and not _envelope.has_label(message, taken.label):
                raise _envelope.BadMessage("its label names the row of another request")
        except _envelope.BadMessage as exc:
            self._broker.discard(taken, str(exc))
            if self._broker.on_discard is not None:
                self._broker.on_discard()
            return None
        message.claim, message.taken, message.origin = taken.claim, taken.at, taken
        taken.data = taken.body = b""
        self.room.held[tag] = taken
        return message

    # Ordering; any thread.

    def order(self, done: Iterable[_envelope.Message]) -> AnswerAndTake | None:
        """An order for all there is room for when `done` need none any more.

        It is to be given to `answer_many`, of whatever connection to the same broker, and delivered
        then.  None: there is no room, or the thread that drains takes what comes.
        """
        self.room.release([message.delivery_tag for message in done])
        with self._closing:  # who closes wants to know of all orders
            if self.closed or not self.queues:
                return None
            most = self.room.order(self._broker.batch, len(self.ready))
            told = self._broker.order(most, self.queues) if most else None
        if told is not None:
            return AnswerAndTake(self, most, told)
        self.room.delivered(most, 0)
        return None

    def receive(self, order: AnswerAndTake) -> list[_envelope.Message]:
        """What an order took, which is known here from now on."""
        found: list[_envelope.Message] = []
        with self._closing:
            if self.closed:
                return []  # what nobody heard of goes back, unseen
            left = list(order.taken)
            try:
                self._broker.fetch(left)  # what is held while others do not come is seen by nobody
                while left:
                    message = self.hold(left[0], left)
                    if message is not None:
                        found.append(message)
                    del left[0]
            finally:
                self._broker.heard(order.told, left)
            self.room.delivered(order.most, len(found))
        return found

    def put_back(self, messages: Iterable[_envelope.Message]) -> None:
        """Nobody saw these."""
        for taken in self.forget_many(messages):
            self._broker.give_back(taken, delivered=False)

    def miss(self, order: AnswerAndTake) -> None:
        """Nobody knows what became of an order."""
        self._broker.missed(order.told)

    # Settling; any thread.

    def ack_many(self, messages: Iterable[_envelope.Message]) -> bool:
        """Acknowledge messages of this consumer; those that are not held any more are passed over.

        False when none was, or one was no longer ours.
        """
        found = self.forget_many(messages)
        return bool(found) and self._broker.settle_many(found)

    def forget_many(self, messages: Iterable[_envelope.Message]) -> list[Taken]:
        """They are acknowledged, as far as this consumer is concerned: what of them it held."""
        tags = []
        for message in messages:
            message.acknowledged = True
            tags.append(message.delivery_tag)
        return self.room.settle(tags)

    def release_many(self, messages: Iterable[_envelope.Message]) -> None:
        """From now on these do not count against the limit."""
        self.room.release([message.delivery_tag for message in messages])
        self.room.made()

    def reject(self, tag: int, requeue: bool) -> None:
        """Give back to the queue, in its old place; or with `requeue=False` throw away."""
        for taken in self.room.settle([tag]):
            if requeue:
                self._broker.give_back(taken)
            else:
                self._broker.refuse(taken)
