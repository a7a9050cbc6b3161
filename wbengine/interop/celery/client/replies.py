"""Results that come back as messages: one queue for all that a link waits for (`rpc://`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import kombu

from wbengine import exceptions
from wbengine.interop.celery.protocol import serializers, wire
from wbengine.types import failure as ft

__all__ = ["Replies"]

LOG: Final = logging.getLogger(__name__)

#: Seconds for which the queue waits for who reads it to come back.
_EXPIRES: Final = 3600.0


class Replies:
    """Reads the queue `name` of a connection; `heard(id, meta or Failure)` is told of each result.

    The queue outlasts the connection, so that what comes meanwhile is there when another one is
    made.  Where the broker knows acknowledgements, a result is acknowledged once it was told.
    """

    def __init__(
        self,
        connection: kombu.Connection,
        name: str,
        accepted: serializers.Accepted,
        heard: Callable[[str, Any], None],
        *,
        acknowledges: bool,
    ) -> None:
        self._name = name
        self._accepted = accepted
        self._heard = heard
        self._acknowledges = acknowledges
        self._last: Any = None
        self._channel = connection.channel()
        wire.keep_packed(self._channel)
        queue = kombu.Queue(
            name, kombu.Exchange(""), name, durable=True, auto_delete=False, expires=_EXPIRES
        )
        self._consumer = kombu.Consumer(
            self._channel, [queue], on_message=self._on_message, no_ack=not acknowledges
        )
        self._consumer.consume()

    def flush(self) -> None:
        """Acknowledge what was told."""
        last, self._last = self._last, None
        if last is not None:
            self._channel.basic_ack(last, multiple=True)

    def remove(self) -> None:
        """Nobody waits for results any more."""
        self._consumer.cancel()
        self._channel.queue_delete(self._name)

    def _on_message(self, message: Any) -> None:
        if self._acknowledges:
            self._last = message.delivery_tag
        found = wire.Wire.of(message)
        name = str(found.properties.get("correlation_id", ""))
        self._heard(name, read(found, self._accepted))


def read(found: wire.Wire, accepted: serializers.Accepted) -> Any:
    """The result in a message; a `Failure` where it cannot be read."""
    try:
        meta = accepted.load(found.unpacked(), found.content_type, found.content_encoding)
        if not isinstance(meta, dict) or not isinstance(meta.get("status"), str):
            raise exceptions.InvalidFormat(f"what came is no result of Celery's: {meta!r:.100}")
    except exceptions.InvalidFormat as error:
        LOG.warning("a result of Celery's cannot be read: %s", error)
        return ft.Failure.from_exception(error)
    return meta
