r"""Interface of ledgers, which record which worker may run a request, and its result.

A ledger has one row for each request in progress. The engine creates the row; workers only change
its state:

    open -> OPEN --claim--> CLAIMED --finish--> DONE
             ^  \--revoke--> (no row)
             +------reopen, at a higher epoch---+   (from OPEN and CLAIMED)

`drop` removes the row in any state; `release` reverses a `claim`. The *holder* of a CLAIMED row is
the worker that claimed it. *A request without a row must not be run.* So no guarantee depends on a
time to live, and a message that arrives after the end of its request has no effect.

A process can be frozen before any call, until another engine has continued its flow. So engines
pass a `Fence`, the number of their run of the flow, with each call that opens, reopens, revokes or
finishes rows. An engine that continues a flow first calls `raise_fence` with its higher number.
From then on, calls with lower numbers have no effect, however late they arrive. The check of the
number and the change of the row are one atomic step.

Each call is one atomic step for all processes that use the ledger: only one of two claims of a row
succeeds, and either `finish` or `reopen` succeeds. All calls are thread-safe. Each call raises
`LedgerFailure` if the ledger cannot be reached or written, and ValueError if an id or holder is not
a label.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from wbengine import exceptions
from wbengine._introspection import object_names

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])
E = TypeVar("E", int, int | None)

LOG = logging.getLogger(__name__)

is_label: Final = object_names.is_label

#: Rows that have not changed for this time are swept.
STALE_AFTER_SECONDS: Final = 7 * 24 * 3600.0
#: Minimum time between two sweeps.
SWEEP_PERIOD_SECONDS: Final = 3600.0

#: Maximum number of rows in a page.
MAX_LISTED_ROWS: Final = 1000


State = Literal["open", "claimed", "done"]
ROW_OPEN: Final = "open"
ROW_CLAIMED: Final = "claimed"
ROW_DONE: Final = "done"
#: States by their numbers in databases.
STATES: Final[tuple[State, ...]] = (ROW_OPEN, ROW_CLAIMED, ROW_DONE)

Verdict = Literal["GRANTED", "DONE", "HELD", "MISSING", "STALE"]
GRANTED: Final = "GRANTED"
DONE: Final = "DONE"
HELD: Final = "HELD"
MISSING: Final = "MISSING"
STALE: Final = "STALE"


class Fence(NamedTuple):
    """A run of a flow. Runs that start later have higher numbers.

    Ledgers store the highest number as an OPEN row with this id, whose epoch is the number. Queries
    do not return this row. Like other rows it is swept `STALE_AFTER_SECONDS` after its last change.
    """

    id: str
    number: int

    @classmethod
    def of(cls, flow: str, number: int) -> Fence:
        return cls(FENCE_PREFIX + flow, number)


#: A fence for rows that do not belong to a run of a flow. It has no row, so all calls have effects.
NO_FENCE: Final = Fence("", 0)
FENCE_PREFIX: Final = "fence-"

#: Id and epoch of a row, and the run that changes it.
FencedRow = tuple[str, E, Fence]


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a claim.

    `verdict` is one of these strings:

    - GRANTED: the caller is the holder and must run the request.
    - DONE: the request has run, with `result`.
    - HELD: `holder` has claimed the row (possibly the caller).
    - MISSING: there is no row, or the epoch of the row is lower than requested.
    - STALE: the epoch of the row is higher than requested.

    `epoch` is the epoch of the row, or the requested epoch if there is no row.
    """

    verdict: Verdict
    epoch: int
    result: bytes | None = None
    holder: str | None = None

    @property
    def granted(self) -> bool:
        return self.verdict == GRANTED


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the ledger. Only DONE rows have a result, and only CLAIMED ones a holder.

    :ivar state: 'open', 'claimed' or 'done'.
    """

    id: str
    epoch: int
    state: State
    holder: str | None = None
    result: bytes | None = None


@dataclass(slots=True)
class Opening:
    """A row that is opened while its request is published.

    `tried` identifies an earlier attempt to open it, if that attempt got no reply.
    """

    id: str
    epoch: int
    fence: Fence = NO_FENCE
    tried: Any = None


def refusal(row: Row | None, epoch: int) -> Claim | None:
    """Return the reason why a row cannot be claimed at `epoch`; None if it can."""
    if row is None:
        return Claim(MISSING, epoch)
    if row.epoch != epoch:
        return Claim(STALE if epoch < row.epoch else MISSING, row.epoch)
    if row.state == ROW_DONE:
        return Claim(DONE, epoch, row.result)
    if row.state == ROW_CLAIMED:
        return Claim(HELD, epoch, None, row.holder)
    return None


@dataclass(slots=True)
class RowAccess:
    """What the connections of a process need to change rows in the steps of a broker.

    :ivar ledger: the ledger of the broker; None: connections change no rows.
    :ivar holder: the worker for which connections claim and finish rows; '' in an engine.
    """

    ledger: Any = None
    holder: str = ""

    def claim(self, id: str, epoch: int, stored: Sequence[Any], granted: bool) -> Claim | None:
        """Return the claim of a received message; None if its row has become claimable since.

        :param stored: epoch, number of the state, holder and result of a row that was not claimed
            in the step that received the message. The epoch is None if there is no row.
        """
        if granted:
            return Claim(GRANTED, epoch, None, self.holder)
        row_epoch, state, holder, result = stored
        row = None if row_epoch is None else Row(id, row_epoch, STATES[state], holder, result)
        return refusal(row, epoch)


@dataclass(frozen=True, slots=True)
class Listed:
    """A row in a list, without its result.

    `age` is the number of seconds since the row was opened or completed, on the clock of the
    ledger. A claim also resets it, except in Redis.
    """

    id: str
    epoch: int
    state: State
    holder: str | None
    age: float


@dataclass(frozen=True, slots=True)
class Page:
    """A page of rows. Pass `after` to get the next page; on the last page it is None."""

    rows: Sequence[Listed]
    after: str | None = None


def check_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LISTED_ROWS:
        raise ValueError(f"limit must be 1 to {MAX_LISTED_ROWS} rows, got {limit!r}")
    return limit


def check_id(name: str) -> str:
    return name if is_label(name) else object_names.check_label("request id", name)


def check_holder(name: str) -> str:
    return name if is_label(name) else object_names.check_label("holder", name)


class Ledger(abc.ABC):
    """A ledger. The module docstring describes the states and the guarantees.

    Calls for several rows return a list of results and errors. Ledgers that cannot change all rows
    in one step change them in order and stop at the first error.

    Implementations override the methods with an underscore. Their arguments are already checked.
    """

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """The identity of the ledger, equal in all processes that open it."""

    @property
    def identity(self) -> str:
        """The `digest`, with a suffix that changes whenever a loss of rows is detected.

        After such a change, a missing row does not prove that its request never existed.
        """
        return self.digest

    def accepts(self, digest: str) -> bool:
        """Return whether requests with this digest have their rows here.

        A server that lost its data has a new digest. It also accepts earlier ones that its clients
        have reported.
        """
        return digest == self.digest

    @property
    def has_lost_data(self) -> bool:
        """Whether a client has reported a digest that the ledger had before it lost all rows."""
        return False

    # Calls for engines.

    def raise_fence(self, fence: Fence) -> int:
        """Let calls of runs with lower numbers have no effect from now on.

        Return the stored number. It is higher than `fence.number` if a later run has raised it.
        """
        self.open(*fence)
        row = self.state(fence.id)
        return fence.number if row is None else row.epoch

    def open(self, id: str, epoch: int, fence: Fence = NO_FENCE) -> None:
        """Create the row, OPEN at `epoch`, or replace a row that is OPEN at a lower epoch.

        The replaced row belongs to an engine that was frozen before it published its request. Any
        other row does not change.
        """
        self.open_many(((id, epoch, fence),))

    def open_many(self, rows: Sequence[tuple[str, int] | FencedRow[int]]) -> None:
        if rows:
            self._open(_fenced(rows))

    @abc.abstractmethod
    def _open(self, rows: Sequence[FencedRow[int]]) -> None: ...

    def reopen(self, id: str, epoch: int, fence: Fence = NO_FENCE) -> bytes | None:
        """Move the row from OPEN or CLAIMED at a lower epoch to OPEN at `epoch`.

        If the row is DONE, return its result and change nothing. If the row is at `epoch` or
        higher, change nothing.

        :raises NotFound: if the row does not exist. Only the engine can decide to `open` it again.
        """
        return _only(self.reopen_many(((id, epoch, fence),)))

    def reopen_many(
        self, rows: Sequence[tuple[str, int] | FencedRow[int]]
    ) -> list[bytes | exceptions.NotFound | exceptions.LedgerFailure | None]:
        return call_each(self._reopen, _fenced(rows))

    @abc.abstractmethod
    def _reopen(self, id: str, epoch: int, fence: Fence) -> bytes | exceptions.NotFound | None: ...

    def revoke(self, id: str, epoch: int | None = None, fence: Fence = NO_FENCE) -> bool:
        """Remove the row if it is OPEN, so that no worker runs it; else return False.

        If `epoch` is given, a row at a higher epoch is not removed: it belongs to another engine.
        """
        return _only(self.revoke_many(((id, epoch, fence),))) is not False

    def revoke_many(
        self, rows: Sequence[tuple[str, int | None] | FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        """Revoke rows as `revoke` does.

        None: no row exists after an attempt without a reply, which may have removed it. A row that
        is being opened may not exist yet.
        """
        return self._revoke(_fenced(rows)) if rows else []

    @abc.abstractmethod
    def _revoke(
        self, rows: Sequence[FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]: ...

    def drop(self, id: str) -> None:
        """Remove the row in any state."""
        self.drop_many((id,))

    def drop_many(self, ids: Sequence[str]) -> None:
        for id in ids:
            if not is_label(id):
                check_id(id)
        if ids:
            self._drop(ids)

    @abc.abstractmethod
    def _drop(self, ids: Sequence[str]) -> None: ...

    # Calls for workers.

    def claim(self, id: str, epoch: int, holder: str) -> Claim:
        """Move the row from OPEN at exactly `epoch` to CLAIMED by `holder`."""
        if not (is_label(id) and is_label(holder)):
            check_id(id)
            check_holder(holder)
        return self._claim(id, epoch, holder)

    @abc.abstractmethod
    def _claim(self, id: str, epoch: int, holder: str) -> Claim: ...

    def renew(self, holder: str) -> None:
        """Record a heartbeat of the holder, for all its rows."""
        if not is_label(holder):
            check_holder(holder)
        self._renew(holder)

    @abc.abstractmethod
    def _renew(self, holder: str) -> None: ...

    def finish(self, id: str, epoch: int, holder: str, result: bytes) -> bool:
        """Move the row from CLAIMED by `holder` at `epoch` to DONE with its result.

        Return False, without a change, if the row has another state. Discard the result then.
        """
        return _only(self.finish_many(holder, ((id, epoch, result),)))

    def finish_many(
        self,
        holder: str,
        finished_rows: Sequence[tuple[str, int, bytes]],
        fence: Fence = NO_FENCE,
    ) -> list[bool | exceptions.LedgerFailure]:
        """Finish rows as `finish` does; with a `fence` if an engine does it for a lost worker."""
        if not is_label(holder):
            check_holder(holder)
        return self._finish(holder, _checked(finished_rows), fence) if finished_rows else []

    @abc.abstractmethod
    def _finish(
        self, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: Fence
    ) -> list[bool | exceptions.LedgerFailure]: ...

    def release(self, id: str, epoch: int, holder: str) -> bool:
        """Move the row from CLAIMED by `holder` at `epoch` back to OPEN, before it is started."""
        return self._release(check_id(id), epoch, check_holder(holder))

    @abc.abstractmethod
    def _release(self, id: str, epoch: int, holder: str) -> bool: ...

    # Queries.

    def silence(self, holder: str) -> float | None:
        """Return the seconds since the last heartbeat (or first claim) of a holder, else None.

        The time is measured on the clock of the ledger.
        """
        return _only(self.silences((holder,)))

    def silences(self, holders: Sequence[str]) -> list[float | exceptions.LedgerFailure | None]:
        return call_each(self._silence, [(check_holder(holder),) for holder in holders])

    @abc.abstractmethod
    def _silence(self, holder: str) -> float | None: ...

    def state(self, id: str) -> Row | None:
        return _only(self.states((id,)))

    def states(self, ids: Sequence[str]) -> list[Row | exceptions.LedgerFailure | None]:
        """Return the row of each id, also of fences; None if there is none."""
        for id in ids:
            check_id(id)
        return self._states(ids) if ids else []

    @abc.abstractmethod
    def _states(self, ids: Sequence[str]) -> list[Row | exceptions.LedgerFailure | None]: ...

    def ids(self) -> set[str]:
        """Return the ids of all rows, including rows that were removed only partly."""
        return {id for id in self._ids() if not id.startswith(FENCE_PREFIX)}

    @abc.abstractmethod
    def _ids(self) -> set[str]: ...

    def list_rows(self, limit: int = 100, after: str | None = None) -> Page:
        """Return the first `limit` rows, or the rows after an earlier page.

        A row that exists unchanged while all pages are read is in exactly one page.

        :raises ValueError: if `limit` is not from 1 to `MAX_LISTED_ROWS`.
        """
        page = self._list_rows(check_limit(limit), after)
        return Page([row for row in page.rows if not row.id.startswith(FENCE_PREFIX)], page.after)

    @abc.abstractmethod
    def _list_rows(self, limit: int, after: str | None) -> Page: ...

    # Removal.

    @abc.abstractmethod
    def sweep(self, older_than: float, only_done: bool = False) -> int:
        """Remove rows (only DONE ones if `only_done`) that have not changed for `older_than` s.

        A CLAIMED row is not removed while its holder sends heartbeats. Return the number of rows.
        """

    def sweep_stale(self, result_ttl: float | None) -> int:
        """Remove the unused rows that a ledger removes when it is opened; return their number.

        These are results that are older than `result_ttl` seconds, and other rows that are older
        than both `result_ttl` and `STALE_AFTER_SECONDS`. Rows that are younger than
        `SWEEP_PERIOD_SECONDS` are not removed, because their engine may only be frozen. If
        `result_ttl` is None, nothing is removed.
        """
        if result_ttl is None:
            return 0
        count = self.sweep(max(result_ttl, SWEEP_PERIOD_SECONDS), True)
        return count + self.sweep(max(result_ttl, STALE_AFTER_SECONDS))

    def sweep_when_due(self, result_ttl: float | None) -> None:
        """Call `sweep_stale` unless the ledger was swept recently; log errors."""
        try:
            if self._is_sweep_due():
                self.sweep_stale(result_ttl)
        except (OSError, ValueError, exceptions.LedgerFailure) as error:
            LOG.warning("old rows of ledger %s cannot be deleted: %s", self, error)

    def _is_sweep_due(self) -> bool:
        """Return whether a sweep is due. True reserves this sweep for the caller."""
        return False

    def close(self) -> None:  # noqa: B027 - most ledgers have nothing to free
        """Remove this process's holders that have no rows, and free resources."""


def batches(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split values into parts of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


def call_each(
    call: Callable[..., T], calls: Iterable[tuple[Any, ...]]
) -> list[T | exceptions.LedgerFailure]:
    """Return the result of each call.

    After a LedgerFailure, the remaining calls are skipped and get the same error: the caller
    waits for the timeout of the ledger only once.
    """
    results: list[T | exceptions.LedgerFailure] = []
    failed: exceptions.LedgerFailure | None = None
    for args in calls:
        try:
            results.append(call(*args) if failed is None else failed)
        except exceptions.LedgerFailure as error:
            failed = error
            results.append(error)
    return results


def _only(results: Sequence[T | exceptions.NotFound | exceptions.LedgerFailure]) -> T:
    [result] = results
    if isinstance(result, exceptions.NotFound | exceptions.LedgerFailure):
        raise result
    return result


def _fenced(rows: Sequence[tuple[str, E] | FencedRow[E]]) -> list[FencedRow[E]]:
    fenced_rows: list[FencedRow[E]] = []
    for row in rows:
        if not is_label(row[0]):
            check_id(row[0])
        fenced_rows += ((row[0], row[1], row[2] if len(row) > 2 else NO_FENCE),)
    return fenced_rows


def _checked(rows: Sequence[R]) -> Sequence[R]:
    for row in rows:
        if not is_label(row[0]):
            check_id(row[0])
    return rows
