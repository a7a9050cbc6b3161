"""The rows of the requests of an executor, as its tracker needs them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from wbengine import exceptions as exc
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import signing
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests.recovery import UNKNOWN, RowSnapshot
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.transports import _ledger as ledgers
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: Number of requests above which the ids of all rows are read, to find those that have rows.
_MAX_READ_ROWS: Final = 1000


class Rows:
    """The rows of one ledger. If the ledger is unavailable, methods log that and return."""

    def __init__(
        self, ledger: ledgers.Ledger, expiry: float | None, signer: signing.Signer | None = None
    ) -> None:
        self._ledger = ledger
        self._signer = signer
        self._expiry = expiry
        # Operations that failed and their reasons, since the last success.
        self._logged: set[tuple[str, str]] = set()

    def read(self, requests: Sequence[TrackedRequest]) -> list[RowSnapshot]:
        """Return the rows of requests, and for claimed rows the silence of their owners."""
        rows = self._ledger.states([tracked.id for tracked in requests])
        claimed_by = (row.holder for row in rows if isinstance(row, ledgers.Row) and row.holder)
        holders = list(dict.fromkeys(claimed_by))
        silences = dict(zip(holders, self._ledger.silences(holders), strict=True))
        return [self._row_snapshot(*each, silences) for each in zip(requests, rows, strict=True)]

    def _row_snapshot(
        self,
        tracked: TrackedRequest,
        row: ledgers.Row | exc.LedgerFailure | None,
        silences: Mapping[str, float | exc.LedgerFailure | None],
    ) -> RowSnapshot:
        silence = silences.get(row.holder or "") if isinstance(row, ledgers.Row) else None
        for failed in (row, silence):
            if isinstance(failed, exc.LedgerFailure):
                self._log_failure("read the ledger row of", tracked, failed)
                return RowSnapshot(UNKNOWN)
        assert not isinstance(row, exc.LedgerFailure) and not isinstance(silence, exc.LedgerFailure)
        self._logged.clear()
        if row is None:
            return RowSnapshot(None)
        silent = silence is not None and self._expiry is not None and silence >= self._expiry
        result = self._decode_reply(row.result, tracked)
        return RowSnapshot(row.state, row.holder, result, row.epoch, silent, silence)

    def revoke(self, requests: Sequence[TrackedRequest]) -> list[bool | None]:
        """Revoke rows so that no worker starts the requests; return which succeeded.

        None: see `Ledger.revoke_many`.
        """
        crashpoint("executor.before-revoke")
        # An engine that takes over the flow uses higher epochs; their rows are not revoked.
        rows = [(each.id, max(each.epoch, each.invocation.epoch), each.fence) for each in requests]
        results = self._ledger.revoke_many(rows)
        crashpoint("executor.after-revoke")
        return [self._succeeded("revoke", *each) for each in zip(requests, results, strict=True)]

    def reopen(
        self, requests: Sequence[tuple[TrackedRequest, int]]
    ) -> list[tuple[bool, Reply | None]]:
        """Move rows of lost owners back to OPEN, with new epochs.

        :returns: for each request whether that succeeded, and the reply if it is done.
        """
        crashpoint("executor.before-reopen")
        results = self._ledger.reopen_many(
            [(tracked.id, epoch, tracked.fence) for tracked, epoch in requests]
        )
        crashpoint("executor.after-reopen")
        replies: list[tuple[bool, Reply | None]] = []
        for (tracked, _), result in zip(requests, results, strict=True):
            if isinstance(result, exc.LedgerFailure):
                self._log_failure("reopen the ledger row of", tracked, result)
                replies.append((False, None))
            else:  # A missing row is a success: no worker has the request.
                stored = None if isinstance(result, exc.NotFound) else result
                replies.append((True, self._decode_reply(stored, tracked)))
        return replies

    def conclude(self, requests: Sequence[tuple[TrackedRequest, str, ft.Failure]]) -> list[bool]:
        """Store failures for requests of lost owners; return for each whether that succeeded.

        Requests that are already done do not change.
        """
        action = "finish, after the loss of its worker, the ledger row of"
        succeeded = []
        grouped = itertools.groupby(requests, lambda each: (each[1], each[0].fence))
        for (holder, fence), group in grouped:
            failures = [(tracked, failure) for tracked, _, failure in group]
            rows = [(each.id, each.epoch, self._failure_reply(each, why)) for each, why in failures]
            results = self._ledger.finish_many(holder, rows, fence)
            for (tracked, _), result in zip(failures, results, strict=True):
                succeeded.append(bool(self._succeeded(action, tracked, result)))
        return succeeded

    def _succeeded(
        self, action: str, tracked: TrackedRequest, result: bool | exc.LedgerFailure | None
    ) -> bool | None:
        if isinstance(result, exc.LedgerFailure):
            self._log_failure(action, tracked, result)
            return False
        return result

    def sweep(self, ended: Iterable[str]) -> None:
        """Remove rows whose results are saved.

        Cost: O(ended), or one read of the ids of all rows if there are many.
        """
        try:
            if stale := self._existing(ended):
                crashpoint("executor.before-sweep")
                self._ledger.drop_many(stale)
        except exc.LedgerFailure as error:
            LOG.warning("failed to delete unused ledger rows: %s", error)

    def _existing(self, request_ids: Iterable[str]) -> list[str]:
        remaining = iter(request_ids)
        first_ids = list(itertools.islice(remaining, _MAX_READ_ROWS + 1))
        if len(first_ids) > _MAX_READ_ROWS:
            existing = self._ledger.ids()
            return [id for id in itertools.chain(first_ids, remaining) if id in existing]
        rows = self._ledger.states(first_ids)
        for row in rows:
            if isinstance(row, exc.LedgerFailure):
                raise row
        return [id for id, row in zip(first_ids, rows, strict=True) if row is not None]

    def _failure_reply(self, tracked: TrackedRequest, failure: ft.Failure) -> bytes:
        data = {"result": pr.failure_to_dict(failure)}
        message = Reply(tracked.id, pr.FAILURE, data, epoch=tracked.epoch).to_message()
        message.signer = self._signer
        return env.freeze(message)

    def _decode_reply(self, result: bytes | None, tracked: TrackedRequest) -> Reply | None:
        if result is None:
            return None
        try:
            message = env.thaw(result, tracked.id, signer=self._signer)
            pr.Response.validate(message.body)
            reply = Reply.from_message(message)
            if reply.state not in pr.STOP_STATES or reply.is_lost:
                raise exc.InvalidFormat("it is not the result of a task")
            return reply
        except (
            LookupError, RecursionError, TypeError, ValueError, exc.InvalidFormat, exc.NotTrusted,
        ) as error:  # fmt: skip
            LOG.warning(
                "the reply to request %s in the ledger cannot be read: %s", tracked.id, error
            )
            return None

    def _log_failure(self, action: str, tracked: TrackedRequest, error: exc.LedgerFailure) -> None:
        """Log an error; the same error at DEBUG until a read succeeds."""
        reason = action, str(error).replace(tracked.id, "")
        level = logging.DEBUG if reason in self._logged else logging.WARNING
        self._logged.add(reason)
        LOG.log(level, "failed to %s %r: %s", action, tracked, error)
