"""A message on its way out, and what is done before and after it is published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports.broker import Broker, LaidOut


class DeliveryHooks:
    """What messages of one kind need besides being published.

    All is called in the thread that publishes, with as many messages as go out together, so that a
    ledger or a broker is told of all of them in one step.
    """

    #: Whether the broker is to say when there was no queue for a message (`unrouted`).
    mandatory: ClassVar[bool] = False

    #: Whether it writes its messages itself (`write`), to brokers of ours.
    writes: ClassVar[bool] = False

    def write(
        self, broker: Broker, messages: Sequence[OutgoingMessage], prepared: Sequence[LaidOut]
    ) -> Iterable[bool]:
        """Publish what was laid out; whether there was a queue for each, in order."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        """Whether to publish again what a lost connection may have swallowed; else `uncertain`."""
        return True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        """Before they are published; those that are not to be are `withdrawn` here.

        What it raises of an ailing broker or ledger is a reason to try again later; anything else
        fails all of them.
        """

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        """They were published (where the broker confirms: once it did)."""

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        """It never can be published."""

    def unrouted(self, message: OutgoingMessage) -> None:
        """There was no queue for it.  Only where that matters."""
        self.sent((message,))

    def uncertain(self, message: OutgoingMessage) -> None:
        """The connection was lost before the broker had confirmed it."""


class _Echo(DeliveryHooks):
    mandatory = True

    def unrouted(self, message: OutgoingMessage) -> None:
        """The sender sees to that: see `Sender.astray`."""


#: Of messages that only have to go out; and of those to oneself, which come back unless what one
#: declared is gone.
NO_HOOKS, ECHO = DeliveryHooks(), _Echo()


@dataclass(slots=True, eq=False)
class OutgoingMessage:
    """One message that a sender publishes in its turn.

    `correlation` is what its hooks know it by.  One that was `withdrawn` in time is skipped;
    `sent`: it has left the sender.
    """

    envelope: env.Envelope
    hooks: DeliveryHooks = NO_HOOKS
    correlation: Any = None
    sent: bool = False
    withdrawn: bool = False

    @property
    def size(self) -> int:
        """Bytes of its body; none of one that cannot be encoded, which fails in its turn."""
        try:
            return len(self.envelope.encoded)
        except Exception:
            return 0


def by_hooks(messages: Iterable[OutgoingMessage]) -> dict[DeliveryHooks, list[OutgoingMessage]]:
    """Messages that need something, by what they need."""
    found: dict[DeliveryHooks, list[OutgoingMessage]] = {}
    for message in messages:
        if message.hooks is not NO_HOOKS:
            found.setdefault(message.hooks, []).append(message)
    return found
