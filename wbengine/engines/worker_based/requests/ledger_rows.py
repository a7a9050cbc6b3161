"""What an engine finds in its ledger about requests that it does not hear of."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence

from wbengine import exceptions as exc
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests.recovery import UNKNOWN, Seen
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.types import failure as ft

__all__ = ["Rows"]

LOG = logging.getLogger(__name__)


class Rows:
    """The rows of one ledger.  A ledger that cannot be reached is an answer, and no error."""

    def __init__(self, ledger: ledgers.Ledger, expiry: float | None) -> None:
        self._ledger = ledger
        self._expiry = expiry
        # What does not work, and why, as long as it does not.
        self._told: set[tuple[str, str]] = set()

    def look(self, requests: Sequence[TrackedRequest]) -> list[Seen]:
        """The rows of requests, and of those that are claimed the silence of their holders."""
        rows = self._ledger.states([tracked.id for tracked in requests])
        held = (row.holder for row in rows if isinstance(row, ledgers.Row) and row.holder)
        holders = list(dict.fromkeys(held))
        silences = dict(zip(holders, self._ledger.silences(holders), strict=True))
        return [self._seen(*each, silences) for each in zip(requests, rows, strict=True)]

    def _seen(
        self,
        tracked: TrackedRequest,
        row: ledgers.Row | exc.LedgerFailure | None,
        silences: Mapping[str, float | exc.LedgerFailure | None],
    ) -> Seen:
        silence: float | exc.LedgerFailure | None = None
        if isinstance(row, ledgers.Row) and row.holder is not None:
            silence = silences[row.holder]
        for failed in (row, silence):
            if isinstance(failed, exc.LedgerFailure):
                self._tell("look at the row of", tracked, failed)
                return Seen(UNKNOWN)
        assert not isinstance(row, exc.LedgerFailure) and not isinstance(silence, exc.LedgerFailure)
        self._told.clear()
        if row is None:
            return Seen(None)
        silent = silence is not None and self._expiry is not None and silence >= self._expiry
        result = _thawed(row.result, tracked)
        return Seen(row.state, row.holder, result, row.epoch, silent, silence)

    def revoke(self, requests: Sequence[TrackedRequest]) -> list[bool]:
        """Make sure that no worker starts requests whose messages may be out; of which it is."""
        crashpoint("executor.before-revoke")
        # Who takes the flow over while this process is frozen uses higher numbers.
        rows = [(each.id, max(each.epoch, each.invocation.epoch)) for each in requests]
        told = self._ledger.revoke_many(rows)
        crashpoint("executor.after-revoke")
        return [self._worked("revoke", *each) for each in zip(requests, told, strict=True)]

    def reopen(
        self, requests: Sequence[tuple[TrackedRequest, int]]
    ) -> list[tuple[bool, env.Envelope | None]]:
        """Take requests from their holders, under new epochs: whether that worked, and the answer
        of one that is done.
        """
        crashpoint("executor.before-reopen")
        told = self._ledger.reopen_many([(tracked.id, epoch) for tracked, epoch in requests])
        crashpoint("executor.after-reopen")
        found: list[tuple[bool, env.Envelope | None]] = []
        for (tracked, _), result in zip(requests, told, strict=True):
            if isinstance(result, exc.LedgerFailure):
                self._tell("reopen the row of", tracked, result)
                found.append((False, None))
            else:  # where there is no row, no worker has it
                answer = None if isinstance(result, exc.NotFound) else _thawed(result, tracked)
                found.append((True, answer))
        return found

    def conclude(self, requests: Sequence[tuple[TrackedRequest, str, ft.Failure]]) -> list[bool]:
        """End requests for their holders, who are lost: of which that worked, and was not done
        yet.
        """
        found = []
        for holder, group in itertools.groupby(requests, lambda each: each[1]):
            some = list(group)
            rows = [(each.id, each.epoch, _ended(each, failure)) for each, _, failure in some]
            for (tracked, _, _), told in zip(
                some, self._ledger.finish_many(holder, rows), strict=True
            ):
                found.append(self._worked("end, for its lost worker,", tracked, told))
        return found

    def _worked(self, what: str, tracked: TrackedRequest, told: bool | exc.LedgerFailure) -> bool:
        if isinstance(told, exc.LedgerFailure):
            self._tell(what, tracked, told)
            return False
        return told

    def sweep(self, ended: Iterable[str]) -> int:
        """Remove the rows of these requests, whose ends are saved; how many there were.

        Costs one look at the ledger when it is empty, whatever `ended` holds.
        """
        stale: list[str] = []
        try:
            known = self._ledger.ids()
            stale = [request_id for request_id in ended if request_id in known] if known else []
            if stale:
                crashpoint("executor.before-sweep")
                self._ledger.drop_many(stale)
        except exc.LedgerFailure as error:
            LOG.warning("failed to remove rows that nobody needs: %s", error)
        return len(stale)

    def _tell(self, what: str, tracked: TrackedRequest, error: exc.LedgerFailure) -> None:
        """Once for each reason, until a look succeeds: it is the same for all requests."""
        reason = what, str(error).replace(tracked.id, "")
        level = logging.DEBUG if reason in self._told else logging.WARNING
        self._told.add(reason)
        LOG.log(level, "failed to %s %r: %s", what, tracked.request, error)


def _ended(tracked: TrackedRequest, failure: ft.Failure) -> bytes:
    answer = env.Envelope(
        pr.RESPONSE,
        {"state": pr.FAILURE, "data": {"result": pr.failure_to_dict(failure)}},
        headers={env.WBE_VERSION: env.VERSION, env.WBE_EPOCH: tracked.epoch},
    )
    return env.freeze(answer)


def _thawed(result: bytes | None, tracked: TrackedRequest) -> env.Envelope | None:
    if result is None:
        return None
    try:
        return env.thaw(result, tracked.id)
    except (LookupError, TypeError, ValueError) as error:
        LOG.warning("the answer to request %s in the ledger cannot be read: %s", tracked.id, error)
        return None
