"""A message that RabbitMQ delivered, read straight from what came."""

from __future__ import annotations

import struct
from typing import Any, Final, Protocol

from amqp import serialization

from wbengine.transports import _amqp_frames as frames

__all__ = ["Delivery", "Channel", "read"]

_BEGIN: Final = struct.Struct(">BHI")
_METHOD: Final = struct.Struct(">I")
_TAG: Final = struct.Struct(">QB")
_HEADER: Final = struct.Struct(">HHQH")
_SIZE: Final = struct.Struct(">I")
_INTEGER: Final = struct.Struct(">i")
_DOUBLE: Final = struct.Struct(">d")

#: What of a header is read here; what says more is left to py-amqp.
_KNOWN: Final = 0xFEA0 | frames.MESSAGE_ID

#: The names of headers, and how often a new one is remembered.
_names: dict[bytes, str] = {}
_MOST_NAMES: Final = 512


class Channel(Protocol):
    """The channel that a message came on, as far as the message knows it."""

    raw: Any

    def ack(self, delivery: Delivery) -> None: ...
    def reject(self, delivery: Delivery, requeue: bool) -> None: ...


class Delivery:
    """What kombu calls a message, as far as anybody here asks; its body is as it came."""

    __slots__ = (
        "acknowledged",
        "amqp_channel",
        "body",
        "channel",
        "compressed",
        "consumer_tag",
        "delivery_tag",
        "exchange",
        "headers",
        "properties",
        "redelivered",
        "routing_key",
    )

    def __init__(
        self,
        amqp_channel: Channel,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        properties: dict[str, Any],
        body: bytes,
    ) -> None:
        self.amqp_channel = amqp_channel
        self.channel = amqp_channel.raw
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        headers = properties.get("application_headers") or {}
        #: Whether it says that somebody has to expand it.
        self.compressed = "compression" in headers
        if self.compressed:
            headers = {key: value for key, value in headers.items() if key != "compression"}
        self.headers: dict[str, Any] = headers
        self.body = body
        self.acknowledged = False

    @classmethod
    def of(cls, raw: Any, amqp_channel: Channel) -> Delivery:
        """What py-amqp has read."""
        info = raw.delivery_info
        return cls(
            amqp_channel,
            info.get("consumer_tag", ""),
            info["delivery_tag"],
            bool(info.get("redelivered")),
            info.get("exchange", ""),
            info.get("routing_key", ""),
            raw.properties,
            raw.body,
        )

    @property
    def delivery_info(self) -> dict[str, Any]:
        return {
            "consumer_tag": self.consumer_tag,
            "delivery_tag": self.delivery_tag,
            "redelivered": self.redelivered,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
        }

    def ack(self) -> None:
        self.amqp_channel.ack(self)

    def reject(self, requeue: bool = False) -> None:
        self.amqp_channel.reject(self, requeue)

    def requeue(self) -> None:
        self.amqp_channel.reject(self, True)


def read(data: bytes, at: int, amqp_channel: Channel) -> tuple[Delivery, int] | None:
    """The message whose first frame, which is all there, begins `at`, and where it ends.

    None: it is not all there yet, or it says what only py-amqp reads.
    """
    try:
        return _read(data, at, amqp_channel)
    except (struct.error, IndexError, ValueError):
        return None


def _read(data: bytes, at: int, amqp_channel: Channel) -> tuple[Delivery, int] | None:
    end = at + 7 + _SIZE.unpack_from(data, at + 3)[0]
    at += 11
    consumer, at = _text(data, at)
    tag, again = _TAG.unpack_from(data, at)
    exchange, at = _text(data, at + 9)
    key, at = _text(data, at)
    at = end + 1
    kind, _, size = _BEGIN.unpack_from(data, at)
    end = at + 7 + size
    if kind != frames.HEADER or data[end] != frames.END:
        return None
    _, _, length, flags = _HEADER.unpack_from(data, at + 7)
    if flags & ~_KNOWN or at + 21 > end:
        return None
    found = _properties(data, at + 21, flags)
    body, at = b"", end + 1
    if length:
        kind, _, size = _BEGIN.unpack_from(data, at)
        end = at + 7 + size
        if kind != frames.BODY or size != length or data[end] != frames.END:
            return None
        body, at = data[at + 7 : end], end + 1
    return Delivery(amqp_channel, consumer, tag, bool(again & 1), exchange, key, found, body), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    # Anybody may send what is no text: whoever looks at it does not know it, and refuses it.
    return data[at + 1 : end].decode("utf-8", "replace"), end


def _properties(data: bytes, at: int, flags: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if flags & frames.CONTENT_TYPE:
        found["content_type"], at = _text(data, at)
    if flags & frames.CONTENT_ENCODING:
        found["content_encoding"], at = _text(data, at)
    if flags & frames.HEADERS:
        found["application_headers"], at = _table(data, at)
    if flags & frames.DELIVERY_MODE:
        found["delivery_mode"] = data[at]
        at += 1
    if flags & frames.PRIORITY:
        found["priority"] = data[at]
        at += 1
    for flag, name in _TEXTS:
        if flags & flag:
            found[name], at = _text(data, at)
    return found


_TEXTS: Final = (
    (frames.CORRELATION_ID, "correlation_id"),
    (frames.REPLY_TO, "reply_to"),
    (frames.MESSAGE_ID, "message_id"),
    (frames.TYPE, "type"),
)


def _table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    begin = at
    end = at + 4 + _SIZE.unpack_from(data, at)[0]
    at += 4
    found: dict[str, Any] = {}
    while at < end:
        raw = data[at + 1 : at + 1 + data[at]]
        at += len(raw) + 2
        kind = data[at - 1]
        value: Any
        if kind == 83:  # S
            size = _SIZE.unpack_from(data, at)[0]
            at += 4 + size
            value = data[at - size : at].decode()
        elif kind == 73:  # I
            value = _INTEGER.unpack_from(data, at)[0]
            at += 4
        elif kind == 100:  # d
            value = _DOUBLE.unpack_from(data, at)[0]
            at += 8
        else:
            ((found,), at) = serialization.loads("F", data, begin)
            return found, at
        found[_names.get(raw) or _name(raw)] = value
    return found, at


def _name(raw: bytes) -> str:
    found = raw.decode()
    if len(_names) >= _MOST_NAMES:
        _names.clear()
    _names[raw] = found
    return found
