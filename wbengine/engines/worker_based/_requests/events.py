"""Events of requests whose progress is uncertain, for the rules of recovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests.request_state import OfRequest
from wbengine.types import failure as ft

# Publishing.


class Inherited(OfRequest):
    """An earlier run may have sent the request."""


class Unconfirmed(OfRequest):
    """The broker neither confirmed nor refused the message."""


class Moved(OfRequest):
    """Another queue now offers the task of a request without a row, whose message may be used."""


class StartRefused(OfRequest):
    """The request was cancelled or has expired, but its message may be used."""


class TimedOut(OfRequest):
    """No worker started the request in time, although it was published."""


# Time.


class CheckDue(OfRequest):
    """The pause of `CheckLater` has ended."""


class RoundEnded(OfRequest):
    """A round of heartbeats has ended during the `Search` for the request."""


# Workers.


@dataclass(slots=True)
class OwnerLost(OfRequest):
    """The worker that has the request stopped or was lost."""

    worker: str | None


class Absent(OfRequest):
    """The owner did not list the request in two heartbeats."""


@dataclass(slots=True)
class Redelivered(OfRequest):
    """A second worker received the message with this epoch; the first may run the request."""

    epoch: int


@dataclass(slots=True)
class Denied(OfRequest):
    """A worker replied to an ask that it does not have the request."""

    worker: str | None


class ClaimRefused(OfRequest):
    """A worker could not claim the row, because another worker has it."""


# Rows.

#: State of a row whose ledger could not be read.
UNKNOWN: Final = "UNKNOWN"


class RowSnapshot(NamedTuple):
    """The part of a ledger row that a tracker needs.

    `state` is None if there is no row, and `UNKNOWN` if the ledger could not be read. `result` is
    the reply if the row is DONE (None: it cannot be decoded). `silence` is the number of seconds
    since the last heartbeat of the owner; `silent` is True if that is too long.
    """

    state: str | None
    holder: str | None = None
    result: Reply | None = None
    epoch: int | None = None
    silent: bool = False
    silence: float | None = None


@dataclass(slots=True)
class RowRead(OfRequest):
    """An `Inspect` read the row. `lost`: the worker whose loss was the reason."""

    row: RowSnapshot
    lost: str | None = None


@dataclass(slots=True)
class RowRevoked(OfRequest):
    """A `Revoke` removed the row, or not, because the row is claimed or does not exist."""

    revoked: bool


@dataclass(slots=True)
class RowReopened(OfRequest):
    """A `Reopen` succeeded, or found the `reply` of a request that is done."""

    reply: Reply | None


@dataclass(slots=True)
class RowConcluded(OfRequest):
    """A `Conclude` succeeded: the lost worker can no longer change the result."""

    failure: ft.Failure


Event = (
    Inherited | Unconfirmed | Moved | StartRefused | TimedOut | CheckDue | RoundEnded | OwnerLost
    | Absent | Redelivered | Denied | ClaimRefused | RowRead | RowRevoked | RowReopened
    | RowConcluded
)  # fmt: skip
