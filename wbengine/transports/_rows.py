"""Values about rows of requests, which ledgers and brokers share.

A ledger has one row for each request in progress (`ledger._base` describes the states). A broker
whose kind `has_rows` contains the rows of its ledger: its connections change rows in the same steps
in which they publish, take and delete the messages of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

E = TypeVar("E", int, int | None)

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
