"""Where a worker answers requests: on the channel that they came on, with their receipts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from wbengine import exceptions as exc
from wbengine._crash import crashpoint
from wbengine.engines.worker_based.connections import lanes, outbox, topology, unconfirmed
from wbengine.engines.worker_based.connections.parcels import Parcel
from wbengine.transports._amqp_delivery import Delivery

__all__ = ["Desk"]

LOG = logging.getLogger(__name__)


class Desk:
    """Answers requests on the lane of one connection on which they were delivered.

    An answer and the acknowledgement of what it answers are written in one go, in this order, in
    which a broker does what is said on a channel: if it knows that the request was taken, it has
    the answer.  So nobody waits for it to say so, and the next one comes a round trip earlier.
    What it did not confirm when the connection breaks is published again, with `send(parcel)`.

    `answer` is for any thread, the rest for that of the connection.
    """

    def __init__(
        self,
        lane: lanes.Lane,
        layout: topology.Topology,
        send: Callable[[Parcel], None],
    ) -> None:
        self._lane = lane
        self._send = send
        self._post = unconfirmed.Post(lane, layout, self._confirmed, unconfirmed.WINDOW)

    def answer(
        self, parcel: Parcel, request: Delivery, freed: Callable[[Delivery], None], soon: bool
    ) -> bool:
        """Publish an answer, and acknowledge its request behind it.

        `freed(request)` is called before: from then on the broker may send another one.  `soon`: it
        is written with what is written next, at the latest when the connection's thread looks up.
        False: nothing was done, since it cannot be done here, or not now.
        """
        post, lane = self._post, self._lane
        if request.lane is not lane or post.room <= 0:
            return False
        try:
            sent = post.prepare(parcel)
        except Exception:
            return False  # whoever publishes it in another way says why that fails
        if not lane.claim(request):
            return False
        freed(request)
        parcel.sent = True
        crashpoint("outbox.before-publish")
        if not post.send(sent, then=lane.receipt(request)):
            self._again(parcel)  # the connection is gone, and the request with it
            return True
        if not soon:
            lane.line.flush()
        crashpoint("outbox.after-publish")
        return True

    # The connection's thread.

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reads nothing on this connection for now: an alarm."""
        return self._post.blocked

    def report(self) -> None:
        """Tell of what the broker confirmed."""
        self._post.report()

    def check(self, now: float) -> None:
        """Call it when all is read that came.

        :raises TransportFailure: the broker does not confirm what it should have by now.
        """
        # While it blocks publishers it only waits; and without them it would deliver all again.
        if not self._post.blocked and self._post.is_late(now):
            raise exc.TransportFailure("the broker confirms nothing")

    def close(self) -> None:
        """The connection is over."""
        left = self._post.close()
        self.report()
        if left:
            LOG.debug("%d answers may be lost with their connection: sent again", len(left))
        for sent in left:
            self._again(sent.parcel)

    def _again(self, parcel: Parcel) -> None:
        parcel.sent = False
        self._send(parcel)

    def _confirmed(self, confirmed: Sequence[unconfirmed.Sent]) -> None:
        for errand, group in outbox.by_errand(sent.parcel for sent in confirmed).items():
            outbox.call(errand.sent, group)
