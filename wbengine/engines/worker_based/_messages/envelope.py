"""Messages without I/O: body, address and headers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from wbengine import exceptions as exc
from wbengine._text import data_formats, json_text
from wbengine.engines.worker_based import _message_schemas
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import kombu_json
from wbengine.transports import _encoding
from wbengine.types import codec

#: Maximum depth of a body. User values begin a few levels below its top.
_BODY_DEPTH: Final = codec.MAX_DEPTH + 8

_EMPTY: Final[Mapping[str, Any]] = {}

#: Encoder for TaskFlow's peers. Like Python, it encodes NaN and infinities.
_encode: Final = json_text.writer(allow_nan=True)

#: Maximum size of an encoded body in bytes. Larger messages are not published.
MAX_MESSAGE_SIZE: Final = 16 * 1024 * 1024

#: Routing keys of the topic exchange for all workers and for all engines.
ALL_WORKERS: Final = "wbe.workers"
ALL_ENGINES: Final = "wbe.engines"


_MAX_TOPIC_LENGTH: Final = 100


def queue_name(
    exchange: str, topic: str, names: Iterable[str], version: int = data_formats.MESSAGE.written
) -> str:
    """Return the queue of all workers that offer these tasks on this topic of this exchange.

    The digest separates the queues of different exchanges, and of requests in different formats: a
    worker consumes only requests that it can read. Engines publish only to queues with such names,
    so an announcement cannot redirect requests to another queue.

    :param version: format of the requests.
    """
    text = "\n".join((f"{version}", exchange, topic, *sorted(names)))
    return f"{topic[:_MAX_TOPIC_LENGTH]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class MessageSigner(Protocol):
    """Signs messages, and verifies stored results: a `signing.Signer`."""

    def sign(self, envelope: Envelope) -> None: ...

    def verify_outcome(self, id: str, headers: Mapping[str, Any], body: bytes) -> bytes: ...


@dataclass(slots=True, eq=False)
class Envelope:
    """A message to publish, or a received message.

    `body` is a JSON tree. `priority` is 0 to 9; 9 is the highest. A `persistent` message survives
    a restart of the broker if possible. `encoded` and `encoded_headers` encode an outgoing message
    on first use; it must not change afterwards.
    """

    type: str
    body: Mapping[str, Any]
    routing_key: str = ""
    correlation_id: str | None = None
    reply_to: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    redelivered: bool = False
    persistent: bool = False
    #: Signs the message before it is encoded; None: no signature.
    signer: MessageSigner | None = None
    _encoded: bytes | None = None
    _encoded_headers: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            # The text of a failure may contain lone surrogates; user values do not.
            if hd.WBE_VERSION in self.headers:
                self._encoded = json_text.encode(self.body, "replace", finite=True)
            else:
                self._encoded = _encode(self.body).encode("utf-8", "replace")
        return self._encoded

    @property
    def signed_headers(self) -> dict[str, Any]:
        """The headers to send. Read them before the body, because signing may encrypt the body.

        :raises ValueError, TypeError: if the message is signed and the headers are not JSON.
        """
        if self.signer is not None:
            signer, self.signer = self.signer, None
            if hd.WBE_SIGNATURE not in self.headers:  # A forwarded message keeps its signature.
                signer.sign(self)
        return self.headers

    @property
    def encoded_headers(self) -> bytes:
        """The headers as JSON.

        :raises ValueError, TypeError: if the headers are not JSON.
        """
        if self._encoded_headers is None:
            self._encoded_headers = json_text.encode(self.signed_headers)
        return self._encoded_headers

    def number(self, header: str, default: int = 0) -> int:
        """Return a header with a count, or `default` if it is not valid."""
        value = self.headers.get(header)
        return (
            value if type(value) is int and 0 <= value <= _message_schemas.MAX_NUMBER else default
        )

    def seconds(self, header: str) -> float | None:
        """Return a header with finite, non-negative seconds, or None."""
        value: Any = self.headers.get(header)
        if type(value) in (float, int) and 0 <= value <= _message_schemas.MAX_NUMBER:
            return float(value)
        return None

    def text(self, header: str) -> str | None:
        """Return a header with a text of at most 512 characters, or None."""
        value = self.headers.get(header)
        return value if isinstance(value, str) and len(value) <= 512 else None


def check_size(envelope: Envelope, task: str, what: str, limit: int = MAX_MESSAGE_SIZE) -> None:
    """Check that brokers accept the size of a body.

    :raises TooLarge: if the body is larger than `limit`.
    """
    size = len(envelope.encoded)
    if size > limit:
        raise exc.TooLarge(
            f"{what} of task {task!r} is too large to send: {size:,} bytes, at most {limit:,};"
            f" keep the data elsewhere and pass a reference to it"
        )


def packer(extended: bool) -> Any:
    """Return the encoder of user values: `types.codec`, or kombu's JSON for TaskFlow's peers."""
    return codec.pack_to_send if extended else kombu_json.pack


def unpacker(extended: bool) -> Any:
    return codec.unpack_received if extended else kombu_json.unpack


def parse(body: bytes | str) -> Any:
    """Return the JSON tree of a received body.

    :raises InvalidFormat: if it is not strict JSON in UTF-8.
    """
    return codec.parse(body, depth=_BODY_DEPTH)


def body_of(message: Any, interop: str | None = None) -> Any:
    """Return the JSON tree of the body of a received message.

    :raises InvalidFormat: if it is compressed, or not strict JSON (with `interop`, TaskFlow's).
    """
    if getattr(message, "compressed", False):
        raise exc.InvalidFormat("the message is compressed")
    if interop is not None:
        return kombu_json.parse(message.body, depth=_BODY_DEPTH)
    return parse(message.body)


def freeze(envelope: Envelope) -> bytes:
    """Return a terminal reply in the format of ledgers and of wbengine's own brokers."""
    return _encoding.seal(envelope, "")


def thaw(
    frozen: bytes, correlation_id: str, reply_to: str = "", signer: MessageSigner | None = None
) -> Envelope:
    """Return the reply that a ledger stored.

    :raises ValueError: if the data is not a stored reply.
    :raises NotTrusted: if `signer` rejects its signature.
    """
    head, body = _encoding.decode(frozen)
    headers, encoded = head["headers"], body
    if signer is not None:
        body = signer.verify_outcome(correlation_id, headers, body)
    reply = Envelope(
        pr.RESPONSE,
        json.loads(body),
        reply_to,
        correlation_id=correlation_id,
        headers=headers,
    )
    reply._encoded = encoded  # The signature covers these bytes.
    return reply


def received(data: Any, message: Any) -> Envelope:
    """Return the envelope of a received message with the decoded body `data`. Shares headers."""
    find = message.properties.get
    correlation_id, reply_to = find("correlation_id"), find("reply_to")
    info = message.delivery_info or _EMPTY
    return Envelope(
        find("type", ""),
        data,
        str(info.get("routing_key", "")),
        correlation_id if isinstance(correlation_id, str) else None,
        reply_to if isinstance(reply_to, str) else None,
        message.headers or {},
        0,
        bool(info.get("redelivered", False)),
    )


def sender_of(message: Any) -> Any:
    """Return the unchecked name of the process that sent a received message."""
    return (message.headers or _EMPTY).get(hd.WBE_WORKER, message.properties.get("reply_to"))


def has_row(message: Any) -> bool:
    """Return whether a received REQUEST has a row in a ledger."""
    return hd.WBE_LEDGER in (message.headers or _EMPTY)


def copy_of(message: Any) -> Envelope:
    """Return a copy of a delivered message that can be published as a new message."""
    copy = received({}, message)
    copy._encoded = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    properties = message.properties
    priority = properties.get("priority")
    copy.priority = min(9, max(0, priority)) if type(priority) is int else 0
    copy.persistent = properties.get("delivery_mode") == 2
    return copy
