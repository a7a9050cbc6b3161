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
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based.connections import topology
from wbengine.transports import reasons

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
    connection: kombu.Connection, target: transports.Target, exchange: str, known: Iterable[str]
) -> list[Counted]:
    """The queues of an exchange, by name; where the broker does not tell which there are, those
    that are `known`.  Nothing is made.

    :raises TransportFailure: the broker refuses, or is away.
    """
    if tells_all(target):
        return _of_store(connection.transport.store, exchange)
    found = (_passively(connection, target, name) for name in sorted(set(known)))
    return [each for each in found if each is not None]


def _of_store(store: Any, exchange: str) -> list[Counted]:
    keys: dict[str, list[str]] = {}
    for queue, of, key in store.bindings():
        if of == exchange:
            keys.setdefault(queue, []).append(key)
    return [Counted(name, store.size(name), None, tuple(keys[name])) for name in sorted(keys)]


def _passively(
    connection: kombu.Connection, target: transports.Target, name: str
) -> Counted | None:
    with _asking(connection, target, name) as channel:
        told = channel.queue_declare(name, passive=True)
        return Counted(name, told.message_count, told.consumer_count if target.amqp else None)
    return None


def purge(
    connection: kombu.Connection, target: transports.Target, names: Collection[str]
) -> dict[str, int]:
    """Remove what waits in queues; how many messages went from each that is there.

    :raises TransportFailure: the broker refuses, or is away.
    """
    gone: dict[str, int] = {}
    for name in names:
        with _asking(connection, target, name) as channel:
            if not target.ours:  # ours purge what is not there, too
                channel.queue_declare(name, passive=True)
            gone[name] = channel.queue_purge(name) or 0
    return gone


@contextlib.contextmanager
def _asking(connection: kombu.Connection, target: transports.Target, name: str) -> Iterator[Any]:
    """A channel of its own, for an error closes it; that there is no such queue is none."""
    try:
        with connection.channel() as channel:
            yield channel
    except amqp_errors.NotFound:
        return
    except connection.channel_errors as error:
        if getattr(error, "code", None) in (404, "404"):
            return
        raise exc.TransportFailure(
            f"queue {name} at {target.shown}: {reasons.explain(error)}"
        ) from error
    except (*connection.recoverable_connection_errors, OSError) as error:
        raise exc.TransportFailure(
            f"the broker at {target.shown} was lost: {reasons.explain(error)}"
        ) from error


def exchanges(connection: kombu.Connection, target: transports.Target) -> list[str]:
    """The exchanges whose queues are at the same place, where the broker tells."""
    if not tells_all(target):
        return []
    return sorted({exchange for _, exchange, _ in connection.transport.store.bindings()})


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
