"""The requests of a tracker by id and by flow, and replies that arrived before their requests."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages.replies import Reply
from wbengine.engines.worker_based.requests.tracked import TrackedRequest

#: Maximum number of stored replies for requests that are not submitted yet.
MAX_EARLY_REPLIES: Final = 10_000


class RequestTable:
    """All requests, in the order of submission, from submission until their outcome is saved."""

    def __init__(self) -> None:
        self._by_id: dict[str, TrackedRequest] = {}
        self._by_flow: dict[str, dict[str, TrackedRequest]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> TrackedRequest | None:
        return self._by_id.get(id)

    def add(self, tracked: TrackedRequest) -> None:
        """Add a request.

        :raises Duplicate: if there is a request with its id.
        """
        if tracked.id in self._by_id:
            raise exc.Duplicate(f"request {tracked!r} is already tracked")
        self._by_id[tracked.id] = tracked
        self._by_flow.setdefault(tracked.flow, {})[tracked.id] = tracked

    def remove(self, tracked: TrackedRequest) -> None:
        del self._by_id[tracked.id]
        requests = self._by_flow[tracked.flow]
        del requests[tracked.id]
        if not requests:
            del self._by_flow[tracked.flow]

    def of_flow(self, flow: str | None) -> list[TrackedRequest]:
        """Return the requests of one flow, by its uuid, or all requests."""
        return list((self._by_id if flow is None else self._by_flow.get(flow, {})).values())

    def unfinished(self, flow: str | None = None) -> list[TrackedRequest]:
        return [tracked for tracked in self.of_flow(flow) if tracked.live]

    def unstarted(self, flow: str | None = None) -> list[TrackedRequest]:
        """Return the unfinished requests that no worker is known to have started.

        Dispatched requests must be revoked before they are forgotten, except inherited ones
        (`RequestTracker.is_inherited`), which are still unchanged.
        """
        return [tracked for tracked in self.unfinished(flow) if tracked.state in pr.WAITING_STATES]


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
        """Keep the first reply to a request. Return the receipt of a reply not kept, or None."""
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
