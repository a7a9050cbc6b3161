"""Outgoing messages, and hooks before and after publishing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _encoding
from wbengine.transports._broker import Broker, Frame


class DeliveryHooks:
    """Actions before and after publishing messages of one kind.

    The publishing thread calls the methods with all messages of a batch.
    """

    #: Whether the broker must report messages without a queue (`unrouted`).
    mandatory: ClassVar[bool] = False

    #: Whether the hooks publish the messages with `write`; only with brokers of wbengine.
    writes: ClassVar[bool] = False

    def write(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> Iterable[bool]:
        """Publish encoded messages; return for each, in order, whether it had a queue."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        """Whether messages that may have been lost with a connection are published again.

        If not, `uncertain` is called.
        """
        return True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        """Prepare messages for publishing; set `withdrawn` of messages not to publish.

        After an error of the connection or the ledger, this is called again. Any other error fails
        all of the messages.
        """

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        """Handle messages that are published, and confirmed if the broker confirms."""

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        """Handle a message that can never be published."""

    def unrouted(self, message: OutgoingMessage) -> None:
        """Handle a message without a queue, if `mandatory`."""
        self.sent((message,))

    def uncertain(self, message: OutgoingMessage) -> None:
        """Handle a message whose connection was lost before the broker confirmed it."""


class _Echo(DeliveryHooks):
    mandatory = True

    def unrouted(self, message: OutgoingMessage) -> None:
        """Do nothing: see `Sender.on_missing_queue`."""


#: Hooks without actions, and hooks of messages that a process sends to itself.
NO_HOOKS, ECHO = DeliveryHooks(), _Echo()


class OutgoingMessage(Frame):
    """A message in the queue of a sender.

    `correlation` identifies it for its hooks. A `withdrawn` message is skipped, unless it is too
    late. `sent` is True after the message has left the sender.
    """

    __slots__ = ("correlation", "envelope", "hooks", "sent", "withdrawn")

    def __init__(
        self, envelope: env.Envelope, hooks: DeliveryHooks = NO_HOOKS, correlation: Any = None
    ) -> None:
        self.envelope = envelope
        self.hooks = hooks
        self.correlation = correlation
        self.sent = self.withdrawn = False

    def encode(self, exchange: str, labels: bool) -> None:
        """Encode the message for a broker of wbengine. `labels`: see `Broker.labels`.

        :raises TooLarge: if it exceeds 64 MiB.
        :raises ValueError, TypeError: if a header cannot be encoded as JSON.
        """
        envelope = self.envelope
        self.exchange, self.routing_key = exchange, envelope.routing_key
        self.priority = envelope.priority
        self.head, self.body = _encoding.head_of(envelope, exchange), envelope.encoded
        if labels:
            self.head = _encoding.label(self.head, envelope.headers, envelope.correlation_id)

    @property
    def body_size(self) -> int:
        """Bytes of the body; 0 if it cannot be encoded: publishing then fails."""
        try:
            return len(self.envelope.encoded)
        except Exception:
            return 0


def by_hooks(messages: Iterable[OutgoingMessage]) -> dict[DeliveryHooks, list[OutgoingMessage]]:
    groups: dict[DeliveryHooks, list[OutgoingMessage]] = {}
    for message in messages:
        if message.hooks is not NO_HOOKS:
            groups.setdefault(message.hooks, []).append(message)
    return groups
