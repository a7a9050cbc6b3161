"""Outgoing messages, and hooks before and after publishing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports.broker import Broker, LaidOut


class DeliveryHooks:
    """Actions before and after publishing messages of one kind.

    The publishing thread calls the methods with all messages of a batch.
    """

    #: Whether the broker must report messages without a queue (`unrouted`).
    mandatory: ClassVar[bool] = False

    #: Whether the hooks publish the messages with `write`; only with brokers of wbengine.
    writes: ClassVar[bool] = False

    def write(
        self, broker: Broker, messages: Sequence[OutgoingMessage], prepared: Sequence[LaidOut]
    ) -> Iterable[bool]:
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


@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """A message in the queue of a sender.

    `correlation` identifies it for its hooks. A `withdrawn` message is skipped, unless it is too
    late. `sent` is True after the message has left the sender.
    """

    envelope: env.Envelope
    hooks: DeliveryHooks = NO_HOOKS
    correlation: Any = None
    sent: bool = False
    withdrawn: bool = False

    @property
    def size(self) -> int:
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
