"""A broker of the simulated world: queues, bindings, and messages that are on their way."""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env

#: Seconds from a publisher to a queue, when nothing holds a message up.
LATENCY: Final = 0.001


@dataclass(frozen=True)
class Model:
    """What kind of broker it is.

    `ours`: queues of dead processes go with them, and a name is used once.  `pushes`: consumers are
    given messages, frozen or not, instead of taking them.  `redelivers`: what a process took and
    did not acknowledge goes to others when it dies.  `mandatory`: it tells that there was no queue.
    """

    name: str
    ours: bool = False
    pushes: bool = False
    redelivers: bool = True
    mandatory: bool = False


AMQP: Final = Model("amqp", pushes=True, mandatory=True)
FOLDER: Final = Model("folder", ours=True)
#: Whatever else kombu can use: what a dead process took is lost.
KOMBU: Final = Model("kombu", redelivers=False)
MODELS: Final = {model.name: model for model in (AMQP, FOLDER, KOMBU)}


class Message:
    """One copy of an envelope, on its way to one queue or in it; its own receipt."""

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
        #: Who took it, on which of his connections; None: nobody.
        self.taker: Any = None
        #: What its ledger said when it was taken, where taking asks it, and when that was.
        self.claim: Any = None
        self.taken = 0.0
        #: Somebody held it up, or made it twice.
        self.tampered = False

    @property
    def headers(self) -> dict[str, Any]:
        """As kombu's messages have them."""
        return self.envelope.headers

    @property
    def kind(self) -> str:
        return self.envelope.type

    def __lt__(self, other: Message) -> bool:
        return self.place < other.place

    def __repr__(self) -> str:
        body = self.envelope.body
        what = body.get("state", "") if self.kind == pr.RESPONSE else ""
        epoch = self.headers.get(env.WBE_EPOCH, "")
        return f"<{self.kind} {what} {self.envelope.correlation_id} {epoch} to {self.queue}>"


class Broker:
    """Queues by name.  `up` is False while nobody can reach it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.up = True
        self.queues: dict[str, list[Message]] = {}
        self.bindings: dict[str, dict[str, None]] = {}
        self.consumers: dict[str, deque[Any]] = {}
        self.flying: list[tuple[float, int, Message]] = []
        self._numbers = itertools.count(1)
        #: By queue, how many messages were ever in it at once.
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
        """Whether there was a queue for it."""
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
        """One more copy of a message, on its way."""
        self.send(self.copy(message, due))

    def back(self, message: Message) -> None:
        """Whoever took it is gone: it goes to another, as another delivery."""
        if message.queue in self.queues:
            again = Message(message.envelope, message.queue, message.due, message.number)
            again.redelivered, again.tampered = True, message.tampered
            insort(self.queues[message.queue], again)

    def in_flight(self) -> list[Message]:
        return [message for _, _, message in sorted(self.flying)]

    def pull(self, message: Message) -> None:
        """Take a message out of the air."""
        self.flying = [each for each in self.flying if each[2] is not message]
        heapq.heapify(self.flying)

    def arrive(self, message: Message) -> None:
        """It is in its queue now, if that is still there."""
        found = self.queues.get(message.queue)
        if found is not None:
            insort(found, message)
            self.most[message.queue] = max(len(found), self.most.get(message.queue, 0))

    def next_due(self) -> float | None:
        return self.flying[0][0] if self.flying and self.up else None

    def land(self, now: float) -> list[str]:
        """Let arrive what is due; the queues that this is about."""
        reached: list[str] = []
        while self.up and self.flying and self.flying[0][0] <= now:
            message = heapq.heappop(self.flying)[2]
            self.arrive(message)
            reached.append(message.queue)
        return reached
