"""The connection that receives, kept for as long as its proxy lives."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import connecting, topology
from wbengine.engines.worker_based.connections.outgoing import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based.connections.prefetcher import (
    AmqpPrefetcher,
    BrokerPrefetcher,
    KombuPrefetcher,
    Prefetcher,
)
from wbengine.engines.worker_based.connections.publisher_confirms import refuses
from wbengine.engines.worker_based.connections.receiver import (
    AmqpReceiver,
    BrokerReceiver,
    KombuReceiver,
    Receiver,
)
from wbengine.engines.worker_based.connections.sender import DEFERRED, Sender
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports import reasons
from wbengine.transports.broker import AnswerAndTake

LOG = logging.getLogger(__name__)

#: Seconds for which requests are answered in another way than where they come from, after something
#: was refused there.
REFUSED_PAUSE: Final = 60.0

#: Requests of so many times the slots may have ended, and wait to be answered, before none is taken
#: for them.
_BEHIND: Final = 8

#: Seconds a first connection may take before `start` gives up.
CONNECT_TIMEOUT: Final = 10.0

#: Seconds a consumer waits for the network before it looks at the clock again; a transport that
#: can be woken is, others are asked more often.
DRAIN_PERIOD: Final = 1.0
SHORT_DRAIN_PERIOD: Final = 0.05

#: Seconds, and messages, after which what came is acknowledged that nobody waits for.
RECEIPTS_PERIOD: Final = 0.05
RECEIPTS: Final = 64

#: Seconds before it connects again to a broker that can be reached, but not used.
AILING_PAUSE: Final = 0.5


def _nothing() -> None:
    return None


class ConsumerLoop:
    """Connect, hand over what comes, and connect again, in the thread that calls `start`.

    What was received is given to `handle(message)`.  The sender publishes meanwhile, on a
    connection of its own.  Here messages are acknowledged in the thread that consumes.
    """

    def __init__(
        self,
        target: transports.Target,
        layout: topology.Topology,
        refused: Counter[str],
        sender: Sender,
        on_wait: Callable[[], None] | None,
        until: Callable[[], float | None] | None,
        handle: Callable[[Any], None],
    ) -> None:
        self._target = target
        self._handle = handle
        #: The requests that it takes: none, until it is told to.
        self.work: Any = self._prefetcher((), 0)
        self._topology = layout
        self._refused = refused
        self._sender = sender
        sender.astray = self._mistrust
        self._on_wait = on_wait
        self._until = until
        self._running = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        #: Whether this side's own queue stays when `stop` ends it: somebody else reads it.
        self.leaves_queue = False
        # Why it connects again, as long as that did not help; and since when it seems to.
        self._told = ""
        self._receives = math.inf
        self._soon: deque[Callable[[], None]] = deque()
        # From when on requests are answered where they come from, if that can be.
        self._replies_from = 0.0
        # What is to be acknowledged when that costs little.
        self._receipts: deque[Any] = deque()
        self._receipts_due = 0.0
        self._wake: Callable[[], None] | None = None
        self._consumer = 0
        # When the consumer's thread looks again, as far as others know.
        self._sleeps_until = math.inf
        #: Of the connection that there is: what came on it is acknowledged on it, or never.
        self.channel: Any = None
        self._receiver: Receiver | None = None
        #: Told in each turn when the broker was heard last.
        self.turned: Callable[[float], object] | None = None
        self._copying = _Copying(self)

    @property
    def is_running(self) -> bool:
        return self._running.is_set() and not self._ended.is_set()

    @property
    def heard(self) -> float:
        """When the broker was heard last, on the monotonic clock; never, while there is none."""
        receiver = self._receiver
        return -math.inf if receiver is None else receiver.heard

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reads nothing more on the connection, for now."""
        receiver = self._receiver
        return receiver is not None and receiver.is_blocked

    @property
    def ended(self) -> bool:
        """Whether `start` has returned: a proxy lives once."""
        return self._ended.is_set()

    def start(self) -> None:
        """Connect, and dispatch what comes, until `stop`; blocks.

        :raises TransportFailure: the broker could not be reached within 10 seconds of the start.
        """
        try:
            self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._sender.stop()
            self._ended.set()
            self._running.set()

    def give_up(self, error: BaseException) -> None:
        """Let `wait` raise what keeps its owner from going on."""
        self._error = self._error or error
        self._running.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the proxy is connected and consuming; False if time ran out.

        :raises TransportFailure: it gave up; or what its owner gave up with.
        """
        ready = self._running.wait(timeout)
        if self._error is not None:
            raise self._error
        return ready

    def stop(self, timeout: float = 5.0) -> None:
        """Publish what is queued, delete this side's own queue unless it is left, disconnect."""
        self._sender.flush(timeout)
        self._stopping.set()
        self._sender.close()
        self._ring()

    def join(self, timeout: float) -> bool:
        """Wait for `start` to return; False if time ran out."""
        return self._ended.wait(timeout)

    def _ring(self) -> None:
        """Let the consumer's thread look at what there is to do; from any thread."""
        wake = self._wake  # which that thread may take away at any moment
        if wake is not None:
            wake()

    def _send_later(self, message: OutgoingMessage) -> None:
        """Not in this thread, which is there for what comes."""
        self._sender.send(message, defer=True)

    def _mistrust(self) -> None:
        """What was declared may be gone; any thread."""
        receiver = self._receiver
        if receiver is not None:
            receiver.mistrust()
            self._ring()

    def _run(self) -> None:
        self._consumer = threading.get_ident()
        until = time.monotonic() + CONNECT_TIMEOUT
        while not self._stopping.is_set():
            first = not self._running.is_set()
            try:
                connection = connecting.reach(
                    self._target,
                    self._stopping,
                    within=max(1.0, until - time.monotonic()) if first else None,
                )
            except exc.TransportFailure:
                if first and not self._stopping.is_set():
                    raise
                continue
            try:
                self._consume(connection)
            except Exception as error:
                self._after(error, connection, time.monotonic() < until)
            finally:
                connecting.release(connection)

    def _after(self, error: Exception, connection: connecting.Connection, early: bool) -> None:
        """Whether and when to connect again; `early`: the first start may still succeed."""
        why = reasons.explain(error)
        lost = isinstance(error, tuple(connection.recoverable_connection_errors))
        refused = isinstance(error, tuple(connection.channel_errors))
        # Others may be stopping, and remove what we have just declared.
        passing = lost or getattr(error, "code", None) == 404
        if not (self._running.is_set() or (early and passing)):
            foreign = not (self._target.ours or self._target.amqp)  # which raise whatever they like
            if lost or refused or foreign or isinstance(error, (OSError, exc.TransportFailure)):
                raise exc.TransportFailure(f"{self._target.shown} cannot be used: {why}") from error
            raise error
        if self._stopping.is_set():
            return
        if time.monotonic() - self._receives > DRAIN_PERIOD:
            self._told = ""
        self._receives = math.inf
        if why == self._told:
            LOG.debug("still not receiving (%s)", why)
        elif lost:
            LOG.warning("lost the broker (%s), connecting again", why)
        elif refused or isinstance(error, (OSError, exc.TransportFailure)):  # such as a full disk
            LOG.warning("cannot receive (%s), connecting again", why)
        else:
            LOG.error("receiving failed, connecting again", exc_info=error)
        self._told = why
        cut = lost and isinstance(error, OSError)
        self._stopping.wait(SHORT_DRAIN_PERIOD if cut else AILING_PAUSE)

    def _consume(self, connection: connecting.Connection) -> None:
        receiver = self._receiver_of(connection)
        try:
            if not self._running.is_set():
                self._sender.start()  # it connects meanwhile
            receiver.begin(self._handle, self._on_work, self._send_later, self._replies_from)
            self._receiver, self.channel = receiver, receiver.channel
            self._wake = receiver.wake
            self._receives = time.monotonic()
            self._running.set()
            self._drain(receiver)
            self.channel = None
            receiver.end(remove=not self.leaves_queue)
        except BaseException as error:
            receiver.drop()
            if refuses(error):
                # Perhaps an answer is: the sender finds out which, and loses nothing else by it.
                self._replies_from = time.monotonic() + REFUSED_PAUSE
                LOG.warning(
                    "the broker refused something on the channel that receives (%s): for %.0f s"
                    " answers go another way",
                    reasons.explain(error),
                    REFUSED_PAUSE,
                )
            raise
        finally:
            self._wake = self.channel = self._receiver = None
            receiver.close()

    def _drain(self, receiver: Receiver) -> None:
        longest = DRAIN_PERIOD if self._wake is not None else SHORT_DRAIN_PERIOD
        while not self._stopping.is_set():
            if self._soon:
                with receiver.together():
                    while self._soon:
                        self._soon.popleft()()
            self._sleeps_until = math.inf  # before it looks: who comes later wakes it
            now = time.monotonic()
            if now >= receiver.due:
                receiver.turn(now)
            if self._on_wait is not None:
                self._on_wait()
            if self.turned is not None:
                self.turned(receiver.heard)
            timeout = longest
            receipts = self._acknowledge(now) if self._receipts else None
            for due in (self._until and self._until(), receipts):
                if due is not None:
                    timeout = min(timeout, max(0.001, due - time.monotonic()))
            self._sleeps_until = now + timeout
            try:
                receiver.drain(timeout=timeout)
            except TimeoutError:
                pass
        self._catch_up()

    def _catch_up(self) -> None:
        """What was done until now is acknowledged."""
        while self._soon:
            self._soon.popleft()()
        self._acknowledge(math.inf)

    def _acknowledge(self, now: float) -> float | None:
        """Acknowledge what costs less together; when to call it again, if at all."""
        if not self._receipts:
            return None
        self._receipts_due = self._receipts_due or now + RECEIPTS_PERIOD
        if now < self._receipts_due and len(self._receipts) < RECEIPTS:
            return self._receipts_due
        self._receipts_due = 0.0
        self._acknowledge_now([self._receipts.popleft() for _ in range(len(self._receipts))])
        return None

    def _acknowledge_now(self, messages: list[Any]) -> None:
        for channel, group in _grouped(messages, "amqp_channel").items():
            _settle_all(channel, group)

    def bury(self, name: str) -> None:
        """Remove the private queue of a process that is gone, unless it is used; any thread."""

        def remove() -> None:
            if self._receiver is not None:
                self._receiver.bury(name)

        self._soon.append(remove)
        self._ring()

    # What was taken.

    def take_from(self, queues: Sequence[str], slots: int) -> None:
        """Also take requests from shared queues, never more than `slots` at a time.

        `queues` are served in their order: the first is emptied before the second is looked at.
        Each request has to end in one call of `ack` or `give_back`, which frees its slot.  Takes
        effect when the proxy starts, and after every reconnect.
        """
        self.work = self._prefetcher(queues, slots)
        self._topology.brief = True

    def stop_taking(self) -> None:
        """Take no further request; what was taken can still be acknowledged.

        What was delivered and not handed out goes back to its queue.  From any thread; idempotent.
        """
        self.call_soon(self.work.pause)

    def take_again(self) -> None:
        """Undo `stop_taking`; from any thread, idempotent."""
        self.call_soon(self.work.resume)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run `function` on the consumer's thread, soon."""
        self._soon.append(function)
        self._ring()

    def ack(self, message: Any) -> None:
        """Acknowledge a message from any thread, and free its slot; never raises.

        What came on a connection that is gone cannot be acknowledged any more: it comes again.
        """
        self.ack_many((message,))

    def ack_many(self, messages: Sequence[Any]) -> None:
        """`ack` each."""
        # Nothing is left to be done for those that were answered on their own channel.
        held = self.work.held
        left = [each for each in messages if not each.acknowledged or each in held]
        if left:
            # Each by itself: the connection may be lost in the midst of them.
            self._ack_soon(left)
            self._ring()

    def ack_later(self, *messages: Any) -> None:
        """`ack` each, together with others; within a second or so."""
        if self._target.amqp and not self.work.queues:
            self._receipts.extend(messages)  # wakes nobody
        else:
            self._ack_soon(messages)

    def _ack_soon(self, messages: Iterable[Any]) -> None:
        self._soon.extend(functools.partial(self._settle, each, _ack) for each in messages)

    def release_many(self, messages: Sequence[Any]) -> None:
        """What these requests need from now on is no slot: others may be taken for them, where the
        broker is ours, and the sender keeps up.  From any thread."""

    def order(self, done: Sequence[Any]) -> AnswerAndTake | None:
        """As `release_many`; and what `Broker.answer_many` is to be given so that it takes others
        for them, if anything."""
        return None

    def forget_many(self, messages: Sequence[Any]) -> None:
        """As `ack_many`, of what was acknowledged with the answer to it; brokers of ours."""
        raise NotImplementedError

    def requeue(self, message: Any, done: Callable[[], None] = _nothing) -> None:
        """Put a request back into its queue, from any thread, and free its slot; never raises.

        `done()` is called when that happened, on the consumer's thread.  It comes again marked as
        redelivered; see `give_back` for one that nobody began and no ledger knows of.
        """

        def settle() -> None:
            try:
                self._settle(message, _requeue)
            finally:
                done()

        self.call_soon(settle)

    def give_back(self, message: Any, done: Callable[[], None] = _nothing) -> None:
        """Let somebody else have a request that was not started, from any thread; never raises.

        Where no ledger knows that it was not, a copy takes its place: nobody runs a request that
        the broker says it delivered before.  `done()` is called when it is given back.
        """
        if env.WBE_LEDGER in (message.headers or {}):
            self.requeue(message, done)
            return
        copy = OutgoingMessage(env.copy_of(message), self._copying, (message, done))
        # As with those that are requeued: not before taking has stopped.
        self.call_soon(functools.partial(self._send_later, copy))

    def _settle(self, message: Any, how: Callable[[Any], None]) -> None:
        work = self.work
        if message in work.held:
            if work.is_ours(message):
                how(message)
            work.free(message)
        elif message.channel in (self.channel, work.channel):
            how(message)

    def _on_work(self, message: Any) -> None:
        work = self.work
        if not work.admits(message):
            self.give_back(message)
            return
        work.held[message] = time.monotonic()
        self._handle(message)
        if message.acknowledged and message in work.held:
            work.free(message)

    # Of what kind all that is.

    def _receiver_of(self, connection: Any) -> Receiver:
        kind = AmqpReceiver if self._target.amqp else KombuReceiver
        return kind(connection, self._target, self._topology, self.work, self._refused)

    def _prefetcher(self, queues: Sequence[str], slots: int) -> Prefetcher:
        kind = AmqpPrefetcher if self._target.amqp else KombuPrefetcher
        return kind(queues, slots)

    # Answering.

    def wake_by(self, due: float) -> None:
        """Let the consumer's thread look then, if it sleeps longer."""
        if due < self._sleeps_until and threading.get_ident() != self._consumer:
            self._ring()

    def answer(self, message: OutgoingMessage, request: Any, soon: bool) -> bool:
        """Publish a terminal answer, and acknowledge its request right behind it, at once; `soon`:
        by a thread that will answer another one within a few milliseconds, which is together with
        this; if it does not, this goes out by itself.

        From any thread.  `message.hooks` are told when the broker has confirmed it.  False: it has
        to be sent in the usual way.  Only of a RabbitMQ.
        """
        receiver = self._receiver  # which the consumer's thread may take away at any moment
        replies = None if receiver is None else receiver.replies
        if replies is None or not replies.answer(message, request, self._let_go, soon):
            return False
        if soon:
            self.wake_by(time.monotonic() + DEFERRED)
        return True

    def _let_go(self, request: Any) -> None:
        work = self.work
        if isinstance(work, AmqpPrefetcher) and work.let_go(request):
            self.call_soon(work.adjust)


class BrokerConsumerLoop(ConsumerLoop):
    """From a broker of ours, where any thread acknowledges, and several messages at once."""

    def _receiver_of(self, connection: Any) -> Receiver:
        return BrokerReceiver(connection, self._target, self._topology, self.work, self._refused)

    def _prefetcher(self, queues: Sequence[str], slots: int) -> Prefetcher:
        return BrokerPrefetcher(queues, slots)

    def ack_many(self, messages: Sequence[Any]) -> None:
        """`ack` each, in one step."""
        for consumer, group in _grouped(messages, "channel").items():
            _settle_all(consumer, group)
        self._free_many(messages)

    def ack_later(self, *messages: Any) -> None:
        self._sender.call_later(self.ack_many, *messages)

    def forget_many(self, messages: Sequence[Any]) -> None:
        for consumer, group in _grouped(messages, "channel").items():
            consumer.forget_many(group)
        self._free_many(messages)

    def _free_many(self, messages: Sequence[Any]) -> None:
        work = self.work
        for message in messages:
            known = work.held.pop(message, None) is not None
            if known and message.channel is not work.channel:
                self.call_soon(work.adjust)

    def release_many(self, messages: Sequence[Any]) -> None:
        if self._sender.behind < _BEHIND * self.work.slots:
            for consumer, group in _grouped(messages, "channel").items():
                consumer.release_many(group)

    def order(self, done: Sequence[Any]) -> AnswerAndTake | None:
        order = None
        for consumer, group in _grouped(done, "channel").items():
            if consumer is self.work.channel:
                order = consumer.order(group)
            else:
                consumer.release_many(group)
        return order

    def _settle(self, message: Any, how: Callable[[Any], None]) -> None:
        how(message)
        self.work.free(message)

    def _on_work(self, message: Any) -> None:
        work = self.work
        work.held[message] = 0.0
        if message.channel is not work.channel:  # its connection is being replaced
            self.call_soon(work.adjust)
        self._handle(message)
        if message.acknowledged and message in work.held:  # perhaps not on the consumer's thread
            self._free_many((message,))


class _Copying(DeliveryHooks):
    """Lets a copy take the place of what was delivered: its correlation is that, and a callback."""

    mandatory = True

    def __init__(self, owner: ConsumerLoop) -> None:
        self._owner = owner

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._owner.ack_many([message.correlation[0] for message in messages])
        for message in messages:
            message.correlation[1]()

    def unrouted(self, message: OutgoingMessage) -> None:
        self._owner.requeue(*message.correlation)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self._owner.requeue(*message.correlation)


def _grouped(messages: Iterable[Any], by: str) -> dict[Any, list[Any]]:
    """Messages by what they came on."""
    found: dict[Any, list[Any]] = {}
    for message in messages:
        found.setdefault(getattr(message, by), []).append(message)
    return found


def _settle_all(channel: Any, messages: list[Any]) -> None:
    crashpoint("proxy.before-ack")
    try:
        channel.ack_many(messages)
        crashpoint("proxy.after-ack")
    except OSError as error:  # the connection is lost, and they come again
        LOG.debug("%d messages cannot be acknowledged (%s)", len(messages), error)
    except Exception as error:
        LOG.warning("%d messages cannot be acknowledged (%s)", len(messages), error)


def _ack(message: Any) -> None:
    crashpoint("proxy.before-ack")
    try:
        message.ack()
        crashpoint("proxy.after-ack")
    except OSError as error:  # the connection is lost, and it comes again
        LOG.debug("message %s cannot be acknowledged (%s)", message.delivery_tag, error)
    except Exception as error:
        LOG.warning("message %s cannot be acknowledged (%s)", message.delivery_tag, error)


def _requeue(message: Any) -> None:
    try:
        message.requeue()
    except OSError as error:  # as above
        LOG.debug("message %s cannot be given back (%s)", message.delivery_tag, error)
    except Exception as error:
        LOG.warning("message %s cannot be given back (%s)", message.delivery_tag, error)
