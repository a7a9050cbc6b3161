"""A named exchange, seen by one process: what comes is dispatched, what goes is published in order.

One connection receives and one sends, each with its own thread, and neither is shared with anybody:
publishing inside a consumer's callback on the same AMQP connection recurses, an AMQP connection
used by two threads loses messages, and a process-wide pool of connections runs dry.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import dispatcher, protocol
from wbengine.engines.worker_based.connections import topology
from wbengine.engines.worker_based.connections.amqp_sender import AmqpSender
from wbengine.engines.worker_based.connections.consumer_loop import ConsumerLoop
from wbengine.engines.worker_based.connections.outgoing import (
    ECHO,
    NO_HOOKS,
    DeliveryHooks,
    OutgoingMessage,
)
from wbengine.engines.worker_based.connections.prefetcher import AmqpPrefetcher, Prefetcher
from wbengine.engines.worker_based.connections.sender import DEFERRED, Call, Sender
from wbengine.engines.worker_based.messages import envelope as env

LOG = logging.getLogger(__name__)

#: Requests of so many times the slots may have ended, and wait to be answered, before none is taken
#: for them.
_BEHIND: Final = 8


def _nothing() -> None:
    return None


class Proxy(ConsumerLoop):
    """Publish to, and be called for messages from, one topic exchange.

    `topic` names this side's own queue, bound under its name and under each of `bindings`.
    `on_wait` is called on the consumer's thread between messages, and at least once a second.
    Handlers run on that thread too, and must not block.
    """

    DEFAULT_RETRY_OPTIONS: Final[Mapping[str, float | None]] = dataclasses.asdict(
        transports.RetryOptions()
    )

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
        if interop:  # TaskFlow's peers use kombu's own transports
            target = transports.Target(url, transport, dict(transport_options or {}))
        else:
            target = transports.resolve(url, transport, transport_options, exchange=exchange)
        retry = transports.RetryOptions.read(retry_options)
        self._target = dataclasses.replace(target, retry=retry)
        self._topology = topology.Topology(
            exchange, topic, bindings, interop, direct=self._target.check()
        )
        self._dispatcher = dispatcher.TypeDispatcher(type_handlers)
        kind = AmqpSender if self._target.amqp else Sender
        super().__init__(
            self._target,
            self._topology,
            self._dispatcher.refused,
            kind(self._target, self._topology, exchange),
            on_wait,
            until,
        )
        self._copying = _Copying(self)

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
        hooks = ECHO if routing_key == self._topic else NO_HOOKS
        self.send(OutgoingMessage(envelope, hooks), first=first, defer=True)

    def send(self, message: OutgoingMessage, *, first: bool = False, defer: bool = False) -> None:
        """Publish a message; a broker that is away only delays it.  See `Sender.send`.

        From a thread that holds no lock, and may wait for the broker; `defer` from any other.
        """
        self._sender.send(message, first=first, defer=defer)

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
        work = self._work
        if isinstance(work, AmqpPrefetcher) and work.let_go(request):
            self.call_soon(work.adjust)

    def call_later(self, function: Call, *things: Any) -> None:
        """Call `function([thing, ...])` in the sender's thread when it has nothing to publish.

        It is told of all things that came meanwhile; where the proxy has ended, at once.
        """
        self._sender.call_later(function, *things)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is published and done; False if time ran out."""
        return self._sender.flush(timeout)

    # Consuming.

    def take_from(self, queues: Sequence[str], slots: int) -> None:
        """Also take requests from shared queues, never more than `slots` at a time.

        `queues` are served in their order: the first is emptied before the second is looked at.
        Each request has to end in one call of `ack` or `give_back`, which frees its slot.  Takes
        effect when the proxy starts, and after every reconnect.
        """
        kind = AmqpPrefetcher if self._target.amqp else Prefetcher
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
        """`ack` each; one step, where the transport is ours."""
        if not self._target.ours:
            # Nothing is left to be done for those that were answered on their own channel.
            held = () if self._work is None else self._work.held
            left = [each for each in messages if not each.acknowledged or each in held]
            if left:
                # Each by itself: the connection may be lost in the midst of them.
                self._soon.extend(functools.partial(self._settle, each, _ack) for each in left)
                self._ring()
            return
        for channel, group in _by_channel(messages).items():
            _settle_all(channel, group)
        self._free_many(messages)

    def forget_many(self, messages: Sequence[Any]) -> None:
        """As `ack_many`, of what was acknowledged with the answer to it; our transports only."""
        for channel, group in _by_channel(messages).items():
            channel.forget_many(group)
        self._free_many(messages)

    def _free_many(self, messages: Sequence[Any]) -> None:
        work = self._work
        if work is None:
            return
        for message in messages:
            known = work.held.pop(message, None) is not None
            if known and message.channel is not work.channel:
                self.call_soon(work.adjust)

    def ack_later(self, *messages: Any) -> None:
        """`ack` each, together with others; within a second or so."""
        if self._target.ours:
            self.call_later(self.ack_many, *messages)
        elif self._target.amqp and self._work is None:
            self._receipts.extend(messages)  # wakes nobody
        else:
            self._soon.extend(functools.partial(self._settle, each, _ack) for each in messages)

    def _acknowledge_now(self, messages: list[Any]) -> None:
        for channel, group in _by_amqp_channel(messages).items():
            _settle_all(channel, group)

    def release_many(self, messages: Sequence[Any]) -> None:
        """What these requests need from now on is no slot: others may be taken for them.

        From any thread.  Only where the transport is ours, and the sender keeps up.
        """
        work = self._work
        if self._target.ours and work is not None and self._sender.behind < _BEHIND * work.slots:
            for channel, group in _by_channel(messages).items():
                channel.release_many(group)

    def order(self, done: Sequence[Any]) -> Any:
        """As `release_many`; and what `end_many` of a channel is to be given so that it takes
        others for them, if anything.  Our own transports only."""
        order = None
        for channel, group in _by_channel(done).items():
            if self._work is not None and channel is self._work.channel:
                order = channel.order(group)
            else:
                channel.release_many(group)
        return order

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
        self.call_soon(functools.partial(self.send, copy, defer=True))

    def _settle(self, message: Any, how: Callable[[Any], None]) -> None:
        work = self._work
        if work is not None and message in work.held:
            if self._target.ours or work.is_ours(message):
                how(message)
            work.free(message)
        elif self._target.ours or message.channel in (self.channel, work and work.channel):
            how(message)

    def _on_work(self, message: Any) -> None:
        work = self._work
        assert work is not None
        if self._target.ours:
            work.held[message] = 0.0
            if message.channel is not work.channel:  # its connection is being replaced
                self.call_soon(work.adjust)
        elif work.admits(message):
            work.held[message] = time.monotonic()
        else:
            self.give_back(message)
            return
        self._on_message(message)
        if message.acknowledged and message in work.held:
            if self._target.ours:  # perhaps not on the consumer's thread
                self._free_many((message,))
            else:
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


class _Copying(DeliveryHooks):
    """Lets a copy take the place of what was delivered: its correlation is that, and a callback."""

    mandatory = True

    def __init__(self, owner: Proxy) -> None:
        self._owner = owner

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._owner.ack_many([message.correlation[0] for message in messages])
        for message in messages:
            message.correlation[1]()

    def unrouted(self, message: OutgoingMessage) -> None:
        self._owner.requeue(*message.correlation)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self._owner.requeue(*message.correlation)


def _by_channel(messages: Iterable[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for message in messages:
        found.setdefault(message.channel, []).append(message)
    return found


def _by_amqp_channel(messages: Iterable[Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for message in messages:
        found.setdefault(message.amqp_channel, []).append(message)
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
