"""Count messages and consumers of the queues of an exchange.

TaskFlow's workers reply to NOTIFY in the threads that run their tasks, so a busy worker is as
silent as a dead one. It continues to consume from the queue of its topic, though.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based._connections import connecting, topology
from wbengine.engines.worker_based._connections.connecting import Connection
from wbengine.transports._broker import Broker

LOG = logging.getLogger(__name__)

#: With this number of messages or more, a queue counts as having no consumer. A consumer takes
#: messages as soon as they arrive, so few of them remain.
UNCONSUMED_MESSAGES: Final = 3

BROKER_TIMEOUT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class QueueCount:
    """A queue with its messages, consumers (None: unknown), and routing keys (if known).

    `silent`: the process that owns it does not report.
    """

    name: str
    messages: int
    consumers: int | None = None
    keys: tuple[str, ...] = field(default=())
    silent: bool = False


def can_list_queues(target: transports.Target) -> bool:
    return target.is_native


def count(
    connection: Connection, target: transports.Target, exchange: str, known: Iterable[str]
) -> list[QueueCount]:
    """Return the queues of an exchange by name, without creating any.

    If the broker cannot list queues, only the `known` queues are read.

    :raises TransportFailure: if the broker refuses or is unavailable.
    """
    if isinstance(connection, Broker):
        with connecting.translated(connection, target):
            return _of_broker(connection, exchange)
    counts = (count_passively(connection, target, name) for name in sorted(set(known)))
    return [each for each in counts if each is not None]


def _of_broker(broker: Broker, exchange: str) -> list[QueueCount]:
    keys: dict[str, list[str]] = {}
    for queue, of, key in broker.bindings():
        if of == exchange:
            keys.setdefault(queue, []).append(key)
    silent = broker.silent_queues()
    return [
        QueueCount(name, broker.size(name), None, tuple(keys[name]), name in silent)
        for name in sorted(keys)
    ]


def count_passively(
    connection: kombu.Connection, target: transports.Target, name: str
) -> QueueCount | None:
    """Return a queue that kombu reaches, or None if it does not exist."""
    with _open_channel(connection, target, name) as channel:
        declared = channel.queue_declare(name, passive=True)
        return QueueCount(
            name, declared.message_count, declared.consumer_count if target.amqp else None
        )
    return None


def purge(
    connection: Connection, target: transports.Target, names: Collection[str]
) -> dict[str, int]:
    """Remove the messages of queues; return their number for each existing queue.

    :raises TransportFailure: if the broker refuses or is unavailable.
    """
    if isinstance(connection, Broker):
        with connecting.translated(connection, target):
            return {name: connection.purge(name) for name in names}
    purged: dict[str, int] = {}
    for name in names:
        with _open_channel(connection, target, name) as channel:
            channel.queue_declare(name, passive=True)
            purged[name] = channel.queue_purge(name) or 0
    return purged


def remove_unused(connection: Connection, names: Iterable[str]) -> None:
    """Remove those of the queues that are empty and have no consumer."""
    if isinstance(connection, Broker):
        for name in names:
            if not connection.size(name):
                connection.delete_queue(name)
        return
    with connection.channel() as channel:
        for name in names:
            channel.queue_delete(name, if_unused=True, if_empty=True)


@contextlib.contextmanager
def _open_channel(
    connection: kombu.Connection, target: transports.Target, name: str
) -> Iterator[Any]:
    """Open a separate channel, because an error closes it. Ignore a missing queue."""
    with (
        contextlib.suppress(exc.NotFound),
        connecting.translated(connection, target, name),
        connection.channel() as channel,
    ):
        yield channel


def exchanges(connection: Connection) -> list[str]:
    """Return the exchanges at the same place, if the broker can list them."""
    if not isinstance(connection, Broker):
        return []
    return sorted({exchange for _, exchange, _ in connection.bindings()})


def consumer_check(target: transports.Target, exchange: str) -> Callable[[str], bool]:
    """Return a function that returns whether a topic has a consumer (True if unknown)."""
    layout = topology.Topology(exchange, "unused", (), topology.TASKFLOW)

    def ask(topic: str) -> bool:
        try:
            with connecting.reach_soon(target, BROKER_TIMEOUT_SECONDS) as connection:
                return is_served(connection, layout.shared_name(topic), target.amqp)
        except Exception as error:  # If the broker is unavailable, assume a consumer.
            LOG.debug("cannot query the broker about topic %s: %s", topic, error)
            return True

    return ask


def is_served(connection: Any, queue: str, amqp: bool) -> bool:
    """Return whether `queue` has a consumer; True if the broker cannot report it."""
    with connection.channel() as channel:
        if amqp:
            try:
                # The queue is deleted with its last consumer.
                return bool(channel.queue_declare(queue, passive=True).consumer_count)
            except connection.channel_errors:
                return False
        size = getattr(channel, "_size", None)  # Every virtual transport of kombu has it.
        return size is None or size(queue) < UNCONSUMED_MESSAGES
