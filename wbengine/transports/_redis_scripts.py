"""Lua scripts of the Redis transport. Each runs atomically in the server.

The reference page `redis_scripts` lists the keys and the guarantee of each script.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from wbengine._redis import lua_scripts
from wbengine._text import data_formats
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._redis_link import Step

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Time after which a consumer without reports is dead and its messages are requeued.
DEAD_AFTER_SECONDS: Final = 10
#: Time without reports of its owner after which an owned queue is deleted.
OWNED_QUEUE_SECONDS: Final = 600
#: Time after which silent consumers no longer prevent that the last leaving one deletes all keys.
GONE_AFTER_SECONDS: Final = 15
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
    "BODY_MS": BODY_SECONDS * 1000,
    "FORGOTTEN": FORGOTTEN,
    "CLAIM_REFUSAL_MS": CLAIM_REFUSAL_SECONDS * 1000,
    "LEDGER_MS": UNUSED_LEDGER_SECONDS * 1000,
    "ROW_MS": ROW_SECONDS * 1000,
    "MAX_BATCH_BYTES": MAX_BATCH_BYTES,
    "FORMAT": data_formats.REDIS.written,
}
_FOLDER: Final = Path(__file__).parent / "redis_scripts"
#: Functions that scripts of the ledger use too.
SHARED: Final = _FOLDER / "shared"
SCRIPTS: Final = lua_scripts.load(_FOLDER, CONSTANTS)


class Routing(NamedTuple):
    """The bindings as (queue, exchange, routing key), and their version."""

    version: str
    bindings: Sequence[tuple[str, str, str]]


class RoutedMessage(NamedTuple):
    priority: int
    data: bytes
    queues: Sequence[str]


class RoutedBatch(NamedTuple):
    """Messages to publish.

    :ivar version: version of the routing that selected their queues.
    :ivar bodies: IDs of out-of-line bodies, by the index of their message.
    """

    version: str
    messages: Sequence[RoutedMessage]
    bodies: Mapping[int, str]


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
    :ivar reports: whether to record a report of the consumer and a heartbeat of the holder.
    :ivar groups: maximum number of messages and queues of each group.
    """

    consumer: str
    number: str
    holder: str
    digest: str
    reports: bool
    groups: Sequence[tuple[int, Sequence[str]]]

    def arguments(self) -> list[Any]:
        arguments = [self.consumer, self.number, self.holder, self.digest, int(self.reports)]
        for limit, queues in self.groups:
            arguments += limit, len(queues), *queues
        return arguments


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


def declare_exchange(new_id: str, name: str) -> Step[str]:
    """Return the id of the data, which is `new_id` if there was no data."""
    return Step(SCRIPTS["declare_exchange"], (new_id, name, "topic"), bytes.decode)


def declare_queue(new_id: str, queue: str, owned: bool) -> Step[str]:
    """Return the id of the data, which is `new_id` if there was no data."""
    return Step(SCRIPTS["declare_queue"], (new_id, queue, int(owned)), bytes.decode)


def delete_queue(queue: str) -> Step[int]:
    """Return the number of waiting messages."""
    return Step(SCRIPTS["delete_queue"], (queue,), int)


def purge_queue(queue: str) -> Step[int]:
    """Return the number of waiting messages."""
    return Step(SCRIPTS["purge_queue"], (queue,), int)


def count_messages(queue: str) -> Step[int]:
    return Step(SCRIPTS["count_messages"], (queue,), int)


def silent_queues(seconds: float) -> Step[frozenset[str]]:
    """Return the owned queues whose owners have not reported for this time."""
    return Step(SCRIPTS["silent_queues"], (seconds,), _read_names)


def _read_names(reply: Any) -> frozenset[str]:
    return frozenset(name.decode() for name in reply)


def bind(exchange: str, queue: str, key: str) -> Step[None]:
    return Step(SCRIPTS["bind"], (_binding(exchange, queue, key),), read_nothing)


def unbind(exchange: str, queue: str, key: str) -> Step[None]:
    return Step(SCRIPTS["unbind"], (_binding(exchange, queue, key),), read_nothing)


def read_routes() -> Step[tuple[Routing, int | None]]:
    """Return the routing, and the format of the keys; None: there are no keys."""
    return Step(SCRIPTS["read_routes"], (), _read_routes)


def join(consumer: str, data_id: str) -> Step[bool]:
    """Return False if the data has another id than `data_id`, unless that is ''."""
    return Step(SCRIPTS["join"], (consumer, data_id), bool)


def take(order: Take) -> Step[list[TakenEntry] | None]:
    """Return the messages; None: the consumer is unknown."""
    return Step(SCRIPTS["take"], tuple(order.arguments()), _read_taken)


def settle(consumer: str, queue: str, numbers: Iterable[str]) -> Step[int]:
    """Return the number of messages that the consumer had."""
    return Step(SCRIPTS["settle"], (consumer, queue, *numbers), int)


def refuse(consumer: str, queue: str, number: str) -> Step[None]:
    return Step(SCRIPTS["refuse"], (consumer, queue, number), read_nothing)


def requeue(consumer: str, queue: str, number: str, delivered: bool) -> Step[bool]:
    """Return whether the consumer had the message."""
    return Step(SCRIPTS["requeue"], (consumer, queue, number, int(delivered)), bool)


def notify(queue: str) -> Step[None]:
    return Step(SCRIPTS["notify"], (queue,), read_nothing)


def end_wait(consumer: str) -> Step[None]:
    return Step(SCRIPTS["end_wait"], (consumer,), read_nothing)


def sweep_dead_consumers(
    dead_after: float, consumer: str, owned: Collection[str], consumed: Iterable[str]
) -> Step[int]:
    """Return the number of dead consumers.

    :param dead_after: seconds after which a silent consumer is dead.
    :param consumer: the calling consumer, or ''.
    :param owned: its owned queues.
    :param consumed: other queues that it consumes.
    """
    arguments = dead_after, consumer, len(owned), *owned, *consumed
    return Step(SCRIPTS["sweep_dead_consumers"], arguments, int)


def leave(consumer: str, undelivered: Iterable[str]) -> Step[bool]:
    """Return whether all keys were deleted.

    :param undelivered: numbers of takes without a reply, and `TAKE:NUMBER` of undelivered messages.
    """
    return Step(SCRIPTS["leave"], (consumer, " ".join(undelivered)), bool)


def publish(batch: RoutedBatch) -> Step[Publication[list[int]]]:
    """Return the number of queues of each message."""
    return _publish("publish", batch, ((),) * len(batch.messages), (), list)


def open_and_publish(
    batch: RoutedBatch,
    rows: Sequence[OpenedRow],
    user: str,
    session: int,
    digests: str,
    ttl: int | str,
    life: int,
) -> Step[Publication[Opened | OtherSession]]:
    """Create a row for each message, and publish all.

    :param digests: digests of the ledger that the user knows, the latest first.
    :param ttl: milliseconds to keep results, or ''.
    :param life: incarnation of the server.
    """
    first = user, session, digests, ttl, life
    return _publish("open_and_publish", batch, rows, first, _read_opened)


def finish_requests(
    batch: RoutedBatch,
    requests: Sequence[FinishedRequest],
    holder: str,
    ttl: int | str,
    order: Take | None = None,
) -> Step[Publication[Finished]]:
    """Publish a reply to each request.

    :param ttl: milliseconds to keep results, or ''.
    """
    arguments = () if order is None else order.arguments()
    first = holder, ttl, len(arguments), *arguments
    return _publish("finish_requests", batch, requests, first, _read_finished)


def _publish(
    name: str,
    batch: RoutedBatch,
    rows: Sequence[tuple[Any, ...]],
    first: tuple[Any, ...],
    read: Callable[[Any], T],
) -> Step[Publication[T]]:
    """Return a step that starts with `first`, and has the arguments `rows` before each message."""
    bodies = " ".join(f"{index}:{id}" for index, id in batch.bodies.items())
    arguments: list[Any] = [batch.version, bodies, *first]
    for row, (priority, data, queues) in zip(rows, batch.messages, strict=True):
        arguments += *row, priority, data, len(queues), *queues

    def convert(reply: Any) -> Publication[T]:
        if reply is None or isinstance(reply[0], int):
            return Publication(None if reply is None else read(reply))
        return Publication(None, _read_routing(reply))

    return Step(SCRIPTS[name], tuple(arguments), convert)


def _binding(exchange: str, queue: str, key: str) -> str:
    return f"{exchange}\0{queue}\0{key}"


def _read_routes(reply: Sequence[Any]) -> tuple[Routing, int | None]:
    *routing, version = reply
    return _read_routing(routing), None if version is None else int(version)


def _read_routing(reply: Sequence[Any]) -> Routing:
    version, _, bindings = reply
    pairs = []
    for binding in bindings:
        exchange, queue, key = binding.decode("utf-8", "surrogateescape").split("\0", 2)
        pairs.append((queue, exchange, key))
    return Routing(version.decode(), pairs)


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


def read_nothing(reply: Any) -> None:
    """Ignore the reply of a script without a result."""
