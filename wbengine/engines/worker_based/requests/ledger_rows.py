"""What an engine finds in its ledger about requests that it does not hear of."""

from __future__ import annotations

import logging
from collections.abc import Iterable

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

    def look(self, tracked: TrackedRequest) -> Seen:
        """The row of a request, and of one that is claimed the silence of its holder."""
        try:
            row = self._ledger.state(tracked.id)
            holder = row.holder if row is not None else None
            silence = self._ledger.silence(holder) if holder is not None else None
        except exc.LedgerFailure as error:
            self._tell("look at the row of", tracked, error)
            return Seen(UNKNOWN)
        self._told.clear()
        if row is None:
            return Seen(None)
        silent = silence is not None and self._expiry is not None and silence >= self._expiry
        result = _thawed(row.result, tracked)
        return Seen(row.state, row.holder, result, row.epoch, silent, silence)

    def open(self, id: str, epoch: int) -> None:
        """Make a row that nobody has, but perhaps an owner of old who was frozen while he made it:
        he published nothing after that.

        :raises LedgerFailure: the ledger cannot be reached.
        """
        self._ledger.offer(id, epoch)

    def revoke(self, tracked: TrackedRequest) -> bool:
        """Make sure that nobody starts a request whose message may be out."""
        crashpoint("executor.before-revoke")
        try:
            # Who takes the flow over while this process is frozen uses higher numbers.
            return self._ledger.revoke(tracked.id, max(tracked.epoch, tracked.invocation.epoch))
        except exc.LedgerFailure as error:
            self._tell("revoke", tracked, error)
            return False
        finally:
            crashpoint("executor.after-revoke")

    def reopen(self, tracked: TrackedRequest, epoch: int) -> tuple[bool, env.Envelope | None]:
        """Take a request from its holder: whether it worked, and the answer if it is done."""
        crashpoint("executor.before-reopen")
        try:
            result = self._ledger.reopen(tracked.id, epoch)
        except exc.NotFound:
            result = None  # where there is no row, nobody has it
        except exc.LedgerFailure as error:
            self._tell("reopen the row of", tracked, error)
            return False, None
        crashpoint("executor.after-reopen")
        return True, _thawed(result, tracked)

    def conclude(self, tracked: TrackedRequest, holder: str, failure: ft.Failure) -> bool:
        """End a request for its holder, who is lost: whether that worked, and was not done yet."""
        answer = env.Envelope(
            pr.RESPONSE,
            {"state": pr.FAILURE, "data": {"result": pr.failure_to_dict(failure)}},
            headers={env.WBE_VERSION: env.VERSION, env.WBE_EPOCH: tracked.epoch},
        )
        try:
            return self._ledger.finish(tracked.id, tracked.epoch, holder, env.freeze(answer))
        except exc.LedgerFailure as error:
            self._tell("end, for its lost worker,", tracked, error)
            return False

    def sweep(self, ended: Iterable[str]) -> int:
        """Remove the rows of these requests, whose ends are saved; how many there were.

        Costs one look at the ledger when it is empty, whatever `ended` holds.
        """
        count = 0
        try:
            known = self._ledger.ids()
            for request_id in ended if known else ():
                if request_id in known:
                    crashpoint("executor.before-sweep")
                    self._ledger.drop(request_id)
                    count += 1
        except exc.LedgerFailure as error:
            LOG.warning("failed to remove rows that nobody needs: %s", error)
        return count

    def _tell(self, what: str, tracked: TrackedRequest, error: exc.LedgerFailure) -> None:
        """Once for each reason, until a look succeeds: it is the same for all requests."""
        reason = what, str(error).replace(tracked.id, "")
        level = logging.DEBUG if reason in self._told else logging.WARNING
        self._told.add(reason)
        LOG.log(level, "failed to %s %r: %s", what, tracked.request, error)


def _thawed(result: bytes | None, tracked: TrackedRequest) -> env.Envelope | None:
    if result is None:
        return None
    try:
        return env.thaw(result, tracked.id)
    except (LookupError, TypeError, ValueError) as error:
        LOG.warning("the answer to request %s in the ledger cannot be read: %s", tracked.id, error)
        return None
