"""A named exchange, seen by one process: what comes is dispatched, what goes is published in order.

One connection receives and one sends, each with its own thread, and neither is shared with anybody:
publishing inside a consumer's callback on the same AMQP connection recurses, an AMQP connection
used by two threads loses messages, and a process-wide pool of connections runs dry.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based import dispatcher, protocol
from wbengine.engines.worker_based.connections import topology
from wbengine.engines.worker_based.connections.amqp_sender import AmqpSender
from wbengine.engines.worker_based.connections.consumer_loop import (
    BrokerConsumerLoop,
    ConsumerLoop,
)
from wbengine.engines.worker_based.connections.outgoing import ECHO, NO_HOOKS, OutgoingMessage
from wbengine.engines.worker_based.connections.sender import Call, Sender
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import signing
from wbengine.keys import Keyring

LOG = logging.getLogger(__name__)


class Proxy:
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
        keys: Keyring | None = None,
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
        #: Signs what is sent, and verifies what comes, where there are keys; peers of other kinds
        #: sign nothing.
        self.signer = None if keys is None or interop else signing.Signer(keys, exchange=exchange)
        self._audience = {topic, *bindings}
        sends = AmqpSender if self._target.amqp else Sender
        self._sender = sends(self._target, self._topology, exchange)
        consumes = BrokerConsumerLoop if self._target.ours else ConsumerLoop
        #: What receives, and acknowledges.
        self.consumer: ConsumerLoop = consumes(
            self._target,
            self._topology,
            self._dispatcher.refused,
            self._sender,
            on_wait,
            until,
            self._on_message,
        )

    # What it is.

    @property
    def dispatcher(self) -> dispatcher.TypeDispatcher:
        return self._dispatcher

    @property
    def untrusted(self) -> dict[str, int]:
        """How many messages were refused because nobody signed them who may say them, if any."""
        count = self._dispatcher.refused["untrusted"]
        return {"untrusted": count} if count else {}

    @property
    def target(self) -> transports.Target:
        """The broker that was resolved from url, transport and options."""
        return self._target

    @property
    def connection_details(self) -> dict[str, Any]:
        """Where this proxy connects to, without secrets."""
        target = self._target
        found: Any = target.system if target.ours else target.connect().transport_cls
        return {
            "uri": target.shown,
            "transport": getattr(found, "driver_type", found),
            "exchange": self._exchange_name,
            "topic": self._topic,
        }

    @property
    def is_blocked(self) -> bool:
        """Whether the broker says that it takes no messages: it is short of memory or disk."""
        return self._sender.is_blocked or self.consumer.is_blocked

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
        self.signed(message.envelope)
        self._sender.send(message, first=first, defer=defer)

    def signed(self, envelope: env.Envelope) -> env.Envelope:
        """The same, which is signed when it is encoded, if this side signs."""
        if self.signer is not None:
            envelope.signer = self.signer
        return envelope

    def call_later(self, function: Call, *things: Any) -> None:
        """Call `function([thing, ...])` in the sender's thread when it has nothing to publish.

        It is told of all things that came meanwhile; where the proxy has ended, at once.
        """
        self._sender.call_later(function, *things)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is published and done; False if time ran out."""
        return self._sender.flush(timeout)

    # Consuming.

    @property
    def is_running(self) -> bool:
        return self.consumer.is_running

    def start(self) -> None:
        """Connect, and dispatch what comes, until `stop`; blocks.  See `ConsumerLoop.start`."""
        self.consumer.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is connected and consuming; False if time ran out.

        :raises TransportFailure: it gave up; or what its owner gave up with.
        """
        return self.consumer.wait(timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """Publish what is queued, delete this side's own queue unless it is left, disconnect."""
        self.consumer.stop(timeout)

    def take_from(self, queues: Sequence[str], slots: int) -> None:
        """Also take requests from shared queues.  See `ConsumerLoop.take_from`."""
        self._audience.update(queues)
        self.consumer.take_from(queues, slots)

    def _on_message(self, message: Any) -> None:
        try:
            if self.signer is None:
                data = env.body_of(message, self._topology.interop)
            else:
                data = env.parse(self.signer.verify(message, self._audience))
        except exc.NotTrusted as error:
            self._dispatcher.distrust(message, str(error))
        except exc.InvalidFormat as error:
            self._dispatcher.refuse(message, "body", str(error))
        else:
            if self._topology.direct:
                met = (message.headers or {}).get(
                    env.WBE_WORKER, message.properties.get("reply_to")
                )
                self._topology.meet(met, time.monotonic())
            self._dispatcher.on_message(data, message)
