"""Requests that were put aside: the workers that they were sent to were lost, one after the other.

They lie in one queue of the exchange, as they were sent, until somebody sends them again or removes
them.  Their flows went on without them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._log_rate import RareWarnings
from wbengine.engines.worker_based.connections import connecting, sender, topology
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import signing
from wbengine.transports import safe_message
from wbengine.transports.broker import Broker, Consumer

LOG = logging.getLogger(__name__)

_DISTRUSTED: Final = RareWarnings(LOG)

#: So many are looked at, at most.
MOST: Final = 1000


def queue_name(exchange: str) -> str:
    """The queue of those of an exchange."""
    return f"{exchange}.dead-letters"


#: With this option py-amqp waits until a message is the broker's.
_CONFIRMED: Final = {"confirm_publish": True}


@dataclasses.dataclass(slots=True)
class DeadLetter:
    """A request that was put aside at a time (unix seconds), and why.

    `queue` is where its workers took it from.  `digest` names the ledger that it had its row in.
    """

    id: str
    epoch: int
    task: str
    task_cls: str
    action: str
    flow: str | None
    queue: str | None
    why: str
    at: float | None
    digest: str | None
    message: Any = dataclasses.field(repr=False)


class DeadLetters:
    """The dead letters of one exchange, over a connection of its own; of one thread.

    :raises TransportFailure: the broker cannot be reached, or refuses.
    """

    def __init__(
        self,
        target: transports.Target,
        exchange: str,
        within: float,
        signer: signing.Signer | None = None,
    ) -> None:
        self._signer = signer
        direct = target.check()
        self._target = target
        self._name = queue_name(exchange)
        self._layout = topology.Topology(exchange, self._name, (), None, direct=direct)
        if target.amqp:  # what a broker that is short of memory did not take is not put aside
            target = dataclasses.replace(target, options={**target.options, **_CONFIRMED})
        self._connection = connecting.reach_soon(target, within)
        if target.amqp:  # it may stop to read, or to answer, at any time
            self._connection.connection.sock.settimeout(within)

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """What was looked at, and not removed, goes back."""
        connecting.release(self._connection)

    def put(self, letter: env.Envelope) -> None:
        """Put a request aside.

        :raises TransportFailure: as for all; also if the broker does not take it in time.
        """
        letter.routing_key, letter.signer = self._name, self._signer
        with self._translated(self._name):
            if isinstance(self._connection, Broker):
                self._connection.declare_queue(self._name)
                exchange = self._layout.declare_on(self._connection)
                self._connection.bind(exchange, self._name, self._name)
            else:
                with self._connection.channel() as channel:
                    self._layout.declare_shared(channel, self._name)
            self._publish(letter)

    def look(self) -> list[DeadLetter]:
        """Those that are there, the oldest first; the first `MOST` of them."""
        with self._translated(self._name):
            found = [self._read(message) for message in self._take()]
        return [letter for letter in found if letter is not None]

    def send(self, letter: DeadLetter, queue: str, epoch: int) -> None:
        """Send one that was looked at to the workers of a queue, and remove it.

        :raises NotFound: the queue is gone.
        """
        envelope = env.copy_of(letter.message)
        envelope.headers = dict(envelope.headers)
        for header in (env.WBE_DEAD, env.WBE_QUEUE, env.WBE_TIME, env.WBE_SIGNATURE):
            envelope.headers.pop(header, None)
        envelope.headers[env.WBE_EPOCH] = epoch
        envelope.routing_key, envelope.signer = queue, self._signer
        with self._translated(queue):
            if not (self._has(queue) and self._publish(envelope)):
                raise exc.NotFound(
                    f"request {letter.id} cannot be sent again: queue {queue!r} is gone"
                )
            letter.message.ack()

    def _translated(self, queue: str) -> contextlib.AbstractContextManager[None]:
        return connecting.translated(self._connection, self._target, queue)

    def _publish(self, envelope: env.Envelope) -> bool:
        kind = sender.BrokerWriter if self._target.ours else sender.KombuWriter
        writer: Any = kind(self._connection, self._layout)
        return all(writer.write([writer.prepare(envelope)]))

    def _has(self, queue: str) -> bool:
        if isinstance(self._connection, Broker):
            return any(queue == name for name, _, _ in self._connection.bindings())
        try:
            with self._translated(queue), self._connection.channel() as channel:
                channel.queue_declare(queue, passive=True)
        except exc.NotFound:
            return False
        return True

    def _take(self) -> Iterator[Any]:
        if not self._has(self._name):
            return
        if isinstance(self._connection, Broker):
            yield from self._consume(self._connection)
            return
        channel = safe_message.channel_of(self._connection)
        queue = self._layout.shared(channel, self._name)
        for _ in range(MOST):
            message = queue.get(no_ack=False)
            if message is None:
                return
            yield message

    def _consume(self, broker: Broker) -> Sequence[Any]:
        found: list[Any] = []
        Consumer(broker, found.append).consume((self._name,), MOST)
        with contextlib.suppress(TimeoutError):
            while len(found) < MOST:
                broker.drain(0)
        return found

    def _read(self, message: Any) -> DeadLetter | None:
        """What a message holds; None: it is no request, or nobody said it who may."""
        try:
            if self._signer is None:
                return _read(message, message.body)
            return _read(message, self._signer.verify(message, {self._name}))
        except exc.NotTrusted as error:
            _DISTRUSTED.tell(str(error), "a dead letter is passed over: %s", error)
            return None


def _read(message: Any, body: bytes | str) -> DeadLetter | None:
    try:
        found = env.received(env.parse(body), message)
        return DeadLetter(
            found.correlation_id or "",
            found.number(env.WBE_EPOCH, 1),
            str(found.body["task_name"]),
            str(found.body["task_cls"]),
            str(found.body["action"]),
            found.text(env.ROOT_ID),
            found.text(env.WBE_QUEUE),
            found.text(env.WBE_DEAD) or "",
            found.seconds(env.WBE_TIME),
            found.text(env.WBE_LEDGER),
            message,
        )
    except (exc.InvalidFormat, KeyError, TypeError):
        return None
