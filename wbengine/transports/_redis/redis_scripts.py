"""Lua scripts of the Redis transport. Each runs atomically in the server.

The reference page `redis_scripts` lists the keys and the guarantee of each script.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from wbengine._redis import lua_scripts
from wbengine._text import data_formats
from wbengine.transports._broker import MAX_BATCH_BYTES

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

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

#: Constants of the scripts of the transport and of the ledger. Times are in milliseconds.
CONSTANTS: Final[Mapping[str, int | str]] = {
    "UNUSED_KEY_MS": UNUSED_KEY_SECONDS * 1000,
    "OWNED_QUEUE_MS": OWNED_QUEUE_SECONDS * 1000,
    "GONE_MS": GONE_AFTER_SECONDS * 1000,
    "REPORT_MS": REPORT_MILLISECONDS,
    "BODY_MS": BODY_SECONDS * 1000,
    "FORGOTTEN": FORGOTTEN,
    "CLAIM_REFUSAL_MS": CLAIM_REFUSAL_SECONDS * 1000,
    "LEDGER_MS": UNUSED_LEDGER_SECONDS * 1000,
    "ROW_MS": ROW_SECONDS * 1000,
    "MAX_BATCH_BYTES": MAX_BATCH_BYTES,
    "FORMAT": data_formats.REDIS.written,
}
#: Folder of the scripts of the transport and of the ledger.
FOLDER: Final = Path(__file__).parent / "scripts"
SCRIPTS: Final = lua_scripts.Scripts(FOLDER, CONSTANTS)


class DeclaredQueue(NamedTuple):
    """A queue to create. An owned one is deleted when its owner stops reporting."""

    name: str
    is_owned: bool = False


class Binding(NamedTuple):
    exchange: str
    queue: str
    key: str


class Routing(NamedTuple):
    """The bindings as (queue, exchange, routing key), and their version."""

    version: str
    bindings: Sequence[tuple[str, str, str]]

    @classmethod
    def read(cls, version: bytes, names: Sequence[bytes]) -> Routing:
        """Convert the version and the names of the bindings in the server."""
        bindings = []
        for name in names:
            exchange, queue, key = name.decode("utf-8", "surrogateescape").split("\0", 2)
            bindings.append((queue, exchange, key))
        return cls(version.decode(), bindings)


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


@dataclass(slots=True)
class Publication(Generic[T_co]):
    """Result of a script that publishes a batch.

    :ivar result: None if nothing was done, because a body is missing or the routing has changed.
    :ivar routing: the new routing in the latter case.
    """

    result: T_co | None
    routing: Routing | None = None


class OpenedRow(NamedTuple):
    """A row to create.

    :ivar number: number of the row in its session.
    :ivar tried_life: incarnation of the server in which it was tried before, or ''.
    :ivar fence: id of the fence of its flow, or ''; nothing is done if that is above `run`.
    """

    id: str
    epoch: int
    number: int
    tried_life: str
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


class ClaimReply(NamedTuple):
    """The result of a claim.

    :ivar result: the result of a row that is done.
    :ivar claim_count: number of granted claims and revocations, in the last claim of a step.
    """

    verdict: str
    epoch: int
    holder: str | None
    result: bytes
    claim_count: int | None

    @classmethod
    def read(cls, reply: Sequence[Any]) -> ClaimReply:
        verdict, epoch, holder, result, *count = reply
        return cls(
            verdict.decode(),
            int(epoch),
            holder.decode() or None,
            result,
            int(count[0]) if count else None,
        )


class TakenEntry(NamedTuple):
    """A message that was taken from a queue of a group."""

    group: int
    queue: str
    number: str
    data: bytes
    claim: ClaimReply | None


class Registration(NamedTuple):
    """Digest of a ledger, and number of claims that its server has granted, and of revocations."""

    digest: str
    claim_count: int

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Registration:
        digest, count = reply
        return cls(digest.decode(), int(count))


class Opened(NamedTuple):
    """Number of queues of each request."""

    counts: Sequence[int]
    registration: Registration


class OtherSession(NamedTuple):
    """The present incarnation and session, which differ: nothing was done."""

    life: int
    session: int | None


class Finished(NamedTuple):
    """Number of queues of each reply, or -1: another process owns the row.

    :ivar taken: None if nothing was to be taken, or the consumer is unknown.
    """

    counts: Sequence[int]
    taken: Sequence[TakenEntry] | None


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
    queue: str,
    numbers: Sequence[str],
    is_delivered: bool = True,
    is_refused: bool = False,
) -> int:
    """Return the number of messages that the consumer had.

    :param is_refused: whether to delete them.
    """
    return int(reply)


@SCRIPTS.declare
def notify(reply: Any, queue: str) -> None: ...


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
def leave(reply: Any, consumer: str, undelivered: Collection[str]) -> bool:
    """Return whether all keys were deleted.

    :param consumer: a consumer, or ''.
    :param undelivered: numbers of takes without a reply, and `TAKE:NUMBER` of undelivered messages.
    """
    return bool(reply)


@SCRIPTS.declare
def publish(reply: Any, batch: RoutedBatch) -> Publication[list[int]]:
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
    life: int,
) -> Publication[Opened | OtherSession]:
    """Create a row for each message, and publish all.

    :param digests: digests of the ledger that the user knows, the latest first.
    :param ttl: milliseconds to keep results, or ''.
    :param life: incarnation of the server.
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
) -> Publication[Finished]:
    """Publish a reply to each request.

    :param ttl: milliseconds to keep results, or ''.
    """
    return _read_publication(reply, _read_finished)


def _read_publication(reply: Any, read: Callable[[Any], T]) -> Publication[T]:
    if reply is None or isinstance(reply[0], int):
        return Publication(None if reply is None else read(reply))
    return Publication(None, Routing.read(*reply))


def _read_taken(reply: Sequence[Any] | None) -> list[TakenEntry] | None:
    if reply is None:
        return None
    return [
        TakenEntry(
            group,
            queue.decode(),
            number.decode(),
            data,
            None if claim is None else ClaimReply.read(claim),
        )
        for group, queue, number, data, claim in reply
    ]


def _read_opened(reply: Sequence[Any]) -> Opened | OtherSession:
    *counts, last = reply
    if isinstance(last, list):
        return Opened(counts, Registration.read(last))
    return OtherSession(int(counts[1]), int(last) if last else None)


def _read_finished(reply: Sequence[Any]) -> Finished:
    *counts, taken = reply
    return Finished(counts, _read_taken(taken))
