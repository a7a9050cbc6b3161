"""Publish replies of a worker together with the acknowledgements of their requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import (
    amqp_connection,
    publisher_confirms,
    sender,
    topology,
)
from wbengine.engines.worker_based.connections.outgoing import OutgoingMessage, by_hooks
from wbengine.transports._amqp_frames import Delivery

LOG = logging.getLogger(__name__)


class ReplyPublisher:
    """Publishes replies on the channel on which their requests were delivered.

    A reply and the acknowledgement of its request are written together. The broker processes them
    in this order, so the worker need not wait for the confirm of the reply. If the connection is
    lost, unconfirmed replies are published again with `send(message)`.

    `answer` is thread-safe; other methods belong to the thread of the connection.
    """

    def __init__(
        self,
        channel: amqp_connection.AmqpChannel,
        layout: topology.Topology,
        send: Callable[[OutgoingMessage], None],
        since: float = 0.0,
    ) -> None:
        """Create a publisher that publishes no replies before `since` (monotonic clock)."""
        self._channel = channel
        self._since = since
        self._send = send
        self.confirms = publisher_confirms.PublisherConfirms(
            channel, layout, self._confirmed, publisher_confirms.MAX_UNCONFIRMED
        )

    def answer(
        self,
        message: OutgoingMessage,
        request: Delivery,
        freed: Callable[[Delivery], None],
        soon: bool,
    ) -> bool:
        """Publish a reply and acknowledge its request.

        :param freed: `freed(request)` is called before writing, because the next request may
            arrive immediately after it.
        :param soon: whether to leave the sending to the next write, or to the next wake-up of the
            connection's thread.
        :returns: False if this is not possible now.
        """
        confirms, channel = self.confirms, self._channel
        if request.amqp_channel is not channel or confirms.room <= 0:
            return False
        if self._since and time.monotonic() < self._since:
            return False
        try:
            sent = confirms.prepare(message)
        except Exception:
            return False  # The sender then reports the error.
        if not channel.claim(request):
            return False
        freed(request)
        message.sent = True
        crashpoint("sender.before-publish")
        if not confirms.send(sent, then=channel.receipt(request)):
            # The connection is closed.
            self._resend(message)
            return True
        if not soon:
            channel.connection.flush()
        crashpoint("sender.after-publish")
        return True

    # Methods for the connection's thread.

    def close(self) -> None:
        """Close the publisher and resend unconfirmed replies."""
        unconfirmed = self.confirms.close()
        self.confirms.report()
        if unconfirmed:
            LOG.debug(
                "resending %d replies that were unconfirmed when their connection closed",
                len(unconfirmed),
            )
        for sent in unconfirmed:
            self._resend(sent.message)

    def _resend(self, message: OutgoingMessage) -> None:
        message.sent = False
        self._send(message)

    def _confirmed(self, confirmed: Sequence[publisher_confirms.Sent]) -> None:
        for hooks, group in by_hooks(sent.message for sent in confirmed).items():
            sender.call(hooks.sent, group)
