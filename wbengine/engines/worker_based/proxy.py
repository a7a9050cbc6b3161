"""Access of one process to a named exchange: dispatch received messages, and publish in order.

One connection receives and another one sends, each in its own thread. They are separate because
publishing inside a consumer's callback recurses, an AMQP connection that two threads use loses
messages, and a pool of connections can be exhausted.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._security.keys import Keyring
from wbengine.engines.worker_based import dispatcher, protocol
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.consumer_loop import ConsumerLoop
from wbengine.engines.worker_based._connections.sender import (
    ECHO,
    NO_HOOKS,
    Call,
    OutgoingMessage,
    Sender,
)
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import signing

LOG = logging.getLogger(__name__)


class Proxy:
    """Publishes to one topic exchange, and dispatches messages from it.

    `topic` is the name of the private queue, which is bound to that name and to `bindings`.
    `on_wait` is called in the consumer's thread between messages, at least once per second. It
    returns the time at which it must be called next (monotonic clock), or None. Handlers run in
    that thread too, and must not block.
    """

    DEFAULT_RETRY_OPTIONS: Final[Mapping[str, float | None]] = dataclasses.asdict(
        transports.RetryOptions()
    )

    def __init__(
        self,
        topic: str,
        exchange: str,
        type_handlers: Mapping[str, dispatcher.Handler] | None = None,
        on_wait: Callable[[], float | None] | None = None,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        retry_options: Mapping[str, Any] | None = None,
        *,
        bindings: Sequence[str] = (),
        interop: str | None = None,
        keys: Keyring | None = None,
    ) -> None:
        self._exchange_name = exchange
        self._bindings = tuple(bindings)
        self._interop = interop
        if interop:  # TaskFlow's peers use the transports of kombu.
            target = transports.kombu_target(url, transport, transport_options)
        else:
            target = transports.resolve(url, transport, transport_options, exchange=exchange)
        retry = transports.RetryOptions.read(retry_options)
        self.target = dataclasses.replace(target, retry=retry)
        self._is_direct = self.target.check()
        self._on_wait = on_wait
        self._dispatcher = dispatcher.TypeDispatcher(type_handlers)
        self.signer = None if keys is None or interop else signing.Signer(keys, exchange=exchange)
        self.renew(topic)

    def renew(self, topic: str) -> None:
        """Prepare a new start, with `topic` as the private queue.

        Call this only before `start`, or after `stop`.
        """
        self._topic = topic
        self._audience = {topic, *self._bindings}
        self._topology = topology.Topology(
            self._exchange_name, topic, self._bindings, self._interop, direct=self._is_direct
        )
        self._sender = Sender(self.target, self._topology, self._exchange_name)
        self.consumer = ConsumerLoop(
            self.target,
            self._topology,
            self._dispatcher.refused,
            self._sender,
            self._on_wait,
            self._on_message,
        )

    @property
    def dispatcher(self) -> dispatcher.TypeDispatcher:
        return self._dispatcher

    @property
    def untrusted(self) -> dict[str, int]:
        """Number of messages that were rejected because of their signatures, if any."""
        count = self._dispatcher.refused["untrusted"]
        return {"untrusted": count} if count else {}

    @property
    def connection_details(self) -> dict[str, Any]:
        """The place of the broker, without secrets."""
        target = self.target
        driver: Any = target.system if target.is_native else target.connect().transport_cls
        return {
            "uri": target.shown,
            "transport": getattr(driver, "driver_type", driver),
            "exchange": self._exchange_name,
            "topic": self._topic,
        }

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reports that it accepts no messages."""
        return self._sender.is_blocked or self.consumer.is_blocked

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
        """Publish a message; an unavailable broker only delays it. See `Sender.send`.

        Without `defer`, the calling thread must hold no lock.
        """
        self.signed(message.envelope)
        self._sender.send(message, first=first, defer=defer)

    def signed(self, envelope: env.Envelope) -> env.Envelope:
        """Set the signer of an envelope, if there are keys, and return the envelope."""
        if self.signer is not None:
            envelope.signer = self.signer
        return envelope

    def call_later(self, function: Call, *things: Any) -> None:
        """See `Sender.call_later`."""
        self._sender.call_later(function, *things)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all messages are published and all calls are made; return False on timeout."""
        return self._sender.flush(timeout)

    @property
    def is_running(self) -> bool:
        return self.consumer.is_running

    def start(self) -> None:
        """See `ConsumerLoop.start`."""
        self.consumer.start()

    def wait(self, timeout: float | None = None) -> bool:
        """See `ConsumerLoop.wait`."""
        return self.consumer.wait(timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """See `ConsumerLoop.stop`."""
        self.consumer.stop(timeout)

    def consume_shared(self, queues: Sequence[str], slots: int) -> None:
        """See `ConsumerLoop.consume_shared`."""
        self._audience.update(queues)
        self.consumer.consume_shared(queues, slots)

    def _on_message(self, message: Any) -> None:
        try:
            if self.signer is None:
                data = env.body_of(message, self._topology.interop)
            else:
                data = env.parse(self.signer.verify(message, self._audience))
        except exc.NotTrusted as error:
            self._dispatcher.refuse_untrusted(message, str(error))
        except exc.InvalidFormat as error:
            self._dispatcher.refuse(message, "body", str(error))
        else:
            if self._topology.direct:
                self._topology.record_peer(env.sender_of(message), time.monotonic())
            self._dispatcher.on_message(data, message)
