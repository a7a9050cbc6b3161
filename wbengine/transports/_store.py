"""What a transport of ours has to provide: a `Store` per connection."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from wbengine import _names


@lru_cache(maxsize=4096)
def check_label(kind: str, name: str) -> str:
    """`_names.check_label`, remembered: hot paths pass the same few names again and again."""
    return _names.check_label(kind, name)


class Taken:
    """A message that left its queue and is not settled yet; `token` belongs to the store.

    `claim`: what the ledger said of the request in it, where the store asked it in the same step;
    `at`: when that step was begun, on the monotonic clock.
    """

    __slots__ = ("again", "at", "claim", "data", "queue", "token")

    def __init__(self, queue: str, token: Any, data: bytes, again: bool) -> None:
        self.queue = queue
        self.claim: Any = None
        self.at: float | None = None
        self.token = token
        self.data = data
        self.again = again


class Store(abc.ABC):
    """Where one connection's messages are kept.

    All methods but `refresh`, `take`, `take_many`, `watch`, `unwatch` and `wait` (the draining
    thread's) may be called from any thread.
    """

    #: How many messages are taken at once, at most, where a consumer has no limit of its own.
    batch = 1
    #: Whether `label` does anything.
    labels = False

    @abc.abstractmethod
    def declare_exchange(self, name: str, kind: str) -> None:
        """Make the exchange when it is not there."""

    @abc.abstractmethod
    def exchange_kind(self, name: str) -> str | None:
        """`direct`, `topic`, or None when there is no such exchange."""

    @abc.abstractmethod
    def delete_exchange(self, name: str) -> None:
        """Forget the exchange and its bindings."""

    @abc.abstractmethod
    def declare_queue(self, queue: str) -> None:
        """Make the queue when it is not there."""

    def own(self, queue: str) -> None:  # noqa: B027 - what is kept in the process dies with it
        """Should this process die, whoever notices deletes the queue."""

    @abc.abstractmethod
    def has_queue(self, queue: str) -> bool:
        """Whether the queue exists."""

    @abc.abstractmethod
    def delete_queue(self, queue: str) -> int:
        """Remove the queue, its messages and its bindings; how many messages went."""

    @abc.abstractmethod
    def purge(self, queue: str) -> int:
        """Remove the waiting messages; how many."""

    @abc.abstractmethod
    def size(self, queue: str) -> int:
        """How many messages wait."""

    @abc.abstractmethod
    def bind(self, exchange: str, key: str, queue: str) -> None:
        """Bind; doing it twice is once."""

    @abc.abstractmethod
    def unbind(self, exchange: str, key: str, queue: str) -> None:
        """Undo `bind`; fine when there is no such binding."""

    @abc.abstractmethod
    def bindings(self) -> Iterable[tuple[str, str, str]]:
        """All (queue, exchange, key)."""

    @abc.abstractmethod
    def route(self, exchange: str, key: str) -> Sequence[str]:
        """The queues a message goes to."""

    @abc.abstractmethod
    def put(self, queue: str, priority: int, data: bytes) -> bool:
        """Append to a queue; False when there is no such queue."""

    def publish(self, exchange: str, key: str, priority: int, data: bytes) -> bool:
        """Put a message into all queues it goes to; False when there is none.

        Without an exchange, `key` is a queue.
        """
        queues = self.route(exchange, key) if exchange else (key,)
        routed = False
        for queue in queues:
            routed = self.put(queue, priority, data) or routed
        return routed

    def publish_many(self, messages: Sequence[tuple[str, str, int, bytes]]) -> Iterator[bool]:
        """`publish` each of these (exchange, key, priority, data), in order; whether it had a queue
        is told as soon as it is published."""
        for message in messages:
            yield self.publish(*message)

    def end_many(
        self,
        ended: Sequence[tuple[tuple[str, int, bytes], Taken, tuple[str, str, int, bytes]]],
        order: Any = None,
    ) -> tuple[Sequence[int], Sequence[Taken]]:
        """For each request that was claimed while it was `taken`: store its result in the row
        (id, epoch, result), publish the answer, and forget the request, in one step.  In it
        messages are taken, too, where an `order` of this kind of store says so.

        In how many queues each answer is; -1, and it is in none, where the row is somebody else's.
        And what was taken.
        """
        raise NotImplementedError

    def order(self, most: int, queues: Sequence[str]) -> Any:
        """What `end_many`, of whatever store, is to be told so that it takes so many messages for
        this one; None: they have to be taken in the usual way.

        What becomes of it is told: `heard`, or it is as if nobody knew of what was taken.
        """
        return None

    def heard(self, order: Any, left: Sequence[Taken]) -> None:  # noqa: B027 - who makes none
        """What `end_many` took is known here now, but for what is `left`: of that nobody knows."""

    def missed(self, order: Any) -> None:  # noqa: B027
        """Nobody knows what `end_many` took: this store is of no use any more."""

    def label(self, data: bytes, row: tuple[str, int, str]) -> bytes:
        """`data`, with the row (id, epoch, digest of its ledger) on which it depends, for a store
        that can claim it while it takes the message."""
        return data

    @abc.abstractmethod
    def watch(self, queue: str) -> None:
        """From now on `wait` also ends when something comes into this queue."""

    @abc.abstractmethod
    def unwatch(self, queue: str) -> None:
        """Undo `watch`."""

    @abc.abstractmethod
    def refresh(self) -> int:
        """Look what came into the watched queues; an upper bound of what can be taken now."""

    @abc.abstractmethod
    def take(self, queue: str) -> Taken | None:
        """Take the first message of a queue out, so that nobody else gets it."""

    def take_many(self, groups: Sequence[tuple[int, Sequence[str]]]) -> list[tuple[int, Taken]]:
        """Take messages: for each group at most so many, the first queue before the second.

        Each comes with the number of its group.  With `batch` 1, one message at most.
        """
        for group, (most, queues) in enumerate(groups):
            for queue in queues if most else ():
                taken = self.take(queue)
                if taken is not None:
                    return [(group, taken)]
        return []

    @abc.abstractmethod
    def settle(self, taken: Taken) -> bool:
        """Acknowledged: forget the message.  False when it was no longer ours."""

    def settle_many(self, taken: Sequence[Taken]) -> bool:
        """`settle` each; False when one of them was no longer ours."""
        ours = True
        for one in taken:
            ours &= self.settle(one)
        return ours

    @abc.abstractmethod
    def give_back(self, taken: Taken, *, delivered: bool = True) -> None:
        """Put it back in its old place, marked as redelivered if it was delivered; else it is as if
        it had never been taken, nor claimed.  What cannot be put back now goes back when this is
        closed, in the same way."""

    @abc.abstractmethod
    def discard(self, taken: Taken, why: str) -> None:
        """It cannot be delivered to anyone: put it aside and say so."""

    @abc.abstractmethod
    def wait(self, timeout: float | None, queues: Sequence[str] = ()) -> None:
        """Block until something may have come, `nudge` is called, or the timeout is over.

        `queues` are those from which something could be taken.
        """

    @abc.abstractmethod
    def nudge(self) -> None:
        """End a `wait` that runs, or the next one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free everything held; doing it twice is once."""


#: What a label takes at most.
LABEL_LIMIT: Final = 1024


class FolderClaims(Protocol):
    """For whom requests are claimed, by the ledger of the same folders."""

    def take(self, labelled: Sequence[tuple[Taken, bytes]], began: float) -> None:
        """Claim what depends on rows of the ledger, by the labels, in one step that began then.

        Of what has no claim afterwards nothing is known: the worker has to ask.
        """

    def give_back(self, taken: Taken) -> None:
        """What was claimed was given to no worker: others may claim it."""

    def end(self, rows: Sequence[tuple[str, int, bytes]]) -> list[bool]:
        """Store each of these (id, epoch, result); whether its engine is to be answered."""


class RedisClaims(Protocol):
    """For whom requests are claimed in the ledger of the same Redis, by the scripts that take and
    answer them (`_claim_scripts`)."""

    holder: str

    @property
    def digest(self) -> str:
        """Of that ledger."""

    def read(self, said: Sequence[bytes]) -> Any:
        """What `Taken.claim` is to be: from verdict, epoch, holder, result."""

    def restore(self) -> None:
        """The server may have lost everything: see that it still is that ledger.  Never raises."""


def label(data: bytes, row: tuple[str, int, str]) -> bytes:
    """`data`, and before it the row (id, epoch, digest of its ledger) on which it depends."""
    id, epoch, digest = row
    return b"!%b %d %b\n%b" % (id.encode(), epoch, digest.encode(), data)


def split(data: bytes) -> tuple[bytes, bytes]:
    """The label, b"" where there is none, and what it was put before."""
    if data[:1] != b"!":
        return b"", data
    text, _, rest = data.partition(b"\n")
    return text, rest


def row_of(text: bytes, digest: str) -> tuple[str, int] | None:
    """(id, epoch), if that is a row of this ledger."""
    try:
        id, epoch, ledger = text[1:].decode("ascii").split(" ")
        return (id, int(epoch)) if ledger == digest and _names.is_label(id) else None
    except ValueError:
        return None
