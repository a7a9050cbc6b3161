"""What waits in the queues of an exchange, and whether a worker takes from them, as the broker
tells.

TaskFlow's workers answer questions with the threads that run their tasks: a busy one is as silent
as a dead one.  But it goes on taking what is sent to its topic.
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
from wbengine.engines.worker_based.connections import connecting, topology
from wbengine.engines.worker_based.connections.connecting import Connection
from wbengine.transports.broker import Broker

LOG = logging.getLogger(__name__)

#: So many messages lie in a queue only if nobody takes them: an engine asks each few seconds, and
#: whoever takes does so at once.
PILE: Final = 3

#: Seconds that the broker has to answer.
PATIENCE: Final = 3.0


@dataclass(frozen=True, slots=True)
class Counted:
    """A queue: how many messages wait in it, how many take from it (None: the broker does not
    tell), and the routing keys under which it is bound (as far as that is told)."""

    name: str
    messages: int
    consumers: int | None = None
    keys: tuple[str, ...] = field(default=())


def tells_all(target: transports.Target) -> bool:
    """Whether the broker can be asked which queues there are."""
    return target.ours


def count(
    connection: Connection, target: transports.Target, exchange: str, known: Iterable[str]
) -> list[Counted]:
    """The queues of an exchange, by name; where the broker does not tell which there are, those
    that are `known`.  Nothing is made.

    :raises TransportFailure: the broker refuses, or is away.
    """
    if isinstance(connection, Broker):
        with connecting.translated(connection, target):
            return _of_broker(connection, exchange)
    found = (_passively(connection, target, name) for name in sorted(set(known)))
    return [each for each in found if each is not None]


def _of_broker(broker: Broker, exchange: str) -> list[Counted]:
    keys: dict[str, list[str]] = {}
    for queue, of, key in broker.bindings():
        if of == exchange:
            keys.setdefault(queue, []).append(key)
    return [Counted(name, broker.size(name), None, tuple(keys[name])) for name in sorted(keys)]


def _passively(
    connection: kombu.Connection, target: transports.Target, name: str
) -> Counted | None:
    with _asking(connection, target, name) as channel:
        told = channel.queue_declare(name, passive=True)
        return Counted(name, told.message_count, told.consumer_count if target.amqp else None)
    return None


def purge(
    connection: Connection, target: transports.Target, names: Collection[str]
) -> dict[str, int]:
    """Remove what waits in queues; how many messages went from each that is there.

    :raises TransportFailure: the broker refuses, or is away.
    """
    if isinstance(connection, Broker):
        with connecting.translated(connection, target):
            return {name: connection.purge(name) for name in names}
    gone: dict[str, int] = {}
    for name in names:
        with _asking(connection, target, name) as channel:
            channel.queue_declare(name, passive=True)
            gone[name] = channel.queue_purge(name) or 0
    return gone


def remove_unused(connection: Connection, names: Iterable[str]) -> None:
    """Remove those queues that are empty; others may see to it that they are used."""
    if isinstance(connection, Broker):
        for name in names:
            if not connection.size(name):
                connection.delete_queue(name)
        return
    with connection.channel() as channel:
        for name in names:
            channel.queue_delete(name, if_unused=True, if_empty=True)


@contextlib.contextmanager
def _asking(connection: kombu.Connection, target: transports.Target, name: str) -> Iterator[Any]:
    """A channel of its own, for an error closes it; that there is no such queue is none."""
    with (
        contextlib.suppress(exc.NotFound),
        connecting.translated(connection, target, name),
        connection.channel() as channel,
    ):
        yield channel


def exchanges(connection: Connection) -> list[str]:
    """The exchanges whose queues are at the same place, where the broker tells."""
    if not isinstance(connection, Broker):
        return []
    return sorted({exchange for _, exchange, _ in connection.bindings()})


def inquiry(target: transports.Target, exchange: str) -> Callable[[str], bool]:
    """`is_served` of the topics of one exchange; whatever cannot be found out is taken for so."""
    layout = topology.Topology(exchange, "unused", (), topology.TASKFLOW)

    def ask(topic: str) -> bool:
        try:
            with target.connect(connect_timeout=PATIENCE) as connection:
                return is_served(connection, layout.shared_name(topic), target.amqp)
        except Exception as error:  # a broker that is away says nothing of workers
            LOG.debug("the broker cannot be asked for topic %s: %s", topic, error)
            return True

    return ask


def is_served(connection: Any, queue: str, amqp: bool) -> bool:
    """Whether anybody takes from `queue`, as far as the broker can tell.

    :raises Exception: the broker cannot be asked.
    """
    with connection.channel() as channel:
        if amqp:
            try:
                # It is gone with its last consumer.
                return bool(channel.queue_declare(queue, passive=True).consumer_count)
            except connection.channel_errors:
                return False
        size = getattr(channel, "_size", None)  # of all transports that are emulated
        return size is None or size(queue) < PILE
