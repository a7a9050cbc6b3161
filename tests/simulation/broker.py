"""A simulated broker: queues, bindings and messages in flight."""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd

#: Seconds from a publisher to a queue without delays.
LATENCY: Final = 0.001


@dataclass(frozen=True)
class Model:
    """Properties of a kind of broker.

    `ours`: queues of dead processes are deleted, and names are not reused.  `pushes`: the broker
    pushes messages to consumers, even if they are frozen.  `redelivers`: unacknowledged messages of
    a dead process are requeued.  `mandatory`: unroutable messages are reported to the publisher.
    """

    name: str
    ours: bool = False
    pushes: bool = False
    redelivers: bool = True
    mandatory: bool = False


AMQP: Final = Model("amqp", pushes=True, mandatory=True)
FOLDER: Final = Model("folder", ours=True)
#: Other transports of kombu: unacknowledged messages of a dead process are lost.
KOMBU: Final = Model("kombu", redelivers=False)
MODELS: Final = {model.name: model for model in (AMQP, FOLDER, KOMBU)}


class Message:
    """One copy of an envelope in flight or in a queue; also its own receipt."""

    __slots__ = (
        "claim",
        "due",
        "envelope",
        "number",
        "place",
        "queue",
        "redelivered",
        "taken",
        "taker",
        "tampered",
    )

    def __init__(self, envelope: env.Envelope, queue: str, due: float, number: int) -> None:
        self.envelope = envelope
        self.queue = queue
        self.due = due
        self.number = number
        self.place = (-envelope.priority, number)
        self.redelivered = False
        #: The process that received it, or None.
        self.taker: Any = None
        #: Claim made at the receipt, if receiving claims, and the time of it.
        self.claim: Any = None
        self.taken = 0.0
        #: True if a step delayed or duplicated the message.
        self.tampered = False

    @property
    def headers(self) -> dict[str, Any]:
        """Return the headers, like messages of kombu."""
        return self.envelope.headers

    @property
    def kind(self) -> str:
        return self.envelope.type

    def __lt__(self, other: Message) -> bool:
        return self.place < other.place

    def __repr__(self) -> str:
        body = self.envelope.body
        what = body.get("state", "") if self.kind == pr.RESPONSE else ""
        epoch = self.headers.get(hd.WBE_EPOCH, "")
        return f"<{self.kind} {what} {self.envelope.correlation_id} {epoch} to {self.queue}>"


class Broker:
    """Queues by name.  `up` is False while the broker is unreachable."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.up = True
        self.queues: dict[str, list[Message]] = {}
        self.bindings: dict[str, dict[str, None]] = {}
        self.consumers: dict[str, deque[Any]] = {}
        self.flying: list[tuple[float, int, Message]] = []
        self._numbers = itertools.count(1)
        #: Maximum number of messages by queue.
        self.most: dict[str, int] = {}

    def declare(self, queue: str, keys: tuple[str, ...]) -> None:
        self.queues.setdefault(queue, [])
        self.consumers.setdefault(queue, deque())
        for key in keys:
            self.bindings.setdefault(key, {})[queue] = None

    def remove(self, queue: str) -> None:
        self.queues.pop(queue, None)
        self.consumers.pop(queue, None)
        for bound in self.bindings.values():
            bound.pop(queue, None)

    def consume(self, queue: str, process: Any) -> None:
        line = self.consumers[queue]
        if process not in line:
            line.append(process)

    def cancel(self, process: Any) -> None:
        for line in self.consumers.values():
            if process in line:
                line.remove(process)

    def publish(self, envelope: env.Envelope, now: float) -> bool:
        """Publish an envelope; return False if no queue is bound."""
        bound = self.bindings.get(envelope.routing_key)
        if not bound:
            return False
        for queue in bound:
            self.send(Message(envelope, queue, now + LATENCY, next(self._numbers)))
        return True

    def send(self, message: Message) -> None:
        heapq.heappush(self.flying, (message.due, message.number, message))

    def copy(self, message: Message, due: float) -> Message:
        copy = Message(message.envelope, message.queue, due, next(self._numbers))
        copy.redelivered = message.redelivered
        copy.tampered = True
        return copy

    def again(self, message: Message, due: float) -> None:
        """Send another copy of a message."""
        self.send(self.copy(message, due))

    def back(self, message: Message) -> None:
        """Requeue a message whose consumer died, as a redelivery."""
        if message.queue in self.queues:
            again = Message(message.envelope, message.queue, message.due, message.number)
            again.redelivered, again.tampered = True, message.tampered
            insort(self.queues[message.queue], again)

    def in_flight(self) -> list[Message]:
        return [message for _, _, message in sorted(self.flying)]

    def pull(self, message: Message) -> None:
        """Remove a message in flight."""
        self.flying = [each for each in self.flying if each[2] is not message]
        heapq.heapify(self.flying)

    def pull_only(self, kind: str) -> Message:
        """Remove the only message of this kind in flight."""
        (message,) = [each for each in self.in_flight() if each.kind == kind]
        self.pull(message)
        return message

    def arrive(self, message: Message) -> None:
        """Put a message into its queue if the queue exists."""
        queue = self.queues.get(message.queue)
        if queue is not None:
            insort(queue, message)
            self.most[message.queue] = max(len(queue), self.most.get(message.queue, 0))

    def next_due(self) -> float | None:
        return self.flying[0][0] if self.flying and self.up else None

    def land(self, now: float) -> list[str]:
        """Deliver messages that are due; return their queues."""
        reached: list[str] = []
        while self.up and self.flying and self.flying[0][0] <= now:
            message = heapq.heappop(self.flying)[2]
            self.arrive(message)
            reached.append(message.queue)
        return reached
