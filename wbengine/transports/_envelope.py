"""How a message is laid out in bytes, and how it is read back without trusting it.

One line of JSON (properties, headers, content type, routing, the size of the body), a newline,
then the body as it is: no base64, no second escaping of a body that is JSON itself.  The size
tells a torn message from a whole one.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from kombu.transport import base

from wbengine import _names, exceptions

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


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def priority_of(message: dict[str, Any]) -> int:
    """The priority of a prepared message, 0 to 9; nonsense counts as 0."""
    try:
        return max(0, min(9, int(message["properties"].get("priority") or 0)))
    except (TypeError, ValueError, KeyError):
        return 0


def row_of(message: dict[str, Any]) -> tuple[str, int, str] | None:
    """The row of a ledger that a prepared message depends on: id, epoch, digest; None: on none."""
    headers = message["headers"]
    digest = headers.get(_LEDGER) if headers else None
    if not isinstance(digest, str) or not _names.is_label(digest):
        return None
    id, epoch = message["properties"].get("correlation_id"), headers.get(_EPOCH, 1)
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
    head = _encode(
        {
            "exchange": exchange,
            "routing_key": routing_key,
            "content-type": message.get("content-type"),
            "content-encoding": message.get("content-encoding"),
            "properties": properties,
            "headers": headers or _EMPTY,
            "size": len(body),
        }
    ).encode()
    if len(head) + len(body) + 1 > LIMIT:
        raise exceptions.TooLarge(
            f"a message of {len(head) + len(body) + 1} bytes is over the limit of {LIMIT} bytes"
        )
    return b"%b\n%b" % (head, body)


#: What of a head is text; of the last two there may be none.
_TEXTS: Final = ("exchange", "routing_key", "content-type", "content-encoding")


def _check_texts(head: dict[str, Any]) -> None:
    for key in _TEXTS:
        value = head.get(key)
        if not isinstance(value, str) and (value is not None or key in _TEXTS[:2]):
            raise BadMessage(f"{key} is {type(value).__name__}, not text")


def _parse(data: bytes) -> tuple[dict[str, Any], bytes]:
    cut = data.find(b"\n")
    if cut < 0:
        raise BadMessage("it has no head line")
    raw = data[:cut]
    try:
        head = _decode(raw.decode("utf-8"))
        if b"\\u" in raw:  # an escaped lone surrogate would break whoever prints or stores it
            _encode(head).encode("utf-8")
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
        properties, headers = head.get("properties"), head.get("headers")
        if not isinstance(properties, dict) or not isinstance(headers, dict):
            raise BadMessage("its properties or headers are not objects")
        if headers.get("compression") or properties.get("compression"):
            raise BadMessage("it is compressed")
        _check_texts(head)
        info = properties["delivery_info"] = {
            "exchange": head["exchange"],
            "routing_key": head["routing_key"],
            "redelivered": again,
            "consumer_tag": consumer,
        }
        properties["delivery_tag"] = tag
        return cls(
            body=body,
            channel=channel,
            delivery_tag=tag,
            content_type=head.get("content-type"),
            content_encoding=head.get("content-encoding"),
            headers=headers,
            properties=properties,
            delivery_info=info,
        )
