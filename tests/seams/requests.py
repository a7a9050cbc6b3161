"""Requests with rows: connections of engines and workers to a broker and a ledger.

`Requests` has the operations of both. If the ledger is in the broker, one step of the broker claims
rows as it takes messages, stores results as it publishes replies, and opens rows with their
requests. Otherwise these are two steps, as in engines and workers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._connections.outgoing import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based.ledger import _base
from wbengine.transports import _broker, resolve

__all__ = ["ANSWERS", "QUEUE", "Claim", "Requests", "Row", "Taken"]

Claim = _base.Claim
Row = _base.Row

#: Default queues of requests and of replies.
QUEUE: Final = "q"
ANSWERS: Final = "answers"


@dataclass(eq=False)
class Taken:
    """A message that was taken. `claim`: see `Delivery`; replies have none."""

    id: str
    epoch: int
    body: bytes
    redelivered: bool
    claim: Claim | None
    delivery: Any


class Requests:
    """A connection of the worker `name`, or of an engine without a name.

    :param ledger: the URL of a ledger that is not in the broker.
    """

    def __init__(self, url: str, name: str = "", ledger: str | None = None, **options: Any) -> None:
        target = resolve(url, None, options)
        opened = ledgers.choose(ledger, target)
        assert opened is not None
        self.name = name
        self.ledger: _base.Ledger = opened
        #: Whether takes claim rows.
        self.claims_in_takes = bool(name) and ledgers.attach_claims(opened, target, name)
        self._openings = opened.openings(target.place)
        self.broker: Any = target.open()
        for queue in (QUEUE, ANSWERS):
            self.broker.declare_queue(queue)

    def close(self) -> None:
        self.broker.release()
        self.ledger.close()

    # Engines.

    @property
    def opens_in_one_step(self) -> bool:
        return self._openings is not None

    def open(self, *rows: tuple[str, int], **message: Any) -> list[int]:
        """Open rows (id, epoch) and publish their requests; return the number of their queues."""
        if self._openings is None:
            self.ledger.open_many(rows)
            return self.publish(*rows, **message)
        opened = [_base.Opening(*row) for row in rows]
        return self.open_again(opened, **message)

    def opening(self, id: str, epoch: int = 1) -> Any:
        """Return the row for `open_again`."""
        return _base.Opening(id, epoch)

    def open_again(self, opened: Sequence[Any], **message: Any) -> list[int]:
        """Open rows and publish their requests in one step, perhaps after one without a reply."""
        assert self._openings is not None
        messages = [self._request(row.id, row.epoch, **message) for row in opened]
        return list(self._openings.open_and_publish(self.broker, opened, messages))

    def publish(self, *rows: tuple[str, int], **message: Any) -> list[int]:
        """Publish the requests of rows (id, epoch)."""
        messages = [self._request(*row, **message) for row in rows]
        return list(map(int, self.broker.publish_many(messages)))

    def _request(
        self,
        id: str,
        epoch: int,
        queue: str = QUEUE,
        body: bytes = b"{}",
        priority: int = 0,
        digest: str = "",
    ) -> OutgoingMessage:
        headers = {"wbe-ledger": digest or self.ledger.digest, "wbe-epoch": epoch}
        return self._message(queue, id, headers, body, priority)

    def _message(
        self, queue: str, id: str, headers: dict[str, Any], body: bytes, priority: int = 0
    ) -> OutgoingMessage:
        envelope = env.Envelope("T", {}, queue, id, None, headers, priority)
        envelope._encoded = body
        message = OutgoingMessage(envelope)
        message.encode("", self.broker.labels)
        return message

    def answers(self) -> dict[str, bytes]:
        """Take and acknowledge the replies that wait; return their bodies by request."""
        replies = self.receive(ANSWERS, 100)
        self.settle(*replies)
        return {reply.id: reply.body for reply in replies}

    def result(self, id: str) -> bytes | None:
        """Return the body of the result in a row."""
        row = self.ledger.state(id)
        return None if row is None or row.result is None else row.result.partition(b"\n")[2]

    # Workers.

    def receive(self, queue: str = QUEUE, limit: int = 10) -> list[Taken]:
        """Take messages. Their rows are claimed only if `claims_in_takes`."""
        self.broker.watch(queue)
        deliveries: list[Any] = []
        # Brokers in memory take one message at a time.
        while (room := limit - len(deliveries)) > 0 and self.broker.refresh():
            taken = [each for _, each in self.broker.take_many([(room, [queue])])]
            if not taken:
                break
            deliveries += taken
        self.broker.unwatch(queue)
        self.broker.fetch(deliveries)
        return [each for delivery in deliveries for each in self._taken(delivery)]

    def _taken(self, delivery: Any) -> Iterable[Taken]:
        if delivery.data is None:  # The row with the reply was deleted.
            self.broker.refuse(delivery)
            return
        delivery.parse()
        id, epoch = delivery.properties["correlation_id"], delivery.headers.get("wbe-epoch", 0)
        yield Taken(id, epoch, bytes(delivery.body), delivery.redelivered, delivery.claim, delivery)

    def take(self, queue: str = QUEUE, limit: int = 10) -> list[Taken]:
        """Take requests, and claim the rows that the takes did not claim."""
        messages = self.receive(queue, limit)
        for message in messages:
            if message.claim is None:
                message.claim = self.ledger.claim(message.id, message.epoch, self.name)
        return messages

    def finish(self, *done: tuple[Taken, bytes]) -> list[bool]:
        """Store results, publish them as replies, and acknowledge the requests.

        Return for each whether the row belonged to this worker, or did not exist.
        """
        replies = [self._message(ANSWERS, taken.id, {}, body) for taken, body in done]
        if self.claims_in_takes:
            batch = [
                _broker.Finish(taken.id, taken.epoch, taken.delivery, reply)
                for (taken, _), reply in zip(done, replies, strict=True)
            ]
            return list(self.broker.finish(batch))
        owned = [self._store(taken, reply) for (taken, _), reply in zip(done, replies, strict=True)]
        sent = [reply for reply, is_owned in zip(replies, owned, strict=True) if is_owned]
        assert all(self.broker.publish_many(sent))
        self.settle(*(taken for taken, _ in done))
        return owned

    def _store(self, taken: Taken, reply: OutgoingMessage) -> bool:
        if self.ledger.finish(taken.id, taken.epoch, self.name, reply.head + reply.body):
            return True
        row = self.ledger.state(taken.id)
        return row is None or (row.epoch == taken.epoch and row.state == _base.ROW_DONE)

    def settle(self, *messages: Taken) -> bool:
        """Acknowledge messages. Return False if any was lost."""
        return bool(self.broker.settle_many([message.delivery for message in messages]))

    def requeue(self, message: Taken) -> None:
        """Requeue a message that was delivered."""
        self.broker.requeue(message.delivery)

    def undo(self, message: Taken) -> None:
        """Requeue a message as if it had not been taken, and undo its claim."""
        self._unclaim(message)
        self.broker.requeue(message.delivery, delivered=False)

    def refuse(self, message: Taken) -> None:
        """Delete a message, and undo its claim."""
        self._unclaim(message)
        self.broker.refuse(message.delivery)

    def _unclaim(self, message: Taken) -> None:
        if not self.claims_in_takes and message.claim is not None and message.claim.granted:
            self.ledger.release(message.id, message.epoch, self.name)

    def wait(self, queue: str, timeout: float) -> float:
        """Wait for messages in a queue as a consumer with capacity; return the seconds."""
        began = time.monotonic()
        self.broker.watch(queue)
        with contextlib.suppress(TimeoutError):
            while not self.broker.refresh() and time.monotonic() - began < timeout:
                self.broker.wait(timeout, [queue])
        self.broker.unwatch(queue)
        return time.monotonic() - began
