"""Notes of the tasks that have begun, kept by a RabbitMQ.

A broker marks what it delivers again, which says "was given to somebody", and not "has begun": it
may only have waited somewhere.  So a worker has the broker exchange the message of a task that
begins for a *note*, a copy in a queue of the worker's own, in one transaction.  What is in a queue
of Celery's has not begun, then.

The note is delivered to the worker at once, and acknowledged when the task has ended.  If the
worker dies, or its connection is lost, the note goes back into the worker's own queue, where it is
too old to stay: it moves on to a queue that all workers share who take from the same queue of
Celery's.  What comes from there has begun.

The broker writes both to disk when the transaction is committed, the note at once, and that the
message is gone a moment (some 0.2 s) later: if it is killed in between, both are there.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

import amqp
from amqp import spec
from kombu.utils import json

from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["Note", "Notes", "begun_queue", "read"]

#: What a note says it is, and where its first part ends.
_TYPE: Final = "application/x-wbengine-note"
_END: Final = b"\n"

#: Milliseconds that a note waits for its worker, and after which its queue is deleted when nobody
#: is there.
_WAITS: Final = 1_000
_KEPT: Final = 600_000

#: So many notes of others that have begun are taken at once.
_AT_ONCE: Final = 200

#: Bytes of the longest name that a queue may have.
_LONGEST: Final = 255


class Note:
    """That one task begins; `tag` is what it is acknowledged by, once it has come back."""

    __slots__ = ("ended", "tag")

    def __init__(self, tag: int | None = None) -> None:
        self.tag = tag
        #: It is to be acknowledged as soon as it comes.
        self.ended = False


class Notes:
    """The notes of one connection, on a channel of their own."""

    def __init__(self, connection: Any) -> None:
        self._channel: Any = connection.channel()
        self._suffix = uuid.uuid4().hex[:12]
        #: By the queue of Celery's: the worker's own queue.
        self._own: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        #: What has not come back yet, by the name of the note.
        self._under_way: dict[str, Note] = {}

    def declare(self, queue: str) -> None:
        """See that the notes of a queue have a place."""
        if queue in self._own:
            return
        shared = begun_queue(queue)
        self._channel.queue_declare(
            shared, durable=True, auto_delete=False, arguments={"x-queue-type": "classic"}
        )
        own = _named(queue, self._suffix)
        arguments = {
            "x-queue-type": "classic",
            "x-message-ttl": _WAITS,
            "x-expires": _KEPT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": shared,
        }
        self._channel.queue_declare(own, durable=True, auto_delete=False, arguments=arguments)
        self._channel.basic_qos(0, 0, False)  # else they would be too old before they come
        self._channel.basic_consume(own, callback=self._on_own)
        self._own[queue] = own

    def consume(self, queue: str, on_message: Callable[[Any], None]) -> None:
        """Take what has begun elsewhere."""
        if queue not in self._begun:
            self._channel.basic_qos(0, _AT_ONCE, False)
            shared = self._begun[queue] = begun_queue(queue)
            self._channel.basic_consume(shared, consumer_tag=shared, callback=on_message)

    def cancel(self, queues: Iterable[str]) -> None:
        """Take no more of what has begun elsewhere."""
        for queue in list(queues):
            if queue in self._begun:
                self._channel.basic_cancel(self._begun.pop(queue))

    def publish(self, channel: Any, queue: str, name: str, wire: Wire) -> Note:
        """Publish a note in the transaction of a channel."""
        note = self._under_way[name] = Note()
        message = amqp.Message(
            write(wire), content_type=_TYPE, message_id=name, delivery_mode=2
        )  # fmt: skip
        # `basic_publish` would read what comes first.
        arguments = (0, "", self._own[queue], False, False)
        channel.send_method(spec.Basic.Publish, "Bssbb", arguments, message)
        return note

    def _on_own(self, message: Any) -> None:
        note = self._under_way.pop(message.properties.get("message_id"), None)
        if note is None or note.ended:
            self._channel.basic_ack(message.delivery_tag)
        else:
            note.tag = message.delivery_tag

    def settle(self, note: Note, back: bool) -> None:
        """Acknowledge a note: its task has ended; or put it `back` to those of what has begun."""
        note.ended = True
        if note.tag is not None and back:
            self._channel.basic_reject(note.tag, True)
        elif note.tag is not None:
            self._channel.basic_ack(note.tag)


def begun_queue(queue: str) -> str:
    """The queue in which that is found of a queue of Celery's which has begun."""
    return _named(queue, "begun")


def _named(queue: str, what: str) -> str:
    name = f"{queue}.wbengine.{what}"
    if len(name.encode()) <= _LONGEST:
        return name
    return f"{hashlib.sha256(queue.encode()).hexdigest()}.wbengine.{what}"


def write(wire: Wire) -> bytes:
    """The body of a note: what the message says besides its body, and then that."""
    said = [wire.headers, wire.properties, wire.content_type, wire.content_encoding]
    return b"".join((json.dumps(said).encode(), _END, wire.body))


def read(message: Any) -> Wire:
    """The message that a note is a copy of.

    :raises ValueError: it is no note.
    """
    body = message.body
    kind = message.properties.get("content_type")
    if kind != _TYPE:
        raise ValueError(f"it is no note, but {kind!r}")
    said, end, rest = bytes(body).partition(_END)
    if not end:
        raise ValueError("it is a note that was cut short")
    headers, properties, content_type, content_encoding = json.loads(said)
    return Wire(headers, properties, content_type, content_encoding, rest)
