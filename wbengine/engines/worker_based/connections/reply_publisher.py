"""Where a worker answers requests: on the channel that they came on, with their receipts."""

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
    """Answers requests on the channel of one connection on which they were delivered.

    An answer and the acknowledgement of what it answers are written in one go, in this order, in
    which a broker does what is said on a channel: if it knows that the request was taken, it has
    the answer.  So nobody waits for it to say so, and the next one comes a round trip earlier.
    What it did not confirm when the connection breaks is published again, with `send(message)`.

    `answer` is for any thread, the rest for that of the connection.
    """

    def __init__(
        self,
        channel: amqp_connection.AmqpChannel,
        layout: topology.Topology,
        send: Callable[[OutgoingMessage], None],
        since: float = 0.0,
    ) -> None:
        """Answers nothing before `since`, on the monotonic clock."""
        self._channel = channel
        self._since = since
        self._send = send
        self.confirms = publisher_confirms.PublisherConfirms(
            channel, layout, self._confirmed, publisher_confirms.WINDOW
        )

    def answer(
        self,
        message: OutgoingMessage,
        request: Delivery,
        freed: Callable[[Delivery], None],
        soon: bool,
    ) -> bool:
        """Publish an answer, and acknowledge its request behind it.

        `freed(request)` is called before: from then on the broker may send another one.  `soon`: it
        is written with what is written next, at the latest when the connection's thread looks up.
        False: nothing was done, since it cannot be done here, or not now.
        """
        confirms, channel = self.confirms, self._channel
        if request.amqp_channel is not channel or confirms.room <= 0:
            return False
        if self._since and time.monotonic() < self._since:
            return False
        try:
            sent = confirms.prepare(message)
        except Exception:
            return False  # whoever publishes it in another way says why that fails
        if not channel.claim(request):
            return False
        freed(request)
        message.sent = True
        crashpoint("sender.before-publish")
        if not confirms.send(sent, then=channel.receipt(request)):
            self._again(message)  # the connection is gone, and the request with it
            return True
        if not soon:
            channel.connection.flush()
        crashpoint("sender.after-publish")
        return True

    # The connection's thread.

    def close(self) -> None:
        """The connection is over."""
        left = self.confirms.close()
        self.confirms.report()
        if left:
            LOG.debug("%d answers may be lost with their connection: sent again", len(left))
        for sent in left:
            self._again(sent.message)

    def _again(self, message: OutgoingMessage) -> None:
        message.sent = False
        self._send(message)

    def _confirmed(self, confirmed: Sequence[publisher_confirms.Sent]) -> None:
        for hooks, group in by_hooks(sent.message for sent in confirmed).items():
            sender.call(hooks.sent, group)
