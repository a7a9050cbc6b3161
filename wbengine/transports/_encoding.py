"""Encoding of messages, and decoding of untrusted bytes.

A message is one line of JSON (its format, properties, headers, content type, routing, size of
the body), a newline, and the unchanged body. The size detects truncated messages. If a request has
a row in a ledger, a label precedes the message: a line that names the row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NoReturn, Protocol

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine._text import data_formats, json_text

#: Maximum size of a message in bytes, for publishing and reading.
LIMIT: Final = 64 * 1024 * 1024

#: Headers of a request that identify its row in a ledger.
_LEDGER: Final = "wbe-ledger"
_EPOCH: Final = "wbe-epoch"


class InvalidMessageError(ValueError):
    """The bytes are not a valid message; the text contains the reason."""


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_reader = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=json_text.read_float)


class Sealed(Protocol):
    """Message with encoded parts: the body and the headers are JSON in UTF-8."""

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
    """Return `data`, preceded by a label if the headers name a row of a ledger.

    With the label, a broker can claim the row when it delivers the message.

    :param id: correlation id of the message.
    """
    digest, epoch = headers.get(_LEDGER), headers.get(_EPOCH, 1)
    if not isinstance(digest, str) or not object_names.is_label(digest):
        return data
    if not isinstance(id, str) or not object_names.is_label(id) or type(epoch) is not int:
        return data
    return b"!%b %d %b\n%b" % (id.encode(), epoch, digest.encode(), data)


def has_label(headers: Mapping[str, Any], id: Any, text: bytes) -> bool:
    """Return True if the label of a message is, or begins with, `text`.

    Labels are not signed: a peer may have copied one from another message.
    """
    return text != b"" and label(b"", headers, id).startswith(text)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Return the label (b"" if there is none) and the rest."""
    if data[:1] != b"!":
        return b"", data
    text, _, rest = data.partition(b"\n")
    return text, rest


def row_of(text: bytes, digest: str) -> tuple[str, int] | None:
    """Return (id, epoch) if a label names a row of this ledger, else None."""
    try:
        id, epoch, ledger = text[1:].decode("ascii").split(" ")
        return (id, int(epoch)) if ledger == digest and object_names.is_label(id) else None
    except ValueError:
        return None


def head_of(message: Sealed, exchange: str) -> bytes:
    """Encode the line before the body of a message.

    :raises TooLarge: if the message is larger than `LIMIT`.
    :raises ValueError, TypeError: if headers are not JSON, or contain NaN or infinity.
    """
    # Read the headers first, because that may encrypt the body.
    headers, body = message.encoded_headers, message.encoded
    properties = {
        "type": message.type,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "delivery_mode": 2,
        "priority": message.priority,
    }
    head = {
        "v": data_formats.MESSAGE.written,
        "exchange": exchange,
        "routing_key": message.routing_key,
        "properties": properties,
    }
    start = json_text.encode(head, finite=True)[:-1]
    lines = b'%b,"headers":%b,"size":%d}\n' % (start, headers, len(body))
    size = len(lines) + len(body)
    if size > LIMIT:
        raise exceptions.TooLarge(f"a message must have at most {LIMIT} bytes, got {size}")
    return lines


def seal(message: Sealed, exchange: str) -> bytes:
    """Encode a message in one piece.

    :raises TooLarge, ValueError, TypeError: see `head_of`.
    """
    return head_of(message, exchange) + message.encoded


def read_json(raw: bytes) -> Any:
    """Read JSON text without NaN, infinities and lone surrogates.

    :raises ValueError, RecursionError: if it is something else.
    """
    try:
        return json_text.decode(raw)
    except (TypeError, ValueError):
        head = _reader.decode(raw.decode("utf-8"))
    if b"\\u" in raw:  # An escaped lone surrogate cannot be printed or stored.
        json_text.text_of(head).encode("utf-8")
    return head


def decode(data: bytes, body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """Decode a message.

    :param body: the body, if it was received separately.
    :returns: the head, with `exchange`, `routing_key`, `properties` and `headers`, and the body.
    :raises InvalidMessageError: if it is not a valid message. No other exception is raised.
    """
    cut = data.find(b"\n")
    if cut < 0:
        raise InvalidMessageError("it has no head line")
    try:
        head = read_json(data[:cut])
    except (ValueError, RecursionError) as exc:
        raise InvalidMessageError(f"its head is not JSON in UTF-8 ({type(exc).__name__})") from None
    if not isinstance(head, dict):
        raise InvalidMessageError(f"its head must be an object, got {type(head).__name__}")
    body = body or data[cut + 1 :]
    size = head.get("size")
    if type(size) is not int or size != len(body):
        raise InvalidMessageError(
            f"its body must have {size!r:.20} bytes, as in its head, got {len(body)}"
        )
    problem = data_formats.MESSAGE.problem("it", head.get("v"))
    if problem is not None:
        raise InvalidMessageError(problem)
    properties, headers = head.get("properties"), head.get("headers")
    if not isinstance(properties, dict) or not isinstance(headers, dict):
        raise InvalidMessageError("its properties and headers must be objects")
    if headers.get("compression") or properties.get("compression"):
        raise InvalidMessageError("it is compressed")
    exchange, key = head.get("exchange"), head.get("routing_key")
    if not isinstance(exchange, str) or not isinstance(key, str):
        raise InvalidMessageError("its exchange and routing key must be text")
    return head, body
