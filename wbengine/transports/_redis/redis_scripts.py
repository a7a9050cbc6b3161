"""Lua scripts of the Redis transport and of its ledger. Each runs atomically in the server.

The reference page `redis_scripts` lists the keys and the guarantee of each script. Scripts of the
ledger with a session return None, without a change, if the session is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from wbengine._redis import lua_scripts
from wbengine._text import data_formats
from wbengine.transports import _ledger
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._routing import Routes

T = TypeVar("T")

#: Time without reports of its owner after which an owned queue is deleted.
OWNED_QUEUE_SECONDS: Final = 600
#: Time after which silent consumers no longer prevent that the last leaving one deletes all keys.
GONE_AFTER_SECONDS: Final = 15
#: Minimum interval between two reports of a consumer that takes messages.
REPORT_MILLISECONDS: Final = 200
#: Time after which unused keys expire.
UNUSED_KEY_SECONDS: Final = 7 * 24 * 3600
#: Time after which an out-of-line body expires.
BODY_SECONDS: Final = 30 * 24 * 3600
#: Time after which an unused ledger and its users expire.
UNUSED_LEDGER_SECONDS: Final = 30 * 24 * 3600
#: Time in which a restarted server refuses claims. In this time all clients reconnect, and report
#: claims that the server lost.
CLAIM_REFUSAL_SECONDS: Final = 3
#: Holder of rows that are OPEN although a worker may have claimed them before a loss of data.
FORGOTTEN: Final = "forgotten-by-redis"
#: Time after which an unused row expires.
ROW_SECONDS: Final = 7 * 24 * 3600

#: Suffix of a user of the ledger that also consumes messages. Its heartbeats are those of its
#: consumer.
CONSUMER: Final = ".c"

#: Constants of the scripts. Times are in milliseconds.
CONSTANTS: Final[Mapping[str, int | str]] = {
    "UNUSED_KEY_MS": UNUSED_KEY_SECONDS * 1000,
    "OWNED_QUEUE_MS": OWNED_QUEUE_SECONDS * 1000,
    "GONE_MS": GONE_AFTER_SECONDS * 1000,
    "REPORT_MS": REPORT_MILLISECONDS,
    "BODY_MS": BODY_SECONDS * 1000,
    "FORGOTTEN": FORGOTTEN,
    "FENCE_PREFIX": _ledger.FENCE_PREFIX,
    "CLAIM_REFUSAL_MS": CLAIM_REFUSAL_SECONDS * 1000,
    "LEDGER_MS": UNUSED_LEDGER_SECONDS * 1000,
    "ROW_MS": ROW_SECONDS * 1000,
    "MAX_BATCH_BYTES": MAX_BATCH_BYTES,
    "FORMAT": data_formats.REDIS.written,
}
SCRIPTS: Final = lua_scripts.Scripts(Path(__file__).parent / "scripts", CONSTANTS)


class DeclaredQueue(NamedTuple):
    """A queue to create. An owned one is deleted when its owner stops reporting."""

    name: str
    is_owned: bool = False


class Binding(NamedTuple):
    exchange: str
    queue: str
    key: str


class RoutedMessage(NamedTuple):
    """A message to publish.

    :ivar body: ID of its out-of-line body, or ''.
    :ivar is_bound: whether bindings selected the queues. Then they exist, unless the version of the
        routing has changed.
    """

    priority: int
    data: bytes
    body: str
    queues: Sequence[str]
    is_bound: bool = False


class RoutedBatch(NamedTuple):
    """Messages to publish.

    :ivar version: version of the routing that selected their queues.
    """

    version: str
    messages: Sequence[RoutedMessage]


class OpenedRow(NamedTuple):
    """A row to create.

    :ivar number: number of the row in its session.
    :ivar tried_incarnation: incarnation of the server in which it was tried before, or ''.
    :ivar fence: id of the fence of its flow, or ''; nothing is done if that is above `run`.
    """

    id: str
    epoch: int
    number: int
    tried_incarnation: str
    fence: str = ""
    run: int = 0


class FinishedRequest(NamedTuple):
    """A request whose reply is published, with the place of its message."""

    id: str
    epoch: int
    consumer: str
    queue: str
    number: str


class Take(NamedTuple):
    """Arguments of a take.

    :ivar holder: holder for claims in the ledger `digest`; '': nothing is claimed.
    :ivar groups: maximum number of messages and queues of each group.
    """

    consumer: str
    number: str
    holder: str
    digest: str
    groups: Sequence[tuple[int, Sequence[str]]]


#: A claim, and the number of claims and revocations that the server has granted. The number is 0 in
#: all but the last granted claim of a step.
CountedClaim = tuple[_ledger.Claim, int]


class TakenEntry(NamedTuple):
    """A message that was taken from a queue of a group."""

    group: int
    queue: str
    number: str
    data: bytes
    claim: CountedClaim | None


class Registration(NamedTuple):
    """Digest of a ledger, and number of claims that its server has granted, and of revocations.

    :ivar intact_since: see `Arrival`.
    """

    digest: str
    claim_count: int
    intact_since: int = 0

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Registration:
        digest, *numbers = reply
        return cls(digest.decode(), *numbers)


class Opened(NamedTuple):
    """Number of queues of each request.

    :ivar registration: None if the session is over or the incarnation is another one, and nothing
        was done.
    """

    counts: Sequence[int]
    registration: Registration | None


class Finished(NamedTuple):
    """Number of queues of each reply, or -1: another process owns the row.

    :ivar taken: None if nothing was to be taken, or the consumer is unknown.
    """

    counts: Sequence[int]
    taken: Sequence[TakenEntry] | None


class Arrival(NamedTuple):
    """The incarnation of a server. All incarnations have different numbers.

    :ivar claim_count: number of claims that it has granted, and of revocations.
    :ivar intact_since: last incarnation that began with lost data, or 0.
    :ivar version: format of the keys.
    """

    run_id: str
    claim_count: int
    incarnation: int
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


def read_bindings(names: Sequence[bytes]) -> list[tuple[str, str, str]]:
    """Convert the names of the bindings in the server to (queue, exchange, routing key)."""
    bindings = []
    for name in names:
        exchange, queue, key = name.decode("utf-8", "surrogateescape").split("\0", 2)
        bindings.append((queue, exchange, key))
    return bindings


def read_routes(version: bytes, names: Sequence[bytes]) -> Routes:
    """Convert the version and the names of the bindings in the server."""
    bindings = read_bindings(names)
    return Routes(version.decode(), {queue for queue, _, _ in bindings}, bindings)


@SCRIPTS.declare
def declare(
    reply: Any,
    new_id: str,
    queues: Sequence[DeclaredQueue] = (),
    bound: Sequence[Binding] = (),
    unbound: Sequence[Binding] = (),
) -> str:
    """Create queues, and add and remove bindings.

    Return the id of the data: `new_id` if there was none; '' if there is none without a queue.
    """
    return bytes.decode(reply)


@SCRIPTS.declare
def empty_queue(reply: Any, queue: str, is_deleted: bool) -> int:
    """Return the number of waiting messages."""
    return int(reply)


@SCRIPTS.declare
def join(reply: Any, consumer: str, data_id: str, holder: str = "") -> bool:
    """Return False if the data has another id than `data_id`, unless that is ''.

    :param holder: the holder of its claims, or ''.
    """
    return bool(reply)


@SCRIPTS.declare
def take(reply: Any, order: Take) -> list[TakenEntry] | None:
    """Return the messages; None: the consumer is unknown."""
    return _read_taken(reply)


@SCRIPTS.declare
def requeue(
    reply: Any,
    consumer: str,
    messages: Sequence[str],
    is_delivered: bool = True,
    is_refused: bool = False,
) -> int:
    """Return the number of messages that the consumer had.

    :param messages: each as `QUEUE NUMBER`.
    :param is_refused: whether to delete them.
    """
    return int(reply)


@SCRIPTS.declare
def end_wait(reply: Any, consumer: str) -> None: ...


@SCRIPTS.declare
def sweep_dead_consumers(
    reply: Any,
    dead_after: float,
    consumer: str,
    owned: Collection[str],
    consumed: Collection[str],
) -> int:
    """Return the number of dead consumers.

    :param dead_after: seconds after which a silent consumer is dead.
    :param consumer: the calling consumer, or ''.
    :param owned: its owned queues.
    :param consumed: other queues that it consumes.
    """
    return int(reply)


@SCRIPTS.declare
def leave(reply: Any, consumer: str, undelivered: Collection[str], holder: str = "") -> bool:
    """Return whether all keys were deleted.

    :param consumer: a consumer, or ''.
    :param undelivered: numbers of takes without a reply, and `TAKE:NUMBER` of undelivered messages.
    :param holder: the holder of its claims, or ''.
    """
    return bool(reply)


# Scripts that publish. They change nothing and return a new routing if that of the batch is
# outdated, or None if an out-of-line body is missing.


@SCRIPTS.declare
def publish(reply: Any, batch: RoutedBatch) -> list[int] | Routes | None:
    """Return the number of queues of each message."""
    return _read_publication(reply, list)


@SCRIPTS.declare
def open_and_publish(
    reply: Any,
    batch: RoutedBatch,
    rows: Sequence[OpenedRow],
    user: str,
    session: int,
    digests: str,
    ttl: int | str,
    incarnation: int,
) -> Opened | Routes | None:
    """Create rows, and publish the message of each, unless the batch is empty.

    :param digests: digests of the ledger that the user knows, the latest first.
    :param ttl: milliseconds to keep results, or ''.
    :param incarnation: incarnation of the server.
    """
    return _read_publication(reply, _read_opened)


@SCRIPTS.declare
def finish_requests(
    reply: Any,
    batch: RoutedBatch,
    requests: Sequence[FinishedRequest],
    holder: str,
    ttl: int | str,
    order: Take | None = None,
) -> Finished | Routes | None:
    """Publish a reply to each request.

    :param ttl: milliseconds to keep results, or ''.
    """
    return _read_publication(reply, _read_finished)


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
def reconcile(reply: Any, user: str, session: int, claims: Sequence[ClaimAttempt]) -> int:
    """Begin a session, and reverse claims of earlier ones.

    Return the incarnation of the server.
    """
    return int(reply)


@SCRIPTS.declare
def claim(reply: Any, user: str, session: int, attempt: ClaimAttempt) -> CountedClaim | None:
    return None if reply is None else _read_claim(reply)


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
) -> list[bytes] | None:
    """Return the result of a row that is done, else nothing, in a list; None: there is no row."""
    return [] if isinstance(reply, int) else reply


@SCRIPTS.declare
def revoke_rows(
    reply: Any, rows: Sequence[_ledger.FencedRow[int | None]]
) -> tuple[list[bool], int]:
    """Revoke rows. The epoch None means any epoch.

    Return for each whether it was removed, and the number of granted claims and revocations, or 0
    if no row was removed.
    """
    removed, count = reply
    return list(map(bool, removed)), count or 0


@SCRIPTS.declare
def drop_rows(reply: Any, ids: Sequence[str]) -> None: ...


@SCRIPTS.declare
def read_rows(reply: Any, ids: Sequence[str]) -> list[_ledger.Row | None]:
    """Return the first rows: not all, if their results are large."""
    count, rows = reply
    return [row and _row(id, *row) for id, row in zip(ids[:count], rows, strict=True)]


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
def sweep_rows(reply: Any, age: int, first: int, only_done: bool) -> tuple[int, int, bool]:
    """Remove rows that have not changed for `age` milliseconds, from the row number `first`.

    Return the numbers of removed and of other rows, and whether there may be more.
    """
    removed, kept, has_more = reply
    return removed, kept, bool(has_more)


@SCRIPTS.declare
def close(reply: Any, user: str, holders: Collection[str]) -> None: ...


def _row(id: str, epoch: bytes, state: bytes, holder: bytes, result: bytes) -> _ledger.Row:
    row_state: _ledger.State = state.decode()  # type: ignore[assignment]
    is_done = row_state == _ledger.ROW_DONE
    return _ledger.Row(
        id, int(epoch), row_state, holder.decode() or None, result if is_done else None
    )


def _read_publication(reply: Any, read: Callable[[Any], T]) -> T | Routes | None:
    if reply is None:
        return None
    return read_routes(*reply) if isinstance(reply[0], bytes) else read(reply)


def _read_taken(reply: Sequence[Any] | None) -> list[TakenEntry] | None:
    if reply is None:
        return None
    return [
        TakenEntry(
            group,
            queue.decode(),
            number.decode(),
            data,
            None if claim is None else _read_claim(claim),
        )
        for group, queue, number, data, claim in reply
    ]


def _read_claim(reply: Sequence[Any]) -> CountedClaim:
    verdict_bytes, epoch, holder, result, *count = reply
    verdict: _ledger.Verdict = verdict_bytes.decode()
    claim = _ledger.Claim(
        verdict, int(epoch), result if verdict == _ledger.DONE else None, holder.decode() or None
    )
    return claim, int(count[0]) if count else 0


def _read_opened(reply: Sequence[Any]) -> Opened:
    *counts, registration = reply
    return Opened(counts, None if registration is None else Registration.read(registration))


def _read_finished(reply: Sequence[Any]) -> Finished:
    *counts, taken = reply
    return Finished(counts, _read_taken(taken))
