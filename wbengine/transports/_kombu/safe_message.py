"""Channels of kombu's transports that neither decompress nor decode messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import kombu
from kombu.transport import base


class Message(base.Message):  # type: ignore[misc]
    """Message with an unchanged body.

    kombu decompresses a body before the receiver can reject it: 200 bytes can become 300 MB.
    """

    body: Any
    #: Whether the headers name a compression.
    compressed: bool

    def __init__(self, *args: Any, headers: Any = None, **kwargs: Any) -> None:
        own_headers = headers if isinstance(headers, dict) else {}
        plain = {key: value for key, value in own_headers.items() if key != "compression"}
        super().__init__(*args, headers=plain, **kwargs)
        self.compressed = len(plain) < len(own_headers)
        # kombu would raise an error of the body without settling the message, so that the broker
        # delivers it again, endlessly.
        self.errors: list[object] = []
        if not isinstance(self.body, bytes | str):
            self.body = b""


def _decode(decode: Callable[..., Any], body: Any, encoding: Any = None) -> Any:
    """Decode a body with the method of a channel. If it is invalid, return an empty one."""
    try:
        return decode(body, encoding)
    except Exception:
        return b""


@functools.cache
def _of(kind: type) -> type:
    return type("Message", (kind, Message), {})


def channel_of(connection: kombu.Connection) -> Any:
    """Return a new channel of a connection whose messages are not decoded."""
    channel = connection.channel()
    kind = getattr(channel, "Message", None)
    if isinstance(kind, type) and issubclass(kind, base.Message):
        channel.Message = _of(kind)
    if decode := getattr(channel, "decode_body", None):
        channel.decode_body = functools.partial(_decode, decode)
    if hasattr(channel, "auto_decode"):  # py-amqp would use any codec that a message names.
        channel.auto_decode = False
    return channel
