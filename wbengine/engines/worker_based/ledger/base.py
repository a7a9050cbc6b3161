"""The contract of a ledger: who may run a request, and what came of it.

A ledger has one row per request that is under way.  The engine makes the row, a worker only moves
it:

    open -> OPEN --claim--> CLAIMED --finish--> DONE
             ^  \\--revoke--> (no row)
             +------reopen, at a higher epoch---+   (from OPEN and CLAIMED)

and `drop` removes it in any state; `release` is a `claim` undone.  *No row means: do not run.*  So
nothing depends on a time to live, and a message that is delivered long after its request ended does
nothing.

Each call is one atomic step among all processes that opened the same ledger: of two claims of one
row one wins, and of `finish` and `reopen` one wins.  `claim`, `release`, `finish` and `renew` are
the calls of workers; `open`, `reopen`, `revoke` and `drop` those of the engine that owns the
request.  All may be called from any thread.  Each raises `LedgerFailure` when the place of the
ledger cannot be reached or written, and ValueError for an id or holder that is no label.
"""

from __future__ import annotations

import abc
import heapq
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from wbengine import _names, exceptions

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])

LOG = logging.getLogger(__name__)

is_label: Final = _names.is_label

#: A row whose engine and worker did nothing for so long is nobody's any more; looked for when
#: somebody opens the ledger, but not more often than each hour.
STALE_AFTER: Final = 7 * 24 * 3600.0
SWEEP_EVERY: Final = 3600.0

#: So many rows are listed at once, at most.
MOST_LISTED: Final = 1000

#: States of a row.
State = Literal["open", "claimed", "done"]
ROW_OPEN: Final = "open"
ROW_CLAIMED: Final = "claimed"
ROW_DONE: Final = "done"

#: Answers to a claim.
Verdict = Literal["GRANTED", "DONE", "HELD", "MISSING", "STALE"]
GRANTED: Final = "GRANTED"
DONE: Final = "DONE"
HELD: Final = "HELD"
MISSING: Final = "MISSING"
STALE: Final = "STALE"


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim.

    GRANTED: run it, you are its holder.  DONE: it ran, `result` is what came of it.  HELD:
    `holder` has it (perhaps yourself).  MISSING: there is no such row, or it is at an older epoch
    than asked. STALE: the row is at a newer epoch.  `epoch` is the row's where there is one, else
    the one asked.
    """

    verdict: Verdict
    epoch: int
    result: bytes | None = None
    holder: str | None = None

    @property
    def granted(self) -> bool:
        """Whether the caller has to run it."""
        return self.verdict == GRANTED


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was when it was looked at."""

    id: str
    epoch: int
    state: State
    holder: str | None = None
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A row as a list shows it: without its result.

    `age`: seconds since it was opened or ended, on the clock of the ledger's place (everywhere but
    in Redis also since it was claimed).
    """

    id: str
    epoch: int
    state: State
    holder: str | None
    age: float


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a list; `after` is what the next page is asked for with, None: there is none."""

    rows: Sequence[Listed]
    after: str | None = None


@dataclass(slots=True)
class Opening:
    """A row that is made (`open`) while its request is published.

    `tried`: how that was begun by whoever got no answer; nobody looks at the row until it is
    answered.
    """

    id: str
    epoch: int
    tried: Any = None


class Openings(Protocol):
    """What makes rows in one step with publishing their requests."""

    def open_and_publish(
        self, broker: Any, rows: Sequence[Opening], messages: Sequence[Any]
    ) -> Sequence[int]:
        """`open` these rows, and publish their messages; in how many queues each of these is.

        Where no answer came, it is to be called again for all that is still wanted, and first for
        what was tried before: what was done then is not done twice.  One thread at a time.

        :raises LedgerFailure: the ledger cannot be reached.
        """


def page_of(ids: Iterable[str], limit: int, after: str | None) -> tuple[list[str], str | None]:
    """Of all ids those of one page, in their order, and what the next one is asked for with."""
    check_limit(limit)
    found = heapq.nsmallest(limit + 1, (id for id in ids if after is None or id > after))
    return found[:limit], found[limit - 1] if len(found) > limit else None


def check_limit(limit: int) -> int:
    """`limit`, if a page can have so many rows.

    :raises ValueError: it cannot.
    """
    if type(limit) is not int or not 1 <= limit <= MOST_LISTED:
        raise ValueError(f"a page has 1 to {MOST_LISTED} rows, not {limit!r}")
    return limit


def check_id(name: str) -> str:
    """`name`, if a row can be called so.

    :raises ValueError: it cannot.
    """
    return name if is_label(name) else _names.check_label("request id", name)


def check_holder(name: str) -> str:
    """`name`, if a holder can be called so.

    :raises ValueError: it cannot.
    """
    return name if is_label(name) else _names.check_label("holder", name)


def refusal(row: Row | None, epoch: int) -> Claim | None:
    """Why a row cannot be claimed at `epoch`; None: it can, for it is OPEN at that."""
    if row is None:
        return Claim(MISSING, epoch)
    if row.epoch != epoch:
        return Claim(STALE if epoch < row.epoch else MISSING, row.epoch)
    if row.state == ROW_DONE:
        return Claim(DONE, epoch, row.result)
    if row.state == ROW_CLAIMED:
        return Claim(HELD, epoch, None, row.holder)
    return None


class Ledger(abc.ABC):
    """One ledger; see the module for the contract.

    Each call for one row is a call for several: what it returned, or raised, stands in the list
    that those return.  Where several cannot be one step, they are done in their order.

    A kind of ledger provides what begins with an underscore, and is given ids and holders that were
    checked.  Of the calls that each request takes, no name that is as it should be costs one more.
    """

    @property
    @abc.abstractmethod
    def digest(self) -> str:
        """Which ledger this is: the same text in every process that opened the same one."""

    @property
    def identity(self) -> str:
        """As `digest`, and another text each time that the ledger was found to have lost rows:
        that one has no row then says nothing of a request that was sent before."""
        return self.digest

    # Calls of the engine.

    def open(self, id: str, epoch: int) -> None:
        """Make the row, OPEN at `epoch`; changes nothing when there is a row, whatever its
        epoch."""
        self.open_many(((id, epoch),))

    def open_many(self, rows: Sequence[tuple[str, int]]) -> None:
        """`open` each of these (id, epoch); one that fails leaves those after it unmade."""
        if rows:
            self._open(_checked(rows))

    @abc.abstractmethod
    def _open(self, rows: Sequence[tuple[str, int]]) -> None: ...

    def offer(self, id: str, epoch: int) -> None:
        """As `open`, but a row that is OPEN at an older epoch is replaced: by who made it and was
        frozen then, nothing was published."""
        self.offer_many(((id, epoch),))

    def offer_many(self, rows: Sequence[tuple[str, int]]) -> None:
        """`offer` each of these (id, epoch); one that fails leaves those after it unmade."""
        if rows:
            self._offer(_checked(rows))

    def _offer(self, rows: Sequence[tuple[str, int]]) -> None:
        for id, epoch in rows:
            while True:
                self.open(id, epoch)
                row = self.state(id)
                if row is None or row.epoch >= epoch or row.state != ROW_OPEN:
                    break
                self.revoke(id, row.epoch)

    def reopen(self, id: str, epoch: int) -> bytes | None:
        """Move the row from OPEN or CLAIMED at an older epoch to OPEN at `epoch`.

        Returns the result instead, and changes nothing, when the row is DONE.  Changes nothing when
        the row is at `epoch` or newer already.

        :raises NotFound: there is no row: what became of the request is not known, and only the
            engine can decide to `open` it again.
        """
        return _only(self.reopen_many(((id, epoch),)))

    def reopen_many(
        self, rows: Sequence[tuple[str, int]]
    ) -> list[bytes | exceptions.NotFound | exceptions.LedgerFailure | None]:
        """`reopen` each of these (id, epoch)."""
        return each_of(self._reopen, _checked(rows))

    def _reopen(self, id: str, epoch: int) -> bytes | exceptions.NotFound | None:
        while not self._try_reopen(id, epoch):
            row = self.state(id)
            if row is None:
                return exceptions.NotFound(f"request {id} has no row in ledger {self.digest}")
            if row.state == ROW_DONE:
                return row.result
            if row.epoch >= epoch:
                break
            # It was made anew in between: look again.
        return None

    def _try_reopen(self, id: str, epoch: int) -> bool:
        """Whether the row was one that can be reopened, and is."""
        raise NotImplementedError

    def revoke(self, id: str, epoch: int | None = None) -> bool:
        """Remove the row if it is OPEN, so that nobody runs it; False when it is not.

        With `epoch`, not if it is at a newer one: that is somebody else's.
        """
        return _only(self.revoke_many(((id, epoch),)))

    def revoke_many(
        self, rows: Sequence[tuple[str, int | None]]
    ) -> list[bool | exceptions.LedgerFailure]:
        """`revoke` each of these (id, epoch)."""
        return self._revoke(_checked(rows)) if rows else []

    @abc.abstractmethod
    def _revoke(
        self, rows: Sequence[tuple[str, int | None]]
    ) -> list[bool | exceptions.LedgerFailure]: ...

    def drop(self, id: str) -> None:
        """Remove the row in whatever state; fine when there is none."""
        self.drop_many((id,))

    def drop_many(self, ids: Sequence[str]) -> None:
        """`drop` each of these; one that fails leaves those after it where they are."""
        for id in ids:
            if not is_label(id):
                check_id(id)
        if ids:
            self._drop(ids)

    @abc.abstractmethod
    def _drop(self, ids: Sequence[str]) -> None: ...

    # Calls of workers.

    def claim(self, id: str, epoch: int, holder: str) -> Claim:
        """Move the row from OPEN at exactly `epoch` to CLAIMED by `holder`, or say why not."""
        if not (is_label(id) and is_label(holder)):
            check_id(id)
            check_holder(holder)
        return self._claim(id, epoch, holder)

    def _claim(self, id: str, epoch: int, holder: str) -> Claim:
        while not self._try_claim(id, epoch, holder):
            refused = refusal(self.state(id), epoch)
            if refused is not None:
                return refused
            self._renew(holder)  # it was made since then, or the holder was forgotten
        return Claim(GRANTED, epoch, None, holder)

    def _try_claim(self, id: str, epoch: int, holder: str) -> bool:
        """Whether the row was OPEN at that epoch, and is the holder's, who has a beat."""
        raise NotImplementedError

    def renew(self, holder: str) -> None:
        """The holder lives: a beat for all it holds."""
        if not is_label(holder):
            check_holder(holder)
        self._renew(holder)

    @abc.abstractmethod
    def _renew(self, holder: str) -> None: ...

    def finish(self, id: str, epoch: int, holder: str, result: bytes) -> bool:
        """Move the row from CLAIMED by `holder` at `epoch` to DONE with its result.

        False, and nothing changes, when the row is not that (any more): the result must not be
        used.
        """
        return _only(self.finish_many(holder, ((id, epoch, result),)))

    def finish_many(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> list[bool | exceptions.LedgerFailure]:
        """`finish` each of these (id, epoch, result)."""
        if not is_label(holder):
            check_holder(holder)
        return self._finish(holder, _checked(ended)) if ended else []

    @abc.abstractmethod
    def _finish(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]]
    ) -> list[bool | exceptions.LedgerFailure]: ...

    def release(self, id: str, epoch: int, holder: str) -> bool:
        """Move the row from CLAIMED by `holder` at `epoch` back to OPEN: it was not started.

        False, and nothing changes, when the row is not that (any more).
        """
        return self._release(check_id(id), epoch, check_holder(holder))

    @abc.abstractmethod
    def _release(self, id: str, epoch: int, holder: str) -> bool: ...

    def claims(self, place: object, holder: str) -> object:
        """What a transport at `place` needs to claim rows for `holder` while it takes messages;
        None where it cannot."""
        return None

    def openings(self, place: object) -> Openings | None:
        """What makes rows while it publishes to brokers at `place`; None where that cannot be."""
        return None

    # Looking.

    def silence(self, holder: str) -> float | None:
        """Seconds since the last `renew` of this holder (its first claim is one); None: never seen.

        Measured on one clock, that of the ledger's place.
        """
        return _only(self.silences((holder,)))

    def silences(self, holders: Sequence[str]) -> list[float | exceptions.LedgerFailure | None]:
        """`silence` of each of these."""
        return each_of(self._silence, [(check_holder(holder),) for holder in holders])

    @abc.abstractmethod
    def _silence(self, holder: str) -> float | None: ...

    def state(self, id: str) -> Row | None:
        """The row as it is now."""
        return _only(self.states((id,)))

    def states(self, ids: Sequence[str]) -> list[Row | exceptions.LedgerFailure | None]:
        """The rows of these ids."""
        for id in ids:
            check_id(id)
        return self._states(ids) if ids else []

    @abc.abstractmethod
    def _states(self, ids: Sequence[str]) -> list[Row | exceptions.LedgerFailure | None]: ...

    @abc.abstractmethod
    def ids(self) -> set[str]:
        """The ids of all rows, in whatever state, and of those that were not dropped to the end."""

    @abc.abstractmethod
    def list_rows(self, limit: int = 100, after: str | None = None) -> Page:
        """Some rows, for people to look at: the first `limit`, or those that follow a page.

        A row that is there, and does not change, while all pages are asked for is in one of them.

        :raises ValueError: `limit` is not from 1 to `MOST_LISTED`.
        """

    # Its end.

    @abc.abstractmethod
    def sweep(self, older_than: float, only_done: bool = False) -> int:
        """Remove rows (that are DONE) that did not change for so many seconds; how many.

        A CLAIMED row stays while its holder renews.
        """

    def sweep_stale(self, result_ttl: float | None) -> int:
        """Remove what nobody came back for, as one does who opens the ledger.

        Results that are older than `result_ttl` seconds, and other rows that are older than that
        and `STALE_AFTER`; what is younger than `SWEEP_EVERY` stays, for its engine may only have
        been frozen.  None: nothing.
        """
        if result_ttl is None:
            return 0
        count = self.sweep(max(result_ttl, SWEEP_EVERY), True)
        return count + self.sweep(max(result_ttl, STALE_AFTER))

    def sweep_when_due(self, result_ttl: float | None) -> None:
        """`sweep_stale`, unless somebody did in the last `SWEEP_EVERY` seconds; that it cannot be
        done is told in the log."""
        try:
            if self._is_sweep_due():
                self.sweep_stale(result_ttl)
        except (OSError, ValueError, exceptions.LedgerFailure) as error:  # nobody needs it today
            LOG.warning("ledger %s cannot be swept: %s", self, error)

    def _is_sweep_due(self) -> bool:
        """Whether nobody swept for so long; who is told so does it now."""
        return False

    def close(self) -> None:  # noqa: B027 - nothing to free is the usual case
        """Forget the holders of this process that hold nothing, free the rest; the rows stay."""


def each_of(
    call: Callable[..., T], calls: Iterable[tuple[Any, ...]]
) -> list[T | exceptions.LedgerFailure]:
    """What each call returned; where the ledger failed that, for this one and those that follow: it
    is waited for once."""
    told: list[T | exceptions.LedgerFailure] = []
    failed: exceptions.LedgerFailure | None = None
    for args in calls:
        try:
            told.append(call(*args) if failed is None else failed)
        except exceptions.LedgerFailure as error:
            failed = error
            told.append(error)
    return told


def _only(told: Sequence[T | exceptions.NotFound | exceptions.LedgerFailure]) -> T:
    """What the only call returned, or raised."""
    [found] = told
    if isinstance(found, exceptions.NotFound | exceptions.LedgerFailure):
        raise found
    return found


def _checked(rows: Sequence[R]) -> Sequence[R]:
    """Rows that are told by their ids first.

    :raises ValueError: an id can be no row's.
    """
    for row in rows:
        if not is_label(row[0]):
            check_id(row[0])
    return rows
