"""A named exchange, seen by one process: what comes is dispatched, what goes is published in order.

One connection receives and one sends, each with its own thread, and neither is shared with anybody:
publishing inside a consumer's callback on the same AMQP connection recurses, an AMQP connection
used by two threads loses messages, and a process-wide pool of connections runs dry.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import kombu

from wbengine import _names, transports
from wbengine import exceptions as exc
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import (
    connecting,
    dispatcher,
    protocol,
    receiving,
    taking,
    topology,
)
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based.outbox import Outbox, Parcel

LOG = logging.getLogger(__name__)

#: Seconds a first connection may take before `start` gives up.
CONNECT_TIMEOUT: Final = 10.0

#: Seconds a consumer waits for the network before it looks at the clock again; a transport that
#: can be woken is, others are asked more often.
DRAIN_PERIOD: Final = 1.0
SHORT_DRAIN_PERIOD: Final = 0.05

#: Seconds before it connects again to a broker that can be reached, but not used.
AILING_PAUSE: Final = 0.5


class Proxy:
    """Publish to, and be called for messages from, one topic exchange.

    `topic` names this side's own queue, bound under its name and under each of `bindings`.
    `on_wait` is called on the consumer's thread between messages, and at least once a second.
    Handlers run on that thread too, and must not block.
    """

    DEFAULT_RETRY_OPTIONS: Final[Mapping[str, float]] = {
        "interval_start": 1,
        "interval_step": 1,
        "interval_max": 1,
        "max_retries": 3,
    }

    def __init__(
        self,
        topic: str,
        exchange: str,
        type_handlers: Mapping[str, dispatcher.Handler] | None = None,
        on_wait: Callable[[], None] | None = None,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        retry_options: Mapping[str, Any] | None = None,
        *,
        bindings: Sequence[str] = (),
        until: Callable[[], float | None] | None = None,
        interop: str | None = None,
    ) -> None:
        self._topic = topic
        self._exchange_name = exchange
        self._on_wait = on_wait
        self._until = until
        self._retry_options = _with_defaults(retry_options, self.DEFAULT_RETRY_OPTIONS)
        if interop:  # TaskFlow's peers use kombu's own transports
            self._target = transports.Target(url, transport, dict(transport_options or {}))
        else:
            self._target = transports.resolve(url, transport, transport_options, exchange=exchange)
        self._topology = topology.Topology(
            exchange, topic, bindings, interop, direct=self._target.check()
        )
        self._dispatcher = dispatcher.TypeDispatcher(type_handlers)
        self._outbox = Outbox(self._target, self._topology, exchange)
        self._running = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        #: Whether this side's own queue stays when `stop` ends it: somebody else reads it.
        self.leaves_queue = False
        self._soon: deque[Callable[[], None]] = deque()
        self._wake: Callable[[], None] | None = None
        self._work: taking.Taking | None = None
        #: Of the connection that there is: what came on it is acknowledged on it, or never.
        self.channel: Any = None
        self._receiver: receiving.Receiver | None = None

    # What it is.

    @property
    def dispatcher(self) -> dispatcher.TypeDispatcher:
        return self._dispatcher

    @property
    def target(self) -> transports.Target:
        """The broker that was resolved from url, transport and options."""
        return self._target

    @property
    def connection_details(self) -> dict[str, Any]:
        """Where this proxy connects to, without secrets."""
        with self._target.connect() as connection:
            uri = connection.as_uri(include_password=False) if self._target.ours else None
            return {
                "uri": uri or self._target.shown,
                "transport": connection.transport_cls
                if isinstance(connection.transport_cls, str)
                else connection.transport.driver_type,
                "exchange": self._exchange_name,
                "topic": self._topic,
            }

    @property
    def is_running(self) -> bool:
        return self._running.is_set() and not self._ended.is_set()

    @property
    def ended(self) -> bool:
        """Whether `start` has returned: a proxy lives once."""
        return self._ended.is_set()

    # Publishing.

    def publish(
        self,
        msg: protocol.Message,
        routing_key: str,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        *,
        headers: Mapping[str, Any] | None = None,
        first: bool = False,
    ) -> None:
        """Publish a message; see `send`."""
        envelope = env.Envelope(
            msg.TYPE,
            msg.to_dict(),
            routing_key=routing_key,
            correlation_id=correlation_id,
            reply_to=reply_to,
            headers=dict(headers or {}),
        )
        self.send(Parcel(envelope), first=first)

    def send(self, parcel: Parcel, first: bool = False) -> None:
        """Queue a parcel for the publisher's thread, and return at once.

        Parcels go out in the order in which they were queued, except that `first` ones (beats)
        pass all others.  A broker that is away only delays them.
        """
        self._outbox.put(parcel, first)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is published; False if time ran out."""
        return self._outbox.flush(timeout)

    # Consuming.

    def take_from(self, queues: Sequence[str], slots: int) -> None:
        """Also take requests from shared queues, never more than `slots` at a time.

        `queues` are served in their order: the first is emptied before the second is looked at.
        Each request has to end in one call of `ack` or `give_back`, which frees its slot.  Takes
        effect when the proxy starts, and after every reconnect.
        """
        kind = taking.SlotTaking if self._target.amqp else taking.Taking
        self._work = kind(queues, slots, ours=self._target.ours)
        self._topology.brief = True

    def stop_taking(self) -> None:
        """Take no further request; what was taken can still be acknowledged.

        What was delivered and not handed out goes back to its queue.  From any thread; idempotent.
        """
        if self._work is not None:
            self.call_soon(self._work.pause)

    def take_again(self) -> None:
        """Undo `stop_taking`; from any thread, idempotent."""
        if self._work is not None:
            self.call_soon(self._work.resume)

    def bury(self, name: str) -> None:
        """Remove the private queue of a process that is gone, unless it is used; any thread."""

        def remove() -> None:
            if self._receiver is not None:
                self._receiver.bury(name)

        self.call_soon(remove)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run `function` on the consumer's thread, soon."""
        self._soon.append(function)
        if self._wake is not None:
            self._wake()

    def ack(self, message: Any) -> None:
        """Acknowledge a message from any thread, and free its slot; never raises.

        What came on a connection that is gone cannot be acknowledged any more: it comes again.
        """
        if not self._target.ours:
            self.call_soon(lambda: self._settle(message, _ack))
            return
        _ack(message)
        work = self._work
        if work is None or work.held.pop(message, None) is None:
            return
        if message.channel is not work.channel:
            self.call_soon(work.adjust)

    def requeue(self, message: Any, done: Callable[[], None] | None = None) -> None:
        """Put a request back into its queue, from any thread, and free its slot; never raises.

        `done()` is called when that happened, on the consumer's thread.  It comes again marked as
        redelivered; see `give_back` for one that nobody began and no ledger knows of.
        """

        def settle() -> None:
            self._settle(message, _requeue)
            if done is not None:
                done()

        self.call_soon(settle)

    def give_back(self, message: Any) -> None:
        """Let somebody else have a request that was not started, from any thread; never raises.

        Where no ledger knows that it was not, a copy takes its place: nobody runs a request that
        the broker says it delivered before.
        """
        if env.WBE_LEDGER in (message.headers or {}):
            self.requeue(message)
            return
        again = functools.partial(self.requeue, message)
        copy = env.copy_of(message)
        after = functools.partial(self.ack, message)
        self.send(Parcel(copy, after=after, unrouted=again, failed=lambda _: again()))

    def _settle(self, message: Any, how: Callable[[Any], None]) -> None:
        work = self._work
        if work is not None and message in work.held:
            if self._target.ours or work.is_ours(message):
                how(message)
            work.free(message)
        elif self._target.ours or message.channel in (self.channel, work and work.channel):
            how(message)

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
            self._outbox.stop()
            self._ended.set()
            self._running.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the proxy is connected and consuming; False if time ran out.

        :raises TransportFailure: it gave up.
        """
        ready = self._running.wait(timeout)
        if self._error is not None:
            raise self._error
        return ready

    def stop(self, timeout: float = 5.0) -> None:
        """Publish what is queued, delete this side's own queue unless it is left, disconnect."""
        self._outbox.flush(timeout)
        self._stopping.set()
        self._outbox.close()
        if self._wake is not None:
            self._wake()

    def _run(self) -> None:
        until = time.monotonic() + CONNECT_TIMEOUT
        while not self._stopping.is_set():
            first = not self._running.is_set()
            try:
                connection = connecting.reach(
                    self._target,
                    self._stopping,
                    longest=float(self._retry_options["interval_max"]),
                    within=max(1.0, until - time.monotonic()) if first else None,
                )
            except exc.TransportFailure:
                if first and not self._stopping.is_set():
                    raise
                continue
            with connection:
                try:
                    self._consume(connection)
                except Exception as error:
                    self._after(error, connection, time.monotonic() < until)

    def _after(self, error: Exception, connection: kombu.Connection, early: bool) -> None:
        """Whether and when to connect again; `early`: the first start may still succeed."""
        why = connecting.explain(error)
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
        if lost:
            LOG.warning("lost the broker (%s), connecting again", why)
        elif refused or isinstance(error, (OSError, exc.TransportFailure)):  # such as a full disk
            LOG.warning("cannot receive (%s), connecting again", why)
        else:
            LOG.error("receiving failed, connecting again", exc_info=error)
        cut = lost and isinstance(error, OSError)
        self._stopping.wait(SHORT_DRAIN_PERIOD if cut else AILING_PAUSE)

    def _consume(self, connection: kombu.Connection) -> None:
        refused = self._dispatcher.refused
        receiver = receiving.Receiver(self._target, self._topology, connection, self._work, refused)
        try:
            receiver.begin(self._on_message, self._on_work, self._send_first)
            self._receiver, self.channel = receiver, receiver.channel
            self._wake = receiver.wake
            if not self._running.is_set():
                self._outbox.start()
                self._running.set()
            self._drain(receiver)
            self.channel = None
            receiver.end(remove=not self.leaves_queue)
        except BaseException:
            receiver.drop()
            raise
        finally:
            self._wake = self.channel = self._receiver = None
            receiver.close()

    def _drain(self, receiver: receiving.Receiver) -> None:
        longest = DRAIN_PERIOD if self._wake is not None else SHORT_DRAIN_PERIOD
        while not self._stopping.is_set():
            self._do_soon()
            now = time.monotonic()
            if now >= receiver.due:
                receiver.turn(now)
            if self._on_wait is not None:
                self._on_wait()
            timeout = longest
            if self._until is not None:
                due = self._until()
                if due is not None:
                    timeout = min(longest, max(0.001, due - time.monotonic()))
            try:
                receiver.drain(timeout=timeout)
            except TimeoutError:
                pass
        self._do_soon()  # what was done until now is acknowledged

    def _do_soon(self) -> None:
        while self._soon:
            self._soon.popleft()()

    def _send_first(self, parcel: Parcel) -> None:
        self.send(parcel, first=True)

    def _on_work(self, message: Any) -> None:
        work = self._work
        assert work is not None
        if self._target.ours:
            work.held[message] = 0.0
        elif work.admits(message):
            work.held[message] = time.monotonic()
        else:
            self.give_back(message)
            return
        self._on_message(message)
        if message.acknowledged and message in work.held:
            work.free(message)

    def _on_message(self, message: Any) -> None:
        try:
            data = env.body_of(message, self._topology.interop)
        except exc.InvalidFormat as error:
            self._dispatcher.refuse(message, "body", str(error))
        else:
            if self._topology.direct:
                met = (message.headers or {}).get(
                    env.WBE_WORKER, message.properties.get("reply_to")
                )
                self._topology.meet(met, time.monotonic())
            self._dispatcher.on_message(data, message)


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


def _with_defaults(given: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"retry_options must be a dict, not {given!r}")
    for name in given or ():
        if name not in defaults:
            raise ValueError(
                f"retry_options has no {name!r}{_names.hint(str(name), defaults)};"
                f" it knows: {', '.join(defaults)}"
            )
    return {**defaults, **(given or {})}
