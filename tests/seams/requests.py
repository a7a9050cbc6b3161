"""Requests with rows: connections of engines and workers to a broker and a ledger.

`Requests` has the operations of both. One step of the broker claims rows as it takes messages,
stores results as it publishes replies, and opens rows with their requests. With another ledger,
these are two steps, as with RabbitMQ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports import _broker, _ledger, resolve
from wbengine.transports._folder import folder_broker
from wbengine.transports._redis import redis_broker, redis_link, redis_scripts
from wbengine.transports._sql import sql_broker

__all__ = [
    "ANSWERS",
    "KINDS",
    "QUEUE",
    "Claim",
    "Fence",
    "Requests",
    "Row",
    "Taken",
    "no_polling",
]

#: Brokers with their ledgers.
KINDS: Final = ("memory", "filesystem", "redis", "postgresql", "mysql")

Claim = _ledger.Claim
Fence = _ledger.Fence
Row = _ledger.Row

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
        opened = ledgers.choose(ledger, target, "worker" if name else "engine")
        assert opened is not None
        self.name = name
        self.ledger: _ledger.Ledger = opened
        #: Whether the broker has the rows.
        self.has_rows = ledger is None
        if self.has_rows:
            target.rows.ledger, target.rows.holder = opened, name
        if name:
            opened.renew(name)
        self.broker: Any = target.open()
        for queue in (QUEUE, ANSWERS):
            self.broker.declare_queue(queue)

    def close(self) -> None:
        self.broker.release()
        self.ledger.close()

    # Engines.

    def open(self, *rows: tuple[str, int], **message: Any) -> list[int]:
        """Open rows (id, epoch) and publish their requests; return the number of their queues."""
        if not self.has_rows:
            self.ledger.open_many(rows)
            return self.publish(*rows, **message)
        return self.open_again([_ledger.Opening(*row) for row in rows], **message)

    def opening(self, id: str, epoch: int = 1, fence: _ledger.Fence = _ledger.NO_FENCE) -> Any:
        """Return the row for `open_again`."""
        return _ledger.Opening(id, epoch, fence)

    def open_again(self, opened: Sequence[Any], **message: Any) -> list[int]:
        """Open rows and publish their requests in one step, perhaps after one without a reply."""
        messages = [self._request(row.id, row.epoch, **message) for row in opened]
        return list(self.broker.open_and_publish(opened, messages))

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
        self,
        key: str,
        id: str,
        headers: dict[str, Any],
        body: bytes,
        priority: int = 0,
        exchange: str = "",
    ) -> OutgoingMessage:
        envelope = env.Envelope("T", {}, key, id, None, headers, priority)
        envelope._encoded = body
        message = OutgoingMessage(envelope)
        message.encode(exchange, self.broker.labels)
        return message

    def publish_raw(self, data: bytes, queue: str = QUEUE) -> bool:
        """Publish bytes without validation. Return whether the queue exists."""
        return all(self.broker.publish_many([_broker.Frame("", queue, 0, data)]))

    def receive_raw(self) -> list[tuple[bytes | None, Claim | None]]:
        """Take messages without reading them; return their data and claims."""
        return [(delivery.data, delivery.claim) for delivery in self._take(QUEUE, 10)]

    def answers(self, queue: str = ANSWERS) -> list[tuple[str, bytes]]:
        """Take and acknowledge the messages that wait for an engine; return ids and bodies."""
        replies = self.receive(queue, 100)
        self.settle(*replies)
        return [(reply.id, reply.body) for reply in replies]

    def result(self, id: str) -> bytes | None:
        """Return the body of the result in a row."""
        row = self.ledger.state(id)
        return None if row is None or row.result is None else row.result.partition(b"\n")[2]

    # Workers.

    def receive(self, queue: str = QUEUE, limit: int = 10) -> list[Taken]:
        """Take messages, and as a worker claim the rows of requests."""
        deliveries = self._take(queue, limit)
        self.broker.fetch(deliveries)
        return [each for delivery in deliveries for each in self._taken(delivery)]

    def _take(self, queue: str, limit: int) -> list[Any]:
        self.broker.watch(queue)
        deliveries: list[Any] = []
        # Brokers in memory take one message at a time.
        while (room := limit - len(deliveries)) > 0 and self.broker.refresh():
            taken = [each for _, each in self.broker.take_many([(room, [queue])])]
            if not taken:
                break
            deliveries += taken
        self.broker.unwatch(queue)
        return deliveries

    def _taken(self, delivery: Any) -> Iterable[Taken]:
        if delivery.data is None:  # The row with the reply was deleted.
            self.broker.refuse(delivery)
            return
        delivery.parse()
        yield self._message_of(delivery)

    @staticmethod
    def _message_of(delivery: Any) -> Taken:
        id, epoch = delivery.properties["correlation_id"], delivery.headers.get("wbe-epoch", 0)
        return Taken(
            id, epoch, bytes(delivery.body), delivery.redelivered, delivery.claim, delivery
        )

    def take(self, queue: str = QUEUE, limit: int = 10) -> list[Taken]:
        """Take requests, and claim rows that became claimable after the take."""
        messages = self.receive(queue, limit)
        for message in messages:
            if message.claim is None:
                message.claim = self.ledger.claim(message.id, message.epoch, self.name)
        return messages

    def finish(self, *done: tuple[Taken, bytes], order: Any = None, **reply: str) -> list[bool]:
        """Store results, publish them as replies, and acknowledge the requests.

        :param order: takes other requests in the same step.
        :returns: for each whether the row belonged to this worker, or did not exist.
        """
        batch = self.batch(*done, **reply)
        if self.has_rows:
            return list(self.broker.finish(batch, order))
        owned = [self._store(each.id, each.epoch, each.reply) for each in batch]
        sent = [each.reply for each, is_owned in zip(batch, owned, strict=True) if is_owned]
        assert all(self.broker.publish_many(sent))
        self.settle(*(taken for taken, _ in done))
        return owned

    def batch(
        self, *done: tuple[Taken, bytes], exchange: str = "", key: str = ANSWERS
    ) -> list[_broker.Finish]:
        """Return the argument of `Broker.finish`."""
        return [
            _broker.Finish(
                taken.id,
                taken.epoch,
                taken.delivery,
                self._message(key, taken.id, {}, body, 0, exchange),
            )
            for taken, body in done
        ]

    def _store(self, id: str, epoch: int, reply: _broker.Frame) -> bool:
        if self.ledger.finish(id, epoch, self.name, reply.head + reply.body):
            return True
        row = self.ledger.state(id)
        return row is None or (row.epoch == epoch and row.state == _ledger.ROW_DONE)

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
        if not self.has_rows and message.claim is not None and message.claim.granted:
            self.ledger.release(message.id, message.epoch, self.name)

    def discard(self, message: Taken) -> None:
        """Delete a message that cannot be delivered, and undo its claim."""
        self._unclaim(message)
        self.broker.discard(message.delivery, "it is damaged")

    def send(self, id: str, body: bytes, queue: str = ANSWERS) -> None:
        """Send a message about a request, for example an event."""
        assert all(self.broker.publish_many([self._message(queue, id, {}, body)]))

    def wait(self, queue: str = QUEUE) -> None:
        """Wait as a consumer until a message is in the queue."""
        self.broker.watch(queue)
        while not self.broker.size(queue):
            self.broker.refresh()
            self.broker.wait(None, [queue])
        self.broker.unwatch(queue)

    def consume(self, limit: int) -> tuple[Any, list[Taken]]:
        """Return a consumer of requests, and the list of messages that it receives."""
        received: list[Taken] = []
        consumer = _broker.Consumer(
            self.broker, lambda delivery: received.append(self._message_of(delivery))
        )
        consumer.consume((QUEUE,), limit)
        return consumer, received

    # Deaths.

    def die(self) -> None:
        """Lose the connection as if this process had died."""
        if isinstance(self.broker, folder_broker.FileBroker):
            assert self.broker._liveness_file is not None
            self.broker._liveness_file.abandon()
        elif isinstance(self.broker, redis_broker.RedisBroker):
            self.broker._run(redis_scripts.leave(self.broker._consumer_name, ()))
        elif isinstance(self.broker, sql_broker.SQLBroker):
            for table, key, name in (
                ("wbe_consumers", "name", self.broker._name),
                ("wbe_ledger_holders", "holder", self.name),
            ):
                silent = f"UPDATE {table} SET beat = 0 WHERE {key} = %(name)s"
                self.broker._run(silent, {"name": name})
        else:
            self.broker.close()

    def notice_deaths(self) -> None:
        """Requeue the messages of dead connections."""
        if isinstance(self.broker, folder_broker.FileBroker):
            self.broker._sweep_dead()
        elif isinstance(self.broker, sql_broker.SQLBroker):
            self.broker._sweep()


@contextlib.contextmanager
def no_polling() -> Iterator[None]:
    """Let consumers that servers notify, but miss a wake-up, wait for a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_link, "POLL_SECONDS", 60)
        patch.setattr(sql_broker, "_REPORT_SECONDS", 60.0)
        yield
