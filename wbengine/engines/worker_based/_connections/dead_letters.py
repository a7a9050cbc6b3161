"""Dead letters: requests that failed because each worker that received them was lost.

They are kept unchanged in one queue of the exchange until an operator resends or removes them.
Their flows have continued with the failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._logs.repeated_messages import RareWarnings
from wbengine.engines.worker_based._connections import connecting, queue_counts, topology
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import request_messages, signing
from wbengine.engines.worker_based._messages.request_messages import Death, RequestMessage
from wbengine.transports._broker import Broker, BrokerWriter, Consumer
from wbengine.transports._kombu import safe_message
from wbengine.transports._kombu.kombu_writer import KombuWriter

LOG = logging.getLogger(__name__)

_DISTRUSTED: Final = RareWarnings(LOG)

MAX_LETTERS: Final = 1000


def queue_name(exchange: str) -> str:
    return f"{exchange}.dead-letters"


@dataclasses.dataclass(slots=True)
class DeadLetter:
    """A dead-lettered request, with its Unix time and the reason.

    `queue` is the queue from which workers consumed it. `digest` identifies the ledger that
    contained its row.
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
    """The dead letters of one exchange, on a separate connection. Not thread-safe.

    :raises TransportFailure: if the broker cannot be reached or refuses.
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
        if target.amqp:
            # py-amqp waits for the confirm of each message: a broker with an alarm may accept the
            # bytes of a message, but not the message.
            options = {**target.options, "confirm_publish": True}
            target = dataclasses.replace(target, options=options)
        self._connection = connecting.reach_soon(target, within)
        if target.amqp:  # The broker may stop to read or reply at any time.
            self._connection.connection.sock.settimeout(within)

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Disconnect. Messages that were read but not removed are requeued."""
        connecting.release(self._connection)

    def put(self, letter: env.Envelope) -> None:
        """Add a request to the dead letters.

        :raises TransportFailure: if the broker is unavailable, refuses, or is too slow.
        """
        letter.routing_key, letter.signer = self._name, self._signer
        with self._translating_errors(self._name):
            if isinstance(self._connection, Broker):
                self._connection.declare_queue(self._name)
                exchange = self._layout.declare_on(self._connection)
                self._connection.bind(exchange, self._name, self._name)
            else:
                with self._connection.channel() as channel:
                    self._layout.declare_shared(channel, self._name)
            self._publish(letter)

    def list_letters(self) -> list[DeadLetter]:
        """Return at most `MAX_LETTERS` dead letters, oldest first."""
        with self._translating_errors(self._name):
            letters = [self._read(message) for message in self._take()]
        return [letter for letter in letters if letter is not None]

    def send(self, letter: DeadLetter, queue: str, epoch: int) -> None:
        """Publish a dead letter to a queue of workers, and remove it.

        :raises NotFound: if the queue does not exist.
        """
        envelope = env.copy_of(letter.message)
        request_messages.revive(envelope, epoch)
        envelope.routing_key, envelope.signer = queue, self._signer
        with self._translating_errors(queue):
            if not (self._has(queue) and self._publish(envelope)):
                raise exc.NotFound(
                    f"request {letter.id} cannot be resent: queue {queue!r} does not exist"
                )
            letter.message.ack()

    def _translating_errors(self, queue: str) -> contextlib.AbstractContextManager[None]:
        return connecting.translated(self._connection, self._target, queue)

    def _publish(self, envelope: env.Envelope) -> bool:
        kind: type[Any] = BrokerWriter if self._target.is_native else KombuWriter
        writer = kind(self._connection, self._layout)
        writer.open()
        message = OutgoingMessage(envelope)
        writer.encode(message)
        return all(writer.write([message]))

    def _has(self, queue: str) -> bool:
        if isinstance(self._connection, Broker):
            return any(queue == name for name, _, _ in self._connection.bindings())
        return queue_counts.count_passively(self._connection, self._target, queue) is not None

    def _take(self) -> Iterator[Any]:
        if not self._has(self._name):
            return
        if isinstance(self._connection, Broker):
            yield from self._consume(self._connection)
            return
        channel = safe_message.channel_of(self._connection)
        queue = self._layout.shared(channel, self._name)
        for _ in range(MAX_LETTERS):
            message = queue.get(no_ack=False)
            if message is None:
                return
            yield message

    def _consume(self, broker: Broker) -> Sequence[Any]:
        messages: list[Any] = []
        Consumer(broker, messages.append).consume((self._name,), MAX_LETTERS)
        with contextlib.suppress(TimeoutError):
            while len(messages) < MAX_LETTERS:
                broker.drain(0)
        return messages

    def _read(self, message: Any) -> DeadLetter | None:
        """Return the content of a message; None if it is not a request with a valid signature."""
        body: bytes | str = message.body
        try:
            if self._signer is not None:
                body = self._signer.verify(message, {self._name})
            envelope = env.received(env.parse(body), message)
            request, death = RequestMessage.from_message(envelope), Death.from_message(envelope)
            return DeadLetter(
                request.id,
                request.epoch,
                str(envelope.body["task_name"]),
                str(envelope.body["task_cls"]),
                str(envelope.body["action"]),
                request.flow or None,
                death.queue,
                death.reason,
                death.at,
                request.ledger,
                message,
            )
        except exc.NotTrusted as error:
            _DISTRUSTED.warn(str(error), "skipped a dead letter: %s", error)
        except (exc.InvalidFormat, KeyError, TypeError):
            pass
        return None
