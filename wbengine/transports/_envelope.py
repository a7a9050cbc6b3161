"""How a message is laid out in bytes, and how it is read back without trusting it.

One line of JSON (the version of this layout, properties, headers, content type, routing, the size
of the body), a newline, then the body as it is: no base64, no second escaping of a body that is
JSON itself.  The size tells a torn message from a whole one.

Before a request that depends on a row of a ledger there may be a label: a line that names the row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, Protocol

from wbengine import _json_text, _names, exceptions

#: Messages of another layout are not read.
VERSION: Final = 1

#: Larger messages are neither published nor read.
LIMIT: Final = 64 * 1024 * 1024

#: What a label takes at most.
LABEL_LIMIT: Final = 1024

#: The headers of a request that name the row which whoever runs it has to claim.
_LEDGER: Final = "wbe-ledger"
_EPOCH: Final = "wbe-epoch"


class BadMessage(ValueError):
    """The bytes are not a message of ours; the text says why."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_reader = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_json_text.read_float)


class Channel(Protocol):
    """What took a message, as far as the message knows it."""

    def ack_many(self, messages: Iterable[Message]) -> bool: ...
    def reject(self, tag: int, requeue: bool) -> None: ...


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


def label(data: bytes, headers: Mapping[str, Any], id: Any) -> bytes:
    """`data`, and before it the row of a ledger on which it depends, if it does, by the headers and
    the correlation id: for a broker that can claim it while it takes the message."""
    digest, epoch = headers.get(_LEDGER), headers.get(_EPOCH, 1)
    if not isinstance(digest, str) or not _names.is_label(digest):
        return data
    if not isinstance(id, str) or not _names.is_label(id) or type(epoch) is not int:
        return data
    return b"!%b %d %b\n%b" % (id.encode(), epoch, digest.encode(), data)


def has_label(message: Message, text: bytes) -> bool:
    """Whether the label of a message is, or begins with, this one: labels are not signed, and may
    have been put before another message."""
    own = label(b"", message.headers, message.properties.get("correlation_id"))
    return text != b"" and own.startswith(text)


def split(data: bytes) -> tuple[bytes, bytes]:
    """The label, b"" where there is none, and what it was put before."""
    if data[:1] != b"!":
        return b"", data
    text, _, rest = data.partition(b"\n")
    return text, rest


def row_of(text: bytes, digest: str) -> tuple[str, int] | None:
    """(id, epoch), if a label names a row of this ledger."""
    try:
        id, epoch, ledger = text[1:].decode("ascii").split(" ")
        return (id, int(epoch)) if ledger == digest and _names.is_label(id) else None
    except ValueError:
        return None


def head_of(message: Sealed, exchange: str) -> bytes:
    """What stands before the body of a message.

    :raises TooLarge: it is larger than `LIMIT`.
    :raises ValueError, TypeError: headers are no JSON, or no JSON numbers.
    """
    headers, body = message.encoded_headers, message.encoded  # in this order
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
    start = _json_text.encode(head, finite=True)[:-1]
    lines = b'%b,"headers":%b,"size":%d}\n' % (start, headers, len(body))
    size = len(lines) + len(body)
    if size > LIMIT:
        raise exceptions.TooLarge(f"a message of {size} bytes is over the limit of {LIMIT} bytes")
    return lines


def seal(message: Sealed, exchange: str) -> bytes:
    """A message in one piece; raises what `head_of` does."""
    return head_of(message, exchange) + message.encoded


def _read(raw: bytes) -> Any:
    try:
        return _json_text.decode(raw)
    except (TypeError, ValueError):
        head = _reader.decode(raw.decode("utf-8"))
    if b"\\u" in raw:  # an escaped lone surrogate would break whoever prints or stores it
        _json_text.text_of(head).encode("utf-8")
    return head


def _parse(data: bytes, body: bytes) -> tuple[dict[str, Any], bytes]:
    cut = data.find(b"\n")
    if cut < 0:
        raise BadMessage("it has no head line")
    try:
        head = _read(data[:cut])
    except (ValueError, RecursionError) as exc:
        raise BadMessage(f"its head is not JSON in UTF-8 ({type(exc).__name__})") from None
    if not isinstance(head, dict):
        raise BadMessage(f"its head is {type(head).__name__}, not an object")
    body = body or data[cut + 1 :]
    size = head.get("size")
    if type(size) is not int or size != len(body):
        raise BadMessage(f"its body has {len(body)} bytes, its head says {size!r:.20}")
    return head, body


class Message:
    """A received message: what kombu calls so, as far as anybody here asks."""

    __slots__ = (
        "acknowledged", "body", "channel", "claim", "delivery_info", "delivery_tag", "headers",
        "origin", "properties", "taken",
    )  # fmt: skip

    #: What the ledger said of the request in it, where its broker asked; else None.
    claim: Any
    #: When the broker began to ask, on the monotonic clock; None where it did not.
    taken: float | None
    #: What its broker knows it by.
    origin: Any

    def __init__(
        self, data: bytes, channel: Channel | None, tag: int, again: bool, body: bytes = b""
    ) -> None:
        """Read a message; its `body`, where that came apart from its head.

        :raises BadMessage: it is none; nothing else is raised, whatever the bytes are.
        """
        head, self.body = _parse(data, body)
        if head.get("v") != VERSION:
            raise BadMessage(f"its layout is {head.get('v')!r:.20}, not {VERSION}")
        properties, headers = head.get("properties"), head.get("headers")
        if not isinstance(properties, dict) or not isinstance(headers, dict):
            raise BadMessage("its properties or headers are not objects")
        if headers.get("compression") or properties.get("compression"):
            raise BadMessage("it is compressed")
        exchange, key = head.get("exchange"), head.get("routing_key")
        if not isinstance(exchange, str) or not isinstance(key, str):
            raise BadMessage("its exchange or routing key is not text")
        self.properties, self.headers = properties, headers
        self.delivery_info = {"exchange": exchange, "routing_key": key, "redelivered": again}
        #: What took it.
        self.channel, self.delivery_tag = channel, tag
        self.acknowledged = False

    def ack(self) -> bool:
        """Acknowledge it, from any thread; False when it was not ours (any more)."""
        return self.channel is not None and self.channel.ack_many((self,))

    def reject(self, requeue: bool = False) -> None:
        """Throw it away; or give it back to its queue, in its old place."""
        self.acknowledged = True
        if self.channel is not None:
            self.channel.reject(self.delivery_tag, requeue)

    def requeue(self) -> None:
        self.reject(requeue=True)
