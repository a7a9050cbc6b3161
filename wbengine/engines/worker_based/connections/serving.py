"""Whether anybody takes from a queue: asked of the broker, about peers that have fallen silent.

TaskFlow's workers answer questions with the threads that run their tasks: a busy one is as silent
as a dead one.  But it goes on taking what is sent to its topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wbengine import transports
from wbengine.engines.worker_based.connections import topology

__all__ = ["inquiry", "is_served"]

LOG = logging.getLogger(__name__)

#: So many messages lie in a queue only if nobody takes them: an engine asks each few seconds, and
#: whoever takes does so at once.
PILE: Final = 3

#: Seconds that the broker has to answer.
PATIENCE: Final = 3.0


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
