"""How a message is laid out in bytes, and how it is read back without trusting it.

One line of JSON (the version of this layout, properties, headers, content type, routing, the size
of the body), a newline, then the body as it is: no base64, no second escaping of a body that is
JSON itself.  The size tells a torn message from a whole one.  Of what is JSON in UTF-8 the content
type is not written.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn, Protocol

from kombu.transport import base

from wbengine import _json_text, _names, exceptions

#: Messages of another layout are not read.
VERSION: Final = 1

#: Larger messages are neither published nor read.
LIMIT: Final = 64 * 1024 * 1024

_EMPTY: Final[dict[str, Any]] = {}

#: The headers of a request that name the row which whoever runs it has to claim.
_LEDGER: Final = "wbe-ledger"
_EPOCH: Final = "wbe-epoch"


class BadMessage(Exception):
    """The bytes are not a message of ours; the text says why."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_reader = json.JSONDecoder(parse_constant=_refuse_constant)

_TYPE: Final = "application/json"
_ENCODING: Final = "utf-8"


class Sealed(Protocol):
    """A message whose parts are encoded: body and headers in JSON in UTF-8."""

    type: str
    routing_key: str
    correlation_id: str | None
    reply_to: str | None
    headers: dict[str, Any]
    priority: int

    @property
    def encoded(self) -> bytes: ...

    @property
    def encoded_headers(self) -> bytes: ...


def priority_of(message: dict[str, Any]) -> int:
    """The priority of a prepared message, 0 to 9; nonsense counts as 0."""
    try:
        return max(0, min(9, int(message["properties"].get("priority") or 0)))
    except (TypeError, ValueError, KeyError):
        return 0


def row_of(headers: dict[str, Any] | None, id: Any) -> tuple[str, int, str] | None:
    """The row of a ledger that a message depends on, by its headers and its correlation id: id,
    epoch, digest; None: on none."""
    digest = headers.get(_LEDGER) if headers else None
    if headers is None or not isinstance(digest, str) or not _names.is_label(digest):
        return None
    epoch = headers.get(_EPOCH, 1)
    if not isinstance(id, str) or not _names.is_label(id) or type(epoch) is not int:
        return None
    return id, epoch, digest


def encode(message: dict[str, Any], exchange: str, routing_key: str) -> bytes:
    """Lay out what `Channel.prepare_message` made.

    :raises TooLarge: it is larger than `LIMIT`.
    :raises ValueError: the body is compressed, or headers are no JSON numbers.
    :raises TypeError: headers are no JSON at all.
    """
    headers = message["headers"]
    if headers and headers.get("compression"):
        raise ValueError("compressed messages are not carried: publish without `compression`")
    body = message["body"]
    if isinstance(body, str):
        body = body.encode()
    elif body is None:
        body = b""
    elif not isinstance(body, bytes):
        body = bytes(memoryview(body))
    properties = {k: v for k, v in message["properties"].items() if k != "delivery_info"}
    head: dict[str, Any] = {"v": VERSION, "exchange": exchange, "routing_key": routing_key}
    kind, coding = message.get("content-type"), message.get("content-encoding")
    if (kind, coding) != (_TYPE, _ENCODING):
        head |= {"content-type": kind, "content-encoding": coding}
    head |= {"properties": properties, "headers": headers or _EMPTY, "size": len(body)}
    return _joined(_json_text.text_of(head).encode(), body)


def seal(message: Sealed, exchange: str) -> bytes:
    """`encode`, of what is encoded in parts.

    :raises TooLarge: it is larger than `LIMIT`.
    :raises ValueError, TypeError: headers are no JSON, or no JSON numbers.
    """
    body = message.encoded
    properties = {
        "type": message.type,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "delivery_mode": 2,
        "priority": message.priority,
    }
    head = {
        "v": VERSION,
        "exchange": exchange,
        "routing_key": message.routing_key,
        "properties": properties,
    }
    start, headers = _json_text.encode(head, finite=True)[:-1], message.encoded_headers
    return _joined(b'%b,"headers":%b,"size":%d}' % (start, headers, len(body)), body)


def _joined(head: bytes, body: bytes) -> bytes:
    size = len(head) + len(body) + 1
    if size > LIMIT:
        raise exceptions.TooLarge(f"a message of {size} bytes is over the limit of {LIMIT} bytes")
    return b"%b\n%b" % (head, body)


def _text(head: dict[str, Any], key: str, default: str | None = None) -> Any:
    """What of a head is text, or as the default says may be left out, or be none."""
    value = head.get(key, default)
    if type(value) is not str and (value is not None or default is None):
        raise BadMessage(f"{key} is {type(value).__name__}, not text")
    return value


def _read(raw: bytes) -> Any:
    try:
        return _json_text.decode(raw)
    except (TypeError, ValueError):
        head = _reader.decode(raw.decode("utf-8"))
    if b"\\u" in raw:  # an escaped lone surrogate would break whoever prints or stores it
        _json_text.text_of(head).encode("utf-8")
    return head


def _parse(data: bytes) -> tuple[dict[str, Any], bytes]:
    cut = data.find(b"\n")
    if cut < 0:
        raise BadMessage("it has no head line")
    try:
        head = _read(data[:cut])
    except (ValueError, RecursionError) as exc:
        raise BadMessage(f"its head is not JSON in UTF-8 ({type(exc).__name__})") from None
    if not isinstance(head, dict):
        raise BadMessage(f"its head is {type(head).__name__}, not an object")
    body = data[cut + 1 :]
    size = head.get("size")
    if type(size) is not int or size != len(body):
        raise BadMessage(f"its body has {len(body)} bytes, its head says {size!r:.20}")
    return head, body


class Message(base.Message):  # type: ignore[misc]
    """A received message; as any kombu message, made straight from the bytes."""

    __slots__ = ("claim", "origin", "taken")

    #: What kombu found wrong with it: nothing.
    errors = ()

    #: What the ledger said of the request in it, where the transport asked; else None.
    claim: Any
    #: When the transport began to ask, on the monotonic clock; None where it did not.
    taken: float | None
    #: What its store knows it by.
    origin: Any

    @classmethod
    def from_bytes(cls, data: bytes, channel: Any, tag: int, consumer: str, again: bool) -> Message:
        """Read a message.

        :raises BadMessage: it is none; nothing else is raised, whatever the bytes are.
        """
        head, body = _parse(data)
        if head.get("v") != VERSION:
            raise BadMessage(f"its layout is {head.get('v')!r:.20}, not {VERSION}")
        properties, headers = head.get("properties"), head.get("headers")
        if not isinstance(properties, dict) or not isinstance(headers, dict):
            raise BadMessage("its properties or headers are not objects")
        if headers.get("compression") or properties.get("compression"):
            raise BadMessage("it is compressed")
        message = cls.__new__(cls)
        message.content_type = _text(head, "content-type", _TYPE)
        message.content_encoding = _text(head, "content-encoding", _ENCODING)
        properties["delivery_info"] = message.delivery_info = {
            "exchange": _text(head, "exchange"),
            "routing_key": _text(head, "routing_key"),
            "redelivered": again,
            "consumer_tag": consumer,
        }
        properties["delivery_tag"] = message.delivery_tag = tag
        message.channel, message.headers, message.properties = channel, headers, properties
        message.body, message._state = body, "RECEIVED"
        message.accept = message._decoded_cache = None
        return message
