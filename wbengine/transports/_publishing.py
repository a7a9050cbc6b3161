"""The interface through which a process publishes: a writer for each connection.

`BrokerWriter` implements it for wbengine's own brokers, `KombuWriter` for kombu's transports, and
`AmqpWriter` for RabbitMQ.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

#: Maximum number of messages of a batch.
MAX_BATCH_MESSAGES: Final = 64


class Writer(abc.ABC):
    """Publishes on one connection, in one thread at a time.

    A writer that `confirms` reports the results of messages later, in the thread that calls `read`.
    """

    confirms: ClassVar[bool] = False
    #: Whether an error may concern all messages of a `write`, not only the next one.
    together: ClassVar[bool] = True
    #: Whether to publish one message at a time, because the broker refused one.
    is_careful: bool = False

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reports that it accepts no messages."""
        return False

    @property
    def is_idle(self) -> bool:
        """Whether all published messages are confirmed."""
        return True

    @property
    def room(self) -> int:
        """Maximum number of messages that may be written now."""
        return MAX_BATCH_MESSAGES

    @property
    def is_shared(self) -> bool:
        """Whether any thread may publish; otherwise only the thread that calls `open`."""
        return True

    @abc.abstractmethod
    def open(self) -> None:
        """Prepare for publishing."""

    @abc.abstractmethod
    def encode(self, message: Any) -> None:
        """Encode a message before `write`.

        :raises Exception: if it cannot be encoded.
        """

    @abc.abstractmethod
    def write(self, messages: Sequence[Any]) -> Iterator[bool | None]:
        """Publish in order; yield for each message whether it has a queue, or None: see `confirms`.

        :raises Exception: if the connection is lost, or the next message cannot be published.
        """

    def wake(self) -> None:  # noqa: B027
        """Let the current or next `read` return at once. Thread-safe."""

    def read(self, timeout: float | None, gathers: bool) -> None:
        """Wait for confirms, and report them; only for writers that confirm.

        :param gathers: whether to wait shortly for more.
        :raises Exception: if the connection is lost.
        """
        raise NotImplementedError

    def fail(self, error: Exception) -> Exception:
        """Discard the connection after an error, and return the error to raise."""
        return error

    def close(self) -> Sequence[Any]:
        """Publish no more. Return the messages that may or may not have been published."""
        return ()
