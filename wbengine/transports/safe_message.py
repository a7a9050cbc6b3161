"""Channels of kombu's own transports that expand and decode nothing by themselves."""

from __future__ import annotations

import functools
from typing import Any

import kombu
from kombu.transport import base


class Message(base.Message):  # type: ignore[misc]
    """A message whose body is what came: kombu's own expands one that says it is compressed before
    anybody can refuse it, 200 bytes to 300 MB.
    """

    #: Whether it says so.
    compressed: bool

    def __init__(self, *args: Any, headers: Any = None, **kwargs: Any) -> None:
        given = headers if isinstance(headers, dict) else {}
        plain = {key: value for key, value in given.items() if key != "compression"}
        super().__init__(*args, headers=plain, **kwargs)
        self.compressed = len(plain) < len(given)


@functools.cache
def _of(kind: type) -> type:
    return type("Message", (kind, Message), {})


def channel_of(connection: kombu.Connection) -> Any:
    """A new channel of a connection, whose messages are taken as they are."""
    channel = connection.channel()
    kind = getattr(channel, "Message", None)
    if isinstance(kind, type) and issubclass(kind, base.Message):
        channel.Message = _of(kind)
    if hasattr(channel, "auto_decode"):  # py-amqp: by whatever codec a message names
        channel.auto_decode = False
    return channel
