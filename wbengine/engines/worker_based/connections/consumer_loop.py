"""The connection that receives, kept for as long as its proxy lives."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based.connections import connecting, topology
from wbengine.engines.worker_based.connections.outgoing import OutgoingMessage
from wbengine.engines.worker_based.connections.prefetcher import Prefetcher
from wbengine.engines.worker_based.connections.publisher_confirms import refuses
from wbengine.engines.worker_based.connections.receiver import Receiver
from wbengine.engines.worker_based.connections.sender import Sender
from wbengine.transports import reasons

LOG = logging.getLogger(__name__)

#: Seconds for which requests are answered in another way than where they come from, after something
#: was refused there.
REFUSED_PAUSE: Final = 60.0

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


class ConsumerLoop:
    """Connect, hand over what comes, and connect again, in the thread that calls `start`.

    What was received is given to `_on_message`, requests from shared queues to `_on_work`.  The
    sender publishes meanwhile, on a connection of its own.
    """

    _work: Prefetcher | None = None

    def __init__(
        self,
        target: transports.Target,
        layout: topology.Topology,
        refused: Counter[str],
        sender: Sender,
        on_wait: Callable[[], None] | None,
        until: Callable[[], float | None] | None,
    ) -> None:
        self._target = target
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

    def _on_message(self, message: Any) -> None:
        raise NotImplementedError

    def _on_work(self, message: Any) -> None:
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        return self._running.is_set() and not self._ended.is_set()

    @property
    def heard(self) -> float:
        """When the broker was heard last, on the monotonic clock; never, while there is none."""
        receiver = self._receiver
        return -math.inf if receiver is None else receiver.heard

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

    def _after(self, error: Exception, connection: kombu.Connection, early: bool) -> None:
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

    def _consume(self, connection: kombu.Connection) -> None:
        receiver = Receiver(self._target, self._topology, connection, self._work, self._refused)
        try:
            if not self._running.is_set():
                self._sender.start()  # it connects meanwhile
            receiver.begin(self._on_message, self._on_work, self._send_later, self._replies_from)
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
        raise NotImplementedError

    def bury(self, name: str) -> None:
        """Remove the private queue of a process that is gone, unless it is used; any thread."""

        def remove() -> None:
            if self._receiver is not None:
                self._receiver.bury(name)

        self._soon.append(remove)
        self._ring()
