"""Lua scripts of the Redis ledger; each is one atomic step in the server.

The reference page `redis_scripts` lists the keys and the guarantee of each script.
Scripts with a session return None, without a change, if the session is over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from wbengine._redis import lua_scripts
from wbengine.transports import _ledger
from wbengine.transports._redis import redis_scripts
from wbengine.transports._redis.redis_scripts import ClaimReply, Registration

SCRIPTS: Final = lua_scripts.Scripts(redis_scripts.FOLDER, redis_scripts.CONSTANTS)

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


@SCRIPTS.declare
def arrive(reply: Any, run_id: str, claim_count: int) -> Arrival:
    """Detect a new incarnation.

    :param run_id: `run_id` of the server in the last reply, or ''.
    :param claim_count: see `Arrival`; that of the last reply.
    """
    new_run_id, *numbers = reply
    return Arrival(new_run_id.decode(), *numbers)


@SCRIPTS.declare
def register(
    reply: Any, digests: str, user: str, holder: str = "", digest: str = ""
) -> tuple[Registration, bool]:
    """Register a user, and create a ledger with the first of its digests if there is none.

    Return also whether the ledger has or had the digest of a request.

    :param holder: a holder that sends a heartbeat, or ''.
    :param digest: the digest of a request, or ''.
    """
    *registration, is_accepted = reply
    return Registration.read(registration), bool(is_accepted)


@SCRIPTS.declare
def reconcile(reply: Any, user: str, session: int, claims: Sequence[ClaimAttempt]) -> None:
    """Begin a session, and reverse claims of earlier ones."""


@SCRIPTS.declare
def open_rows(
    reply: Any,
    user: str,
    session: int,
    digests: str,
    rows: Sequence[_ledger.FencedRow[int]],
    ttl: int | str,
) -> Registration | None:
    """Open rows.

    :param ttl: milliseconds to keep results, or ''.
    """
    return None if reply is None else Registration.read(reply)


@SCRIPTS.declare
def claim(reply: Any, user: str, session: int, attempt: ClaimAttempt) -> ClaimReply | None:
    return None if reply is None else ClaimReply.read(reply)


@SCRIPTS.declare
def finish_rows(
    reply: Any,
    holder: str,
    ttl: int | str,
    rows: Sequence[tuple[str, int, bytes]],
    fence: _ledger.Fence = _ledger.NO_FENCE,
) -> list[bool]:
    """Store results of rows (id, epoch, result). Return for each whether it was held.

    :param ttl: milliseconds to keep results, or ''.
    """
    return list(map(bool, reply))


@SCRIPTS.declare
def release(reply: Any, user: str, session: int, id: str, epoch: int, holder: str) -> bool | None:
    """Return whether the row was held."""
    return None if reply is None else bool(reply)


@SCRIPTS.declare
def reopen(
    reply: Any, id: str, epoch: int, fence: _ledger.Fence = _ledger.NO_FENCE
) -> Reopening | None:
    """Return None if there is no row."""
    if reply is None:
        return None
    return Reopening(None if isinstance(reply, int) else bytes(reply[0] or b""))


@SCRIPTS.declare
def revoke_rows(reply: Any, rows: Sequence[_ledger.FencedRow[int | None]]) -> Revocation:
    """Revoke rows. The epoch None means any epoch."""
    removed, count = reply
    return Revocation(list(map(bool, removed)), count or 0)


@SCRIPTS.declare
def drop_rows(reply: Any, ids: Sequence[str]) -> None: ...


@SCRIPTS.declare
def read_rows(reply: Any, ids: Sequence[str]) -> list[_ledger.Row | None]:
    return [row and _row(id, *row) for id, row in zip(ids, reply, strict=True)]


@SCRIPTS.declare
def list_rows(reply: Any, since: str, last_id: str, limit: int) -> list[tuple[int, _ledger.Listed]]:
    """Return at most `limit` rows after a position, with their times in milliseconds.

    :param since: time of the position in milliseconds, or '-inf'.
    :param last_id: id of the position.
    """
    now, *rows = reply
    listed = []
    for time, id, epoch, state, holder in rows:
        at, owner = int(time), holder.decode() or None
        age = max(0.0, (int(now) - at) / 1000)
        listed.append((at, _ledger.Listed(id.decode(), int(epoch), state.decode(), owner, age)))
    return listed


@SCRIPTS.declare
def sweep_rows(reply: Any, age: int, first: int, only_done: bool) -> Swept:
    """Remove rows that have not changed for `age` milliseconds, from the row number `first`."""
    removed, kept, has_more = reply
    return Swept(removed, kept, bool(has_more))


@SCRIPTS.declare
def close(reply: Any, user: str, holders: Collection[str]) -> None: ...


def _row(id: str, epoch: bytes, state: bytes, holder: bytes, result: bytes) -> _ledger.Row:
    row_state: _ledger.State = state.decode()  # type: ignore[assignment]
    is_done = row_state == _ledger.ROW_DONE
    return _ledger.Row(
        id, int(epoch), row_state, holder.decode() or None, result if is_done else None
    )
