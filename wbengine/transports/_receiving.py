"""The interface through which a process receives messages: one connection, and its consumers.

`Broker` implements it for wbengine's own brokers, `KombuLink` for kombu's transports, and
`AmqpLink` for RabbitMQ.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar


class MessageConsumer(abc.ABC):
    """Takes messages from queues, passes them on, and settles them. It is their `channel`.

    Only the draining thread may call `consume`, `cancel` and `admits`; other methods are
    thread-safe.
    """

    @abc.abstractmethod
    def consume(self, queues: Iterable[str], limit: int = 0) -> None:
        """Consume from existing queues, up to `limit` unsettled messages (0: unlimited).

        An earlier call has the same queues, unless `cancel` was called since.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """Stop taking messages."""

    @abc.abstractmethod
    def admits(self, message: Any) -> bool:
        """Return whether a delivered message may be processed; otherwise it must be requeued."""

    @abc.abstractmethod
    def ack_many(self, messages: Sequence[Any]) -> object:
        """Acknowledge messages of this consumer, except settled ones."""

    def answer(
        self, message: Any, request: Any, freed: Callable[[Any], object], soon: bool
    ) -> bool:
        """Publish a reply and acknowledge its request, if one write can do both.

        :param freed: `freed(request)` is called before writing, because the next request may
            arrive immediately after it.
        :param soon: whether to leave the sending to the next write, or to the next `wake`.
        :returns: False if this is not possible now.
        """
        return False

    def release_many(self, messages: Iterable[Any]) -> None:  # noqa: B027
        """Exclude these messages from the limit, if the broker supports it."""

    def forget_many(self, messages: Sequence[Any]) -> object:
        """Mark messages as acknowledged; only for brokers that finish requests."""
        raise NotImplementedError

    def order(self, done: Iterable[Any]) -> Any:
        """Return an `Order` for the capacity that is free once `done` are settled, or None."""
        return None


class ReceivingLink(abc.ABC):
    """A connection that receives. Not thread-safe, except `wake`."""

    #: Seconds after which queues are declared again: a cleaner of temporary files may have removed
    #: them, or a broker after days without use.
    declare_seconds: ClassVar[float] = 3600.0
    #: Whether `wake` has an effect; otherwise `drain` must be short.
    can_wake: ClassVar[bool] = True
    #: Called for each message that cannot be read.
    on_discard: Callable[[], object] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether the broker currently reads nothing from this connection."""
        return False

    @abc.abstractmethod
    def declare(self, layout: Any, shared: Sequence[str]) -> None:
        """Declare the private queue of a `Topology`, and shared queues."""

    @abc.abstractmethod
    def consumer(self, handle: Callable[[Any], object], outbox: Any) -> MessageConsumer:
        """Return a consumer that passes messages to `handle`.

        :param outbox: the sender of the process, if the messages are requests; else None.
        """

    @abc.abstractmethod
    def drain(self, timeout: float | None = None) -> None:
        """Wait for messages, and pass them on.

        :param timeout: seconds; None: no limit.
        :raises TimeoutError: if no message arrived in time.
        """

    def wake(self) -> None:  # noqa: B027
        """Let the current or next `drain` return at once, if it can. Thread-safe."""

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Send the acknowledgements of this context together, where possible."""
        return contextlib.nullcontext()

    def refuses(self, error: BaseException) -> bool:
        """Return whether the broker will always refuse an operation that caused an error."""
        return False

    @abc.abstractmethod
    def end(self, layout: Any, remove: bool, unused: Sequence[str]) -> None:
        """Requeue messages that were not passed on. If `remove`, delete the private queue.

        Delete those of the shared queues that are `unused`, if nothing else deletes them soon.
        """

    def delete_private_queue(self, name: str) -> None:  # noqa: B027 - most go by themselves
        """Delete the queue of a stopped process, if the broker does not delete it."""

    def drop(self) -> None:  # noqa: B027 - it is closed anyway
        """Discard a broken connection."""

    def detach(self) -> None:  # noqa: B027
        """Release the resources of this link, but not the connection."""
