"""Lua scripts of the Redis ledger; each is one atomic step in the server.

The reference page `redis_scripts` lists the keys and the guarantee of each script.
Scripts with a session return None, without a change, if the session is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from wbengine._redis import lua_scripts
from wbengine.engines.worker_based.ledger import _base
from wbengine.transports import _redis_scripts
from wbengine.transports._redis_link import Step
from wbengine.transports._redis_scripts import ClaimReply, Registration, read_nothing

T = TypeVar("T")

_FOLDER: Final = Path(__file__).parent / "redis_scripts"
SCRIPTS: Final = lua_scripts.load(_FOLDER, _redis_scripts.CONSTANTS, [_redis_scripts.SHARED])

#: Suffix of a user that also consumes messages here. Its heartbeats are those of its consumer.
CONSUMER: Final = ".c"


class Arrival(NamedTuple):
    """The incarnation of a server.

    :ivar claim_count: number of claims that it has granted, and of revocations.
    :ivar intact_since: last incarnation that began with lost data, or 0.
    :ivar version: format of the keys.
    """

    run_id: str
    claim_count: int
    life: int
    intact_since: int
    version: int


class ClaimAttempt(NamedTuple):
    """A claim of a row.

    :ivar name: identifies the claim: a second attempt has the same result.
    """

    id: str
    epoch: int
    holder: str
    name: str


class Reopening(NamedTuple):
    """Result of `reopen`: the result of a row that is done, else None."""

    result: bytes | None


class Revocation(NamedTuple):
    """For each row whether it was removed.

    :ivar claim_count: see `Arrival`; 0 if no row was removed.
    """

    removed: Sequence[bool]
    claim_count: int


class Swept(NamedTuple):
    """Numbers of removed and of other rows, and whether there may be more."""

    removed: int
    kept: int
    has_more: bool


def arrive(run_id: str, claim_count: int) -> Step[Arrival]:
    """Detect a new incarnation.

    :param run_id: `run_id` of the server in the last reply, or ''.
    :param claim_count: see `Arrival`; that of the last reply.
    """
    return Step(SCRIPTS["arrive"], (run_id, claim_count), _read_arrival)


def register_user(digests: str, user: str) -> Step[Registration]:
    """Register a user, and create a ledger with the first of its digests if there is none."""
    return Step(SCRIPTS["register_user"], (digests, user), Registration.read)


def accepts(digests: str, user: str, digest: str) -> Step[tuple[Registration, bool]]:
    """Register a user. Return also whether the ledger has or had the digest of a request."""
    return Step(SCRIPTS["accepts"], (digests, user, digest), _read_acceptance)


def reconcile(user: str, session: int, claims: Iterable[ClaimAttempt]) -> Step[None]:
    """Begin a session, and reverse claims of earlier ones."""
    arguments = user, session, *chain.from_iterable(claims)
    return Step(SCRIPTS["reconcile"], arguments, read_nothing)


def open_rows(
    user: str,
    session: int,
    digests: str,
    rows: Iterable[_base.FencedRow[int]],
    *,
    replace: bool,
    ttl: int | str,
) -> Step[Registration | None]:
    """Open rows.

    :param replace: also replace OPEN rows with lower epochs.
    :param ttl: milliseconds to keep results, or ''.
    """
    fenced_rows = ((id, epoch, *fence) for id, epoch, fence in rows)
    arguments = user, session, digests, int(replace), ttl, *chain.from_iterable(fenced_rows)
    return Step(SCRIPTS["open_rows"], arguments, _optional(Registration.read))


def claim(user: str, session: int, attempt: ClaimAttempt) -> Step[ClaimReply | None]:
    return Step(SCRIPTS["claim"], (user, session, *attempt), _optional(ClaimReply.read))


def renew(digests: str, user: str, holder: str) -> Step[Registration]:
    return Step(SCRIPTS["renew"], (digests, user, holder), Registration.read)


def read_silence(holder: str) -> Step[int | None]:
    """Return the milliseconds since the last heartbeat of a holder; None: it has none."""
    return Step(SCRIPTS["read_silence"], (holder,), _optional(int))


def finish_rows(
    holder: str,
    ttl: int | str,
    rows: Iterable[tuple[str, int, bytes]],
    fence: _base.Fence = _base.NO_FENCE,
) -> Step[list[bool]]:
    """Store results of rows (id, epoch, result). Return for each whether it was held.

    :param ttl: milliseconds to keep results, or ''.
    """
    arguments = holder, ttl, *fence, *chain.from_iterable(rows)
    return Step(SCRIPTS["finish_rows"], arguments, _read_flags)


def release(user: str, session: int, id: str, epoch: int, holder: str) -> Step[bool | None]:
    """Return whether the row was held."""
    return Step(SCRIPTS["release"], (user, session, id, epoch, holder), _optional(bool))


def reopen(id: str, epoch: int, fence: _base.Fence = _base.NO_FENCE) -> Step[Reopening | None]:
    """Return None if there is no row."""
    return Step(SCRIPTS["reopen"], (id, epoch, *fence), _read_reopening)


def revoke_rows(rows: Iterable[_base.FencedRow[int | None]]) -> Step[Revocation]:
    """Revoke rows. The epoch None means any epoch."""
    fenced_rows = ((id, "" if epoch is None else epoch, *fence) for id, epoch, fence in rows)
    return Step(SCRIPTS["revoke_rows"], tuple(chain.from_iterable(fenced_rows)), _read_revocation)


def drop_rows(ids: Iterable[str]) -> Step[None]:
    return Step(SCRIPTS["drop_rows"], tuple(ids), read_nothing)


def read_rows(ids: Sequence[str]) -> Step[list[_base.Row | None]]:
    return Step(
        SCRIPTS["read_rows"],
        tuple(ids),
        lambda reply: [_row(id, *row) for id, row in zip(ids, reply, strict=True)],
    )


def list_rows(since: str, last_id: str, limit: int) -> Step[list[tuple[int, _base.Listed]]]:
    """Return at most `limit` rows after a position, with their times in milliseconds.

    :param since: time of the position in milliseconds, or '-inf'.
    :param last_id: id of the position.
    """
    return Step(SCRIPTS["list_rows"], (since, last_id, limit), _read_listing)


def list_ids() -> Step[set[str]]:
    return Step(SCRIPTS["list_ids"], (), lambda reply: {id.decode() for id in reply})


def reserve_sweep(period: int) -> Step[bool]:
    """Return whether no sweep was reserved in the last `period` milliseconds."""
    return Step(SCRIPTS["reserve_sweep"], (period,), bool)


def sweep_rows(age: int, first: int, only_done: bool) -> Step[Swept]:
    """Remove rows that have not changed for `age` milliseconds, from the row number `first`."""
    return Step(SCRIPTS["sweep_rows"], (age, first, int(only_done)), _read_swept)


def drop_idle_holders(age: int) -> Step[None]:
    """Remove holders without rows and without a heartbeat in `age` milliseconds."""
    return Step(SCRIPTS["drop_idle_holders"], (age,), read_nothing)


def close(user: str, holders: Iterable[str]) -> Step[None]:
    return Step(SCRIPTS["close"], (user, *holders), read_nothing)


def _optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda reply: None if reply is None else read(reply)


def _read_acceptance(reply: Sequence[Any]) -> tuple[Registration, bool]:
    registration, accepted = reply
    return Registration.read(registration), bool(accepted)


def _read_arrival(reply: Sequence[Any]) -> Arrival:
    run_id, *numbers = reply
    return Arrival(run_id.decode(), *numbers)


def _read_flags(reply: Sequence[int]) -> list[bool]:
    return list(map(bool, reply))


def _read_reopening(reply: Any) -> Reopening | None:
    if reply is None:
        return None
    return Reopening(None if isinstance(reply, int) else bytes(reply[0] or b""))


def _read_revocation(reply: Sequence[Any]) -> Revocation:
    removed, count = reply
    return Revocation(_read_flags(removed), count or 0)


def _row(
    id: str, epoch: bytes | None, state: bytes, holder: bytes | None, result: bytes | None
) -> _base.Row | None:
    if epoch is None:
        return None
    row_state: _base.State = state.decode()  # type: ignore[assignment]
    return _base.Row(id, int(epoch), row_state, None if holder is None else holder.decode(), result)


def _read_listing(reply: Sequence[Any]) -> list[tuple[int, _base.Listed]]:
    now, *rows = reply
    listed = []
    for time, id, epoch, state, holder in rows:
        at, owner = int(time), holder.decode() if holder else None
        age = max(0.0, (int(now) - at) / 1000)
        listed.append((at, _base.Listed(id.decode(), int(epoch), state.decode(), owner, age)))
    return listed


def _read_swept(reply: Sequence[int]) -> Swept:
    removed, kept, has_more = reply
    return Swept(removed, kept, bool(has_more))
