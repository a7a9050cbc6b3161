"""Encoding and decoding of the most frequent AMQP frames: messages and acknowledgements.

py-amqp supports the whole protocol, but is five times slower. It also encodes frames in a buffer
that a connection shares. The frames of this module are separate bytes, which any thread may send.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Protocol

from amqp import Message, serialization

from wbengine import exceptions
from wbengine._text import json_text
from wbengine.transports import _encoding

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

#: Last byte of a frame.
END: Final = 0xCE

#: AMQP class id and method id in one number.
PUBLISH: Final = 60 << 16 | 40
DELIVER: Final = 60 << 16 | 60
ACK: Final = 60 << 16 | 80

BASIC: Final = 60

#: Start of a frame: type, channel, size of the rest.
_BEGIN: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">BHIHHQ")
_ACK: Final = struct.Struct(">BHIIQBB")

#: Flags for the properties in a header, in the order of their encoding.
CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
MESSAGE_ID: Final = 0x0080
TYPE: Final = 0x0020

_TEXT: Final = struct.Struct(">cI")
_INTEGER: Final = struct.Struct(">ci")
_DOUBLE: Final = struct.Struct(">cd")
_MAX_INTEGER: Final = 2**31 - 1

#: Prefix of the headers of wbengine. `pack` combines them in one header `wbe` with a JSON object,
#: because the broker and both peers spend time on each header.
_OWN_PREFIX: Final = "wbe-"
PACKED: Final = "wbe"

_MAX_CACHED_NAMES: Final = 512

_names: dict[str, bytes] = {}

_TAG: Final = struct.Struct(">QB")
_CONTENT: Final = struct.Struct(">HHQH")
_SIZE: Final = struct.Struct(">I")
_INTEGER_AT: Final = struct.Struct(">i")
_DOUBLE_AT: Final = struct.Struct(">d")

#: py-amqp must decode headers with other properties.
_DECODED_PROPERTIES: Final = 0xFEA0 | MESSAGE_ID

_read_names: dict[bytes, str] = {}

_TEXTS: Final = (
    (CORRELATION_ID, "correlation_id"),
    (REPLY_TO, "reply_to"),
    (MESSAGE_ID, "message_id"),
    (TYPE, "type"),
)


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return bytes((len(data),)) + data


def _name(text: str) -> bytes:
    encoded = _names.get(text)
    if encoded is None:
        if len(_names) >= _MAX_CACHED_NAMES:
            _names.clear()
        encoded = _names[text] = _short(text)
    return encoded


def table(values: Mapping[str, Any]) -> bytes:
    """Encode a table as py-amqp does.

    :raises Exception: if a value cannot be encoded.
    """
    parts: list[bytes] = []
    for key, value in values.items():
        kind = type(value)
        if kind is str:
            data = value.encode("utf-8", "surrogatepass")
            parts += (_name(key), _TEXT.pack(b"S", len(data)), data)
        elif kind is int and -_MAX_INTEGER <= value <= _MAX_INTEGER:
            parts += (_name(key), _INTEGER.pack(b"I", value))
        elif kind is float:
            parts += (_name(key), _DOUBLE.pack(b"d", value))
        else:
            encoded: bytes = serialization.dumps("F", [values])
            return encoded
    data = b"".join(parts)
    return len(data).to_bytes(4, "big") + data


def pack(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return headers with those of wbengine in one header.

    :raises ValueError, TypeError: if one of these is not JSON.
    """
    own = {name: value for name, value in headers.items() if name.startswith(_OWN_PREFIX)}
    if not own:
        return headers
    packed = {name: value for name, value in headers.items() if name not in own}
    packed[PACKED] = json_text.encode(own).decode()
    return packed


def unpack(headers: dict[str, Any]) -> dict[str, Any]:
    """Return headers with the content of the header `wbe` as separate headers.

    Packed headers replace separate ones. An invalid value, and names without the prefix, are
    dropped.

    :param headers: must contain `wbe`.
    """
    unpacked = dict(headers)
    try:
        own = _encoding.read_json(unpacked.pop(PACKED).encode())
        unpacked.update((name, own[name]) for name in own if name.startswith(_OWN_PREFIX))
    except (AttributeError, TypeError, ValueError, RecursionError):
        pass
    return unpacked


def properties(
    kind: str,
    headers: Mapping[str, Any],
    mode: int,
    priority: int,
    correlation_id: str | None,
    reply_to: str | None,
    message_id: str | None,
) -> bytes:
    """Encode the header of a JSON message, without the size of its body.

    :raises Exception: if a value cannot be encoded.
    """
    flags = CONTENT_TYPE | CONTENT_ENCODING | HEADERS | DELIVERY_MODE | PRIORITY | TYPE
    parts = [_JSON, table(pack(headers)), bytes((mode, priority))]
    if correlation_id is not None:
        flags |= CORRELATION_ID
        parts.append(_short(correlation_id))
    if reply_to is not None:
        flags |= REPLY_TO
        parts.append(_name(reply_to))
    if message_id is not None:
        flags |= MESSAGE_ID
        parts.append(_short(message_id))
    return b"%b%b%b" % (flags.to_bytes(2, "big"), b"".join(parts), _name(kind))


_JSON: Final = _short("application/json") + _short("utf-8")


class Frames:
    """Encoder of frames for one channel and one exchange. Thread-safe."""

    __slots__ = ("_exchange", "_max_body_bytes", "_number", "_routes")

    def __init__(self, number: int, exchange: str, frame_max: int) -> None:
        self._number = number
        self._exchange = _short(exchange)
        self._max_body_bytes = frame_max - 8
        self._routes: dict[tuple[str, bool], bytes] = {}

    def publish(self, key: str, mandatory: bool, head: bytes, body: bytes) -> bytes:
        """Encode a message.

        :param head: the result of `properties`.
        :raises TooLarge: if the header is larger than a frame. The broker would close the
            connection.
        :raises Exception: if the routing key cannot be encoded.
        """
        head_size = len(head) + 12
        if head_size > self._max_body_bytes:
            raise exceptions.TooLarge(
                f"the headers of a message must have at most {self._max_body_bytes} bytes, got"
                f" {head_size}"
            )
        route = self._routes.get((key, mandatory)) or self._route(key, mandatory)
        size, number = len(body), self._number
        first = _HEADER.pack(HEADER, number, head_size, BASIC, 0, size)
        if 0 < size <= self._max_body_bytes:
            begin = _BEGIN.pack(BODY, number, size)
            return b"%b%b%b\xce%b%b\xce" % (route, first, head, begin, body)
        parts = [b"%b%b%b\xce" % (route, first, head)]
        for at in range(0, size, self._max_body_bytes):
            piece = body[at : at + self._max_body_bytes]
            parts.append(b"%b%b\xce" % (_BEGIN.pack(BODY, number, len(piece)), piece))
        return b"".join(parts)

    def _route(self, key: str, mandatory: bool) -> bytes:
        arguments = b"%b\0\0%b%b%b" % (
            PUBLISH.to_bytes(4, "big"),
            self._exchange,
            _short(key),
            bytes((mandatory,)),
        )
        if len(self._routes) >= _MAX_CACHED_NAMES:
            self._routes.clear()
        frame = b"%b%b\xce" % (_BEGIN.pack(METHOD, self._number, len(arguments)), arguments)
        self._routes[key, mandatory] = frame
        return frame

    def ack(self, tag: int, multiple: bool = False) -> bytes:
        """Encode the acknowledgement of a delivery, with `multiple` also of all before it."""
        return _ACK.pack(METHOD, self._number, 13, ACK, tag, multiple, END)


class Channel(Protocol):
    """The methods that a message calls on its channel."""

    def ack(self, delivery: Delivery) -> None: ...
    def reject(self, delivery: Delivery, requeue: bool) -> None: ...


class Delivery:
    """Received message in encoded form, with those attributes of a kombu message that are used."""

    __slots__ = (
        "acknowledged",
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
        channel: Any,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        properties: dict[str, Any],
        body: bytes,
    ) -> None:
        self.channel = channel
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        headers = properties.get("application_headers") or {}
        if PACKED in headers:
            headers = unpack(headers)
        #: Whether the headers name a compression.
        self.compressed = "compression" in headers
        if self.compressed:
            headers = {key: value for key, value in headers.items() if key != "compression"}
        self.headers: dict[str, Any] = headers
        self.body = body
        self.acknowledged = False

    @classmethod
    def of(cls, raw: Any, channel: Channel) -> Delivery:
        """Convert a message that py-amqp has read."""
        info = raw.delivery_info
        return cls(
            channel,
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
        self.channel.ack(self)

    def reject(self, requeue: bool = False) -> None:
        self.channel.reject(self, requeue)

    def requeue(self) -> None:
        self.channel.reject(self, True)


def read(data: bytes, at: int, channel: Channel) -> tuple[Delivery, int] | None:
    """Decode the message whose first frame begins at offset `at` and is complete.

    :returns: the message and the offset after it; None if the message is incomplete, or if
        py-amqp must decode it.
    """
    try:
        return _read(data, at, channel)
    except Exception:  # For example an IndexError, or an OverflowError of a time stamp.
        return None


def decodable(header: bytes) -> bytes:
    """Return the content of a header frame, without properties that py-amqp cannot decode.

    py-amqp would drop the connection, and receive the same message again, endlessly. Its own method
    needs at least the stack here that it needs later: the depth of nested headers is limited.
    """
    try:
        Message().inbound_header(header)
    except Exception:
        return header[:12] + b"\0\0"
    return header


def _read(data: bytes, at: int, channel: Channel) -> tuple[Delivery, int] | None:
    end = at + 7 + _SIZE.unpack_from(data, at + 3)[0]
    at += 11
    consumer, at = _text(data, at)
    tag, redelivered = _TAG.unpack_from(data, at)
    exchange, at = _text(data, at + 9)
    key, at = _text(data, at)
    at = end + 1
    kind, _, size = _BEGIN.unpack_from(data, at)
    end = at + 7 + size
    if kind != HEADER or data[end] != END:
        return None
    _, _, length, flags = _CONTENT.unpack_from(data, at + 7)
    if flags & ~_DECODED_PROPERTIES or at + 21 > end:
        return None
    message_properties = _properties(data, at + 21, flags)
    body, at = b"", end + 1
    if length:
        kind, _, size = _BEGIN.unpack_from(data, at)
        end = at + 7 + size
        if kind != BODY or size != length or data[end] != END:
            return None
        body, at = data[at + 7 : end], end + 1
    return Delivery(
        channel, consumer, tag, bool(redelivered & 1), exchange, key, message_properties, body
    ), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    # A peer may send bytes that are not UTF-8. The name is then unknown, and rejected later.
    return data[at + 1 : end].decode("utf-8", "replace"), end


def _properties(data: bytes, at: int, flags: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if flags & CONTENT_TYPE:
        values["content_type"], at = _text(data, at)
    if flags & CONTENT_ENCODING:
        values["content_encoding"], at = _text(data, at)
    if flags & HEADERS:
        values["application_headers"], at = _table(data, at)
    if flags & DELIVERY_MODE:
        values["delivery_mode"] = data[at]
        at += 1
    if flags & PRIORITY:
        values["priority"] = data[at]
        at += 1
    for flag, name in _TEXTS:
        if flags & flag:
            values[name], at = _text(data, at)
    return values


def _table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    begin = at
    end = at + 4 + _SIZE.unpack_from(data, at)[0]
    at += 4
    values: dict[str, Any] = {}
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
            value = _INTEGER_AT.unpack_from(data, at)[0]
            at += 4
        elif kind == 100:  # d
            value = _DOUBLE_AT.unpack_from(data, at)[0]
            at += 8
        else:
            ((values,), at) = serialization.loads("F", data, begin)
            return values, at
        values[_read_names.get(raw) or _read_name(raw)] = value
    return values, at


def _read_name(raw: bytes) -> str:
    name = raw.decode()
    if len(_read_names) >= _MAX_CACHED_NAMES:
        _read_names.clear()
    _read_names[raw] = name
    return name
