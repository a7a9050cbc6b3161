"""Match replies to requests: which request a reply belongs to, and whether it counts.

A reply is accepted once, for the current epoch of a request without an outcome. All other replies
(second, late, old, misaddressed, or for an unknown request) are dropped and counted.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import Any, Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests.request_state import RequestTable, TrackedRequest

LOG = logging.getLogger(__name__)

#: Maximum number of stored replies for requests that are not submitted yet.
MAX_EARLY_REPLIES: Final = 10_000


class ReplyMatcher:
    """Finds the requests of replies, and drops replies that do not count.

    :param requests: all requests of the engine.
    """

    def __init__(self, requests: RequestTable) -> None:
        self._requests = requests
        #: Whether replies may arrive before their requests are submitted.
        self.inherits = False
        #: These replies.
        self.early = EarlyReplies()
        #: Number of dropped replies by reason: unknown, late, duplicate, reordered, old_epoch,
        #: unexpected, unreadable, misaddressed.
        self.ignored: Counter[str] = Counter()

    def match(self, reply: Reply, engine: str) -> tuple[TrackedRequest | None, str | None]:
        """Return the request of a reply if it is known, and the reason to drop the reply, or None.

        Replies to other names are dropped, because any process may publish to all engines.

        :param engine: the name of this engine.
        """
        if reply.to not in ("", engine):
            return None, "misaddressed"
        tracked = self._requests.get(reply.request_id)
        return tracked, "unknown" if tracked is None else self.refusal(tracked, reply)

    def refusal(self, tracked: TrackedRequest, reply: Reply) -> str | None:
        """Return the reason to drop a reply to a request, or None if it is new."""
        state = reply.state
        if not tracked.live:
            return "late"
        if state in pr.WAITING_STATES:
            return "unexpected"
        if not tracked.is_current_reply(reply):
            return "old_epoch"
        if state == pr.RUNNING:
            if tracked.claimed and reply.ask_number is None:
                tracked.heard = True
                return None  # The request waited for a slot.
            heard_before, tracked.heard = tracked.heard, True
            if tracked.state == pr.RUNNING:
                return "duplicate" if heard_before else "reordered"
        # Only events need this check: a second RUNNING has no effect, and the first result counts.
        if state == pr.EVENT and not tracked.fresh(reply.worker, reply.seq):
            return "duplicate"
        return None

    def drop(self, reply: Reply, reason: str, receipt: Any) -> list[Any]:
        """Drop and count a reply, or keep it because its request may be submitted later.

        :returns: the receipts to acknowledge now.
        """
        if reason == "unknown" and self.inherits and reply.state in pr.STOP_STATES:
            rejected = self.early.keep(reply, receipt)
            return [] if rejected is None else [rejected]
        self.ignored[reason] += 1
        if reason == "misaddressed":
            LOG.warning("refused a reply to %.80r, which is not this engine", reply.to)
        else:
            LOG.debug(
                "ignored %s for request %s (epoch %s, worker %s): %s",
                reply.state, reply.request_id, reply.epoch, reply.worker, reason,
            )  # fmt: skip
        return [receipt]


class EarlyReplies:
    """Terminal replies with their receipts, for requests that are not submitted yet.

    Only an engine that takes over the name of an earlier one receives them.
    """

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, tuple[Reply, Any]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def keep(self, reply: Reply, receipt: Any) -> Any:
        """Keep the first reply to a request.

        :returns: the receipt to acknowledge now, or None: that of a second reply to the request,
            or that of the oldest reply if there are too many.
        """
        if reply.request_id in self._by_id:
            return receipt
        self._by_id[reply.request_id] = reply, receipt
        if len(self._by_id) > MAX_EARLY_REPLIES:
            return self._by_id.popitem(last=False)[1][1]
        return None

    def take(self, id: str) -> tuple[Reply, Any] | None:
        return self._by_id.pop(id, None)

    def clear(self) -> None:
        self._by_id.clear()
