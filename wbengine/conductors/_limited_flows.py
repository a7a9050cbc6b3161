"""Flows that wait for a permit of their own limit: they are rows, until a permit is free.

An engine whose flow gets no permit parks the flow. The end of a flow offers its permit to the next
one. Permits can also become free without such an event: a process died, an operator changed the
limit, the limit is a rate, or a permit was released before the flow was parked. Therefore each
conductor also compares the limits with the jobs that wait for them at intervals.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Final

from wbengine import exceptions, states
from wbengine._limits import limit_changes, shared_accounts
from wbengine._limits.permit_rules import Account, PermitRequest
from wbengine._tasks.limit_attributes import UNLIMITED, Quota
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base

__all__ = ["LimitedFlows"]

#: Interval between two comparisons.
_POLL_SECONDS: Final = 0.5
#: Epoch that ends the membership of any run.
_LAST_EPOCH: Final = 2**62


class LimitedFlows:
    """Lets flows run for which permits are free.

    :param place: the store of the limits: the URL of a Redis, or the backend of the flows.
    """

    def __init__(
        self, board: impl_sql.SQLJobBoard, backend: base.Backend, place: str | base.Backend
    ) -> None:
        self._board = board
        self._backend = backend
        self._store = shared_accounts.store_of(place)
        self._next_poll = 0.0
        self._after = ""

    def poll(self) -> None:
        """Compare some of the limits with their jobs, if this is due."""
        if time.monotonic() < self._next_poll:
            return
        self._next_poll = time.monotonic() + _POLL_SECONDS
        names = self._board.limits_waited_for(self._after)
        self._after = names[-1] if len(names) == impl_sql.MAX_PAGE_SIZE else ""
        self.offer(dict.fromkeys(names))

    def offer(self, limits: Mapping[str, Quota | None]) -> None:
        """Let the next flows run that wait for these limits, if permits are free.

        :param limits: names, and quotas where the caller knows them.
        """
        names = list(limits)
        for start in range(0, len(names), shared_accounts.MAX_ACCOUNTS_PER_BATCH):
            part = names[start : start + shared_accounts.MAX_ACCOUNTS_PER_BATCH]
            accounts, changes = self._store.read(part), self._store.changes(part)
            for name in part:
                account, now = accounts.get(name, (None, 0.0))
                quota = limits[name] or (account.defined if account is not None else None)
                if account is not None:
                    self._release_ended(name, account, now)
                else:
                    # No flow has a permit. The first one tells the quota.
                    account, quota = Account(), quota or Quota(concurrency=1)
                account.quota = limit_changes.apply(name, quota or UNLIMITED, changes)
                free = account.assignable(now)
                if free:
                    self._board.offer_limited(name, free)

    def _release_ended(self, name: str, account: Account, now: float) -> None:
        """Release the permits of parked flows that were deleted or have ended elsewhere."""
        gone = [uuid for uuid in account.kept(now) if not self._keeps_permit(uuid)]
        if gone:
            requests = [PermitRequest(uuid, _LAST_EPOCH, 0, 0, 0.0) for uuid in gone]
            self._store.settle({name: (account.defined, requests)})
            for uuid in gone:
                del account.flows[uuid]

    def _keeps_permit(self, uuid: str) -> bool:
        with contextlib.closing(self._backend.get_connection()) as connection:
            try:
                detail = connection.get_flow_details(uuid, lazy=True)
            except exceptions.NotFound:
                return False
        return detail.state not in states.FLOW_ENDED and not detail.is_suspended_by_command
