"""A process that performs random operations on rows of requests, and records them.

Each record is written before the next step, so it survives a kill:

    ["call", number, time, [[operation, id, arguments], ...]]
    ["take", number, time, history]
    ["reply", number, time, [reply, ...]]

The replies to a call are in the order of its operations. Those to a take are claims: [id,
arguments, reply], without a reply if the take did not claim the row.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from tests.seams.ledgers import GRANTED
from tests.seams.requests import Claim, Requests, Taken
from wbengine import exceptions

T = TypeVar("T")

#: Number of rows of a history, and of operations after which all processes begin the next one.
ROWS: Final = 4
OPERATIONS: Final = 500


class Died(Exception):
    """Ends a client that is a thread, which cannot be killed."""


class Claimed(NamedTuple):
    """A row that a client has claimed, and the message if it came with one."""

    id: str
    epoch: int
    taken: Taken | None = None


class Client:
    """An engine and a worker, with this name.

    :param store: the URL of a broker, and that of a separate ledger or None.
    :param counts: the operations of all clients, and the place of the own number there.
    :param record: is called with each record.
    """

    def __init__(
        self,
        store: tuple[str, str | None],
        name: str,
        counts: tuple[MutableSequence[int], int],
        record: Callable[[bytes], object],
        seed: str,
    ) -> None:
        self._name = name
        self._counts, self._place = counts
        self._record = record
        self._random = random.Random(seed)
        self._numbers = 0
        self._history = -1
        #: Chance that a thread ends during an operation.
        self.mortality = 0.0
        self._requests = Requests(store[0], name, store[1])
        self._ledger = self._requests.ledger
        self._claimed: list[Claimed] = []
        #: Epoch and holder of each row when this client last read them.
        self._known: dict[str, tuple[int, str]] = {}

    def run(self, histories: int) -> None:
        """Perform operations until the histories are complete."""
        actions = [
            getattr(self, f"_{name}") for name, weight in _WEIGHTS.items() for _ in range(weight)
        ]
        while (history := sum(self._counts) // OPERATIONS) < histories:
            if history != self._history:
                self._begin(history)
            self._random.choice(actions)()

    def _begin(self, history: int) -> None:
        self._history = history
        self._queue = f"queue-{history}"
        self._ids = ids_of(history)
        self._known.clear()
        self._claimed.clear()
        self._requests.broker.declare_queue(self._queue)

    def read(self, history: int) -> None:
        """Read the rows of a history."""
        self._ids = ids_of(history)
        self._states()

    # Records.

    def _perform(
        self,
        operations: Sequence[tuple[str, str, Sequence[Any]]],
        do: Callable[[], Sequence[Any] | None],
    ) -> Sequence[Any]:
        """Record operations (name, id, arguments), and the replies that `do` returns for them.

        None stands for a None for each operation. After a failure, there are no replies.
        """
        number = self._write("call", operations)
        self._counts[self._place] += sum(name != "publish" for name, *_ in operations)
        is_done, replies = self._call(do)
        if is_done:
            replies = replies or [None] * len(operations)
            self._write("reply", replies, number)
        return replies or ()

    def _call(self, do: Callable[[], T]) -> tuple[bool, T | None]:
        """Return whether `do` succeeded, and its result. The effect of a failure is unknown."""
        if self._random.random() < self.mortality / 2:
            raise Died
        try:
            result = do()
        except (exceptions.LedgerFailure, exceptions.TransportFailure) as error:
            self._write("error", str(error))
            return False, None
        if self._random.random() < self.mortality / 2:
            raise Died
        return True, result

    def _write(self, kind: str, content: Any, number: int | None = None) -> int:
        if number is None:
            self._numbers = number = self._numbers + 1
        record = json.dumps([kind, number, time.monotonic(), content])
        self._record(record.encode() + b"\n")
        return number

    # Choices.

    def _some_ids(self) -> list[str]:
        return self._random.sample(self._ids, self._random.choice((1, 1, 1, 2)))

    def _epoch_of(self, id: str, *later: int) -> int:
        """Return the last known epoch, or a later one."""
        return self._known.get(id, (1, ""))[0] + self._random.choice(later or (0, 0, 0, 0, 1))

    def _foreign_claim(self) -> tuple[str, int, str]:
        """Return a row, a holder and an epoch, of which the holder has perhaps no claim."""
        (id, *_) = self._some_ids()
        known = self._known.get(id, (1, ""))[1]
        return (
            id,
            self._epoch_of(id, -1, -1, 0, 1),
            self._random.choice((known or self._name, self._name)),
        )

    # Operations of engines.

    def _open(self) -> None:
        rows = [(id, self._epoch_of(id, 0, 0, 0, 1)) for id in self._some_ids()]
        operations: list[tuple[str, str, Sequence[Any]]]
        operations = [("open", id, [epoch]) for id, epoch in rows]
        if not self._requests.has_rows or self._random.random() < 0.2:
            self._perform(operations, lambda: self._ledger.open_many(rows))
            self._publish(rows)
        else:
            operations += _published(rows)
            self._perform(
                operations, lambda: _nothing(self._requests.open(*rows, queue=self._queue))
            )

    def _publish(self, rows: Sequence[tuple[str, int]]) -> None:
        requests = self._requests
        if rows:
            self._perform(
                _published(rows), lambda: _nothing(requests.publish(*rows, queue=self._queue))
            )

    def _reopen(self) -> None:
        rows = [(id, self._epoch_of(id, 0, 1, 1)) for id in self._some_ids()]
        replies = self._perform(
            [("reopen", id, [epoch]) for id, epoch in rows],
            lambda: [_reopened(reply) for reply in self._ledger.reopen_many(rows)],
        )
        self._publish([row for row, reply in zip(rows, replies, strict=False) if reply is None])

    def _revoke(self) -> None:
        rows = [(id, self._random.choice((None, self._epoch_of(id)))) for id in self._some_ids()]
        self._perform(
            [("revoke", id, [epoch]) for id, epoch in rows],
            lambda: _flags(self._ledger.revoke_many(rows)),
        )

    def _drop(self) -> None:
        ids = self._some_ids()
        self._perform([("drop", id, []) for id in ids], lambda: self._ledger.drop_many(ids))

    def _states(self) -> None:
        replies = self._perform(
            [("state", id, []) for id in self._ids],
            lambda: [_state(reply) for reply in self._ledger.states(self._ids)],
        )
        for id, reply in zip(self._ids, replies, strict=False):
            if reply is not None:
                self._known[id] = reply[0], reply[2] or ""

    # Operations of workers.

    def _claim(self) -> None:
        (id, *_) = self._some_ids()
        self._claim_row(id, self._epoch_of(id))

    def _claim_row(self, id: str, epoch: int, taken: Taken | None = None) -> None:
        replies = self._perform(
            [("claim", id, [epoch, self._name])],
            lambda: [_verdict(self._ledger.claim(id, epoch, self._name))],
        )
        for reply in replies:
            self._note_claim(id, epoch, reply, taken)

    def _note_claim(
        self, id: str, epoch: int, reply: Sequence[Any], taken: Taken | None = None
    ) -> None:
        self._known[id] = reply[1], reply[3] or ""
        if reply[0] == GRANTED:
            self._claimed.append(Claimed(id, epoch, taken))

    def _take(self) -> None:
        limit = self._random.choice((1, 2, 4))
        number = self._write("take", self._history)
        is_done, messages = self._call(lambda: self._requests.receive(self._queue, limit))
        if not is_done or messages is None:
            return
        verdicts = [None if each.claim is None else _verdict(each.claim) for each in messages]
        claims = list(zip(messages, verdicts, strict=True))
        replies = [(each.id, [each.epoch, self._name], verdict) for each, verdict in claims]
        self._counts[self._place] += len(claims) - verdicts.count(None)
        self._write("reply", replies, number)
        for taken, verdict in claims:
            if verdict is not None:
                self._note_claim(taken.id, taken.epoch, verdict, taken)
        for taken in messages:
            if taken.claim is None:
                self._claim_row(taken.id, taken.epoch, taken)
            is_granted = taken in [each.taken for each in self._claimed]
            if not is_granted and self._random.random() < 0.5:
                self._requests.requeue(taken)
            elif not is_granted:
                self._requests.settle(taken)
        if self._earlier_claims():  # It must have no effect on the later one.
            self._finish()

    def _earlier_claims(self) -> list[int]:
        """Return the places of claims whose rows were claimed again."""
        ids = [each.id for each in self._claimed]
        return [place for place, id in enumerate(ids) if id in ids[place + 1 :]]

    def _pop_claimed(self) -> Claimed | None:
        """Return an earlier claim, or else a random one."""
        if not self._claimed:
            return None
        places = self._earlier_claims() or [self._random.randrange(len(self._claimed))]
        return self._claimed.pop(places[0])

    def _finish(self) -> None:
        claimed = self._pop_claimed()
        if claimed is not None and claimed.taken is not None and self._requests.has_rows:
            self._finish_and_publish([claimed, *self._claimed[:1]])
            return
        result = f"{self._name}-{self._numbers}"
        if claimed is None:
            id, epoch, holder = self._foreign_claim()
        else:
            id, epoch, holder = claimed.id, claimed.epoch, self._name
        self._perform(
            [("finish", id, [epoch, holder, result])],
            lambda: _flags(self._ledger.finish_many(holder, [(id, epoch, _stored(result))])),
        )
        if claimed is not None and claimed.taken is not None:
            self._requests.settle(claimed.taken)

    def _finish_and_publish(self, claimed: Sequence[Claimed]) -> None:
        done: dict[str, tuple[Taken, str]] = {}
        for each in claimed:
            if each.taken is not None and each.id not in done:
                done[each.id] = each.taken, f"{self._name}-{self._numbers}-{len(done)}"
        messages = [taken for taken, _ in done.values()]
        self._claimed = [each for each in self._claimed if each.taken not in messages]
        self._perform(
            [
                ("finish_and_publish", id, [taken.epoch, self._name, result])
                for id, (taken, result) in done.items()
            ],
            lambda: self._requests.finish(
                *((taken, result.encode()) for taken, result in done.values())
            ),
        )

    def _release(self) -> None:
        claimed = self._pop_claimed()
        if claimed is None:
            id, epoch, holder = self._foreign_claim()
        else:
            id, epoch, holder = claimed.id, claimed.epoch, self._name
        self._perform(
            [("release", id, [epoch, holder])],
            lambda: [self._ledger.release(id, epoch, holder)],
        )

    def _return(self) -> None:
        """Requeue or refuse a message, and undo its claim unless it counts as delivered."""
        claimed = self._pop_claimed()
        if claimed is None or claimed.taken is None:
            return
        taken, requests = claimed.taken, self._requests
        end = self._random.choice((requests.requeue, requests.undo, requests.refuse))
        if end == requests.requeue:
            requests.requeue(taken)
        else:
            self._perform([("undo", taken.id, [taken.epoch, self._name])], lambda: end(taken))


#: Shares of the operations.
_WEIGHTS: Final = {
    "open": 6, "reopen": 6, "revoke": 2, "drop": 2, "states": 2,
    "take": 8, "claim": 3, "finish": 6, "release": 2, "return": 2,
}  # fmt: skip


def ids_of(history: int) -> list[str]:
    return [f"row-{history}-{number}" for number in range(ROWS)]


def _published(rows: Sequence[tuple[str, int]]) -> list[tuple[str, str, Sequence[Any]]]:
    return [("publish", id, [epoch]) for id, epoch in rows]


def _nothing(counts: Sequence[int]) -> None:
    """Discard the numbers of queues."""


def _verdict(claim: Claim) -> list[Any]:
    return [claim.verdict, claim.epoch, _text(claim.result), claim.holder]


def _stored(result: str) -> bytes:
    """Return a result as it is stored: a reply with a head."""
    return b"\n" + result.encode()


def _text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.partition(b"\n")[2].decode()


def _raised(reply: Any) -> Any:
    if isinstance(reply, exceptions.LedgerFailure):
        raise reply
    return reply


def _reopened(reply: Any) -> Any:
    return "not found" if isinstance(reply, exceptions.NotFound) else _text(_raised(reply))


def _flags(replies: Sequence[Any]) -> list[Any]:
    return [_raised(reply) for reply in replies]


def _state(reply: Any) -> Any:
    row = _raised(reply)
    return None if row is None else [row.epoch, row.state, row.holder, _text(row.result)]
