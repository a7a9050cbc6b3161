"""Flows that only wait for a permit: they are rows, until a permit is free.

An engine whose flow gets no permit parks the flow, also if all ready tasks wait for one limit. The
end of a flow or a task offers its permit to the next one. Permits can also become free without such
an event: a process died, an operator changed the limit, the limit is a rate, or a permit was
released before the flow was parked. Therefore each conductor also compares the limits with the jobs
that wait for them at intervals.

The first flows that wait for a limit take part in it (`PermitRequest.of_parked`), so that later
flows do not overtake them, and a flow is offered when it can get its permit. Flows of paused queues
and of queues that this conductor does not serve do not take part.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from wbengine import states
from wbengine._limits import account_stores, limit_changes, permit_renewer
from wbengine._limits.permit_sharing import Account, PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base, models

__all__ = ["LimitedFlows"]

#: Interval between two comparisons.
_POLL_SECONDS: Final = 0.5
#: Number of flows that are offered at once.
_MAX_OFFERED: Final = 100


class LimitedFlows:
    """Lets flows run for which permits are free.

    :param board: returns the board with the jobs of the flows.
    :param place: the store of the limits: the URL of a Redis, or the backend of the flows.
    """

    def __init__(
        self,
        board: Callable[[], impl_sql.SQLJobBoard],
        backend: base.Backend,
        place: str | base.Backend,
    ) -> None:
        self._get_board = board
        self._backend = backend
        self._place = place
        self._store = account_stores.store_of(place)
        self._home = account_stores.home_of(place, backend)
        # Limits with permits for parked flows, according to engines of this process; the quotas are
        # those of the code.
        self._free: dict[str, Quota] = {}
        # Flows that were offered last for limits without an account: in the previous round over
        # all limits, and in this one.
        self._offered_before: dict[str, list[str]] = {}
        self._offered: dict[str, list[str]] = {}
        self._next_poll = 0.0
        self._after = ""

    @property
    def _board(self) -> impl_sql.SQLJobBoard:
        return self._get_board()

    def waking(self, wake: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
        """Call `wake` during the block when `offer_free` should be called.

        This requires that engines of this process request permits from the same store object.
        """

        def note(name: str, quota: Quota) -> None:
            self._free[name] = quota
            wake()

        return permit_renewer.of_process()(self._place).offering(note)

    def offer_free(self) -> None:
        """Let flows run for whose limits engines of this process released permits."""
        while self._free:
            self.offer(*self._free.popitem())

    def poll(self) -> None:
        """Compare some of the limits with their jobs, if this is due."""
        if time.monotonic() < self._next_poll:
            return
        self._next_poll = time.monotonic() + _POLL_SECONDS
        waiting = self._board.limits_waited_for(self._after)
        if not self._after:
            self._offered_before, self._offered = self._offered, {}
        self._after = waiting[-1][0] if len(waiting) == impl_sql.MAX_PAGE_SIZE else ""
        for start in range(0, len(waiting), account_stores.MAX_ACCOUNTS_PER_BATCH):
            part = waiting[start : start + account_stores.MAX_ACCOUNTS_PER_BATCH]
            self._compare({name: uuid for name, uuid in part if uuid is not None})

    def offer(self, name: str, quota: Quota) -> None:
        """Let the next flows run that wait for a limit, if permits are free.

        :param quota: that of the code, if no other flow uses the limit.
        """
        account, _ = self._store.read([name]).get(name, (Account(defined=quota), 0.0))
        self._offer(name, account)

    def _compare(self, first_flows: Mapping[str, str]) -> None:
        """Offer flows that wait for these limits, or reserve permits for the first ones."""
        if not first_flows:
            return
        accounts = self._store.read([*first_flows])
        self._release_ended(accounts)
        changes = self._store.changes([*first_flows])
        of_costs = [
            uuid
            for name, uuid in first_flows.items()
            if name in accounts and accounts[name][0].log is not None
        ]
        units = self._units(of_costs)
        self._offer_unknown([name for name in first_flows if name not in accounts])
        reservations = dict[str, account_stores.Requests]()
        for name, (account, now) in accounts.items():
            uuid = first_flows[name]
            request = PermitRequest.of_parked(uuid, units.get(uuid, 1.0))
            trial, quota = Account.from_dict(account.to_dict()), account.defined
            in_force = limit_changes.apply(name, quota, changes)
            if trial.settle(quota, [request], now, in_force).resumable:
                self._offer(name, account)
            elif not account.reserves(uuid, now):
                reservations[name] = quota, [request]
        answers = self._store.settle(reservations) if reservations else {}
        for name, answer in answers.items():
            if answer.resumable:  # A permit became free meanwhile.
                self._offer(name, accounts[name][0])

    def _offer_unknown(self, names: Iterable[str]) -> None:
        """Offer flows that wait for limits for which no flow has a permit.

        The first one tells the quota. If it was taken and does not, its code may have no such limit
        any more. Then twice as many follow each time.
        """
        before = {name: self._offered_before.get(name, []) for name in names}
        untaken = self._board.ready([uuid for offered in before.values() for uuid in offered])
        for name, offered in before.items():
            if untaken.isdisjoint(offered):
                count = min(max(1, 2 * len(offered)), _MAX_OFFERED)
                offered = self._board.offer_limited(name, self._board.jobs_of_limit(name, count))
            self._offered[name] = offered

    def _offer(self, name: str, account: Account) -> None:
        count = _MAX_OFFERED
        while count == _MAX_OFFERED:
            uuids = self._board.jobs_of_limit(name, _MAX_OFFERED)
            if not uuids:
                return
            units = self._units(uuids) if account.log is not None else {}
            requests = [PermitRequest.of_parked(uuid, units.get(uuid, 1.0)) for uuid in uuids]
            answer = self._store.settle({name: (account.defined, requests)})[name]
            resumable = [uuid for uuid in uuids if uuid in answer.resumable]
            count = len(resumable)
            if resumable:
                self._board.offer_limited(name, resumable)

    def _release_ended(self, accounts: Mapping[str, tuple[Account, float]]) -> None:
        """Release the permits of parked flows that were deleted or have ended elsewhere.

        A flow that runs again meanwhile has a higher epoch and keeps its permit. Flows of other
        stores, which share the limits, keep theirs.
        """
        kept = {name: account.kept(now) for name, (account, now) in accounts.items()}
        records = self._records([uuid for uuids in kept.values() for uuid in uuids])
        ended = {
            name: [
                uuid
                for uuid in uuids
                if not _keeps_permit(
                    records.get(uuid), accounts[name][0].flows[uuid].home in ("", self._home)
                )
            ]
            for name, uuids in kept.items()
        }
        requests = {
            name: (
                accounts[name][0].defined,
                [
                    PermitRequest(uuid, accounts[name][0].flows[uuid].epoch, 0, 0, 0.0)
                    for uuid in uuids
                ],
            )
            for name, uuids in ended.items()
            if uuids
        }
        if requests:
            self._store.settle(requests)
            for name in requests:
                for uuid in ended[name]:
                    del accounts[name][0].flows[uuid]

    def _units(self, uuids: Sequence[str]) -> dict[str, float]:
        return {uuid: record.permit_units for uuid, record in self._records(uuids).items()}

    def _records(self, uuids: Sequence[str]) -> Mapping[str, models.FlowDetail]:
        if not uuids:
            return {}
        with contextlib.closing(self._backend.get_connection()) as connection:
            return connection.flow_records(uuids)


def _keeps_permit(record: models.FlowDetail | None, is_here: bool) -> bool:
    """Return whether a parked flow keeps its permit.

    :param is_here: whether the store of the flow may be this one, so that it has a record here if
        it was not deleted.
    """
    if record is None:
        return not is_here
    return record.state not in states.FLOW_ENDED and not record.is_suspended_by_command
