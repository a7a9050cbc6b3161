"""Messages without I/O: body, address and headers; and the replies of workers."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wbengine import _json_text
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import schemas
from wbengine.engines.worker_based.messages import headers as hd
from wbengine.engines.worker_based.messages import kombu_json
from wbengine.transports import _encoding
from wbengine.types import codec
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.messages import signing
    from wbengine.engines.worker_based.worker_side.jobs import Job

LOG = logging.getLogger(__name__)

#: Maximum depth of a body. User values begin a few levels below its top.
_BODY_DEPTH: Final = codec.MAX_DEPTH + 8

_EMPTY: Final[Mapping[str, Any]] = {}

#: Encoder for TaskFlow's peers. Like Python, it encodes NaN and infinities.
_encode: Final = _json_text.writer(allow_nan=True)

#: Maximum size of an encoded body in bytes. Larger messages are not published.
MAX_MESSAGE_SIZE: Final = 16 * 1024 * 1024

#: Minimum heartbeat period, of a worker or requested by an engine.
MIN_PERIOD_SECONDS: Final = 0.5

# Kinds of a worker's NOTIFY.
READY: Final = "ready"
STOPPED: Final = "stopped"
BEAT: Final = "beat"

#: Routing keys of the topic exchange for all workers and for all engines.
ALL_WORKERS: Final = "wbe.workers"
ALL_ENGINES: Final = "wbe.engines"


_MAX_TOPIC_LENGTH: Final = 100


def queue_name(exchange: str, topic: str, names: Iterable[str]) -> str:
    """Return the queue of all workers that offer these tasks on this topic of this exchange.

    The digest separates the queues of different exchanges. Engines publish only to queues with
    such names, so an announcement cannot redirect requests to another queue.
    """
    text = "\n".join((exchange, topic, *sorted(names)))
    return f"{topic[:_MAX_TOPIC_LENGTH]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


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
    signer: signing.Signer | None = None
    _encoded: bytes | None = None
    _encoded_headers: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            # The text of a failure may contain lone surrogates; user values do not.
            if hd.WBE_VERSION in self.headers:
                self._encoded = _json_text.encode(self.body, "replace", finite=True)
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
            self._encoded_headers = _json_text.encode(self.signed_headers)
        return self._encoded_headers

    @property
    def extended(self) -> bool:
        """Whether the peer uses the extended protocol of wbengine."""
        return hd.WBE_VERSION in self.headers

    def number(self, header: str, default: int = 0) -> int:
        """Return a header with a count, or `default` if it is not valid."""
        value = self.headers.get(header)
        return value if type(value) is int and 0 <= value <= schemas.MAX_NUMBER else default

    def seconds(self, header: str) -> float | None:
        """Return a header with finite, non-negative seconds, or None."""
        value: Any = self.headers.get(header)
        if type(value) in (float, int) and 0 <= value <= schemas.MAX_NUMBER:
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


def parse(body: bytes | str, interop: str | None = None) -> Any:
    """Return the JSON tree of a received body.

    :raises InvalidFormat: if it is not strict JSON in UTF-8, or, with `interop`, not TaskFlow's
        JSON.
    """
    if interop is not None:
        return kombu_json.parse(body, depth=_BODY_DEPTH)
    return codec.parse(body, depth=_BODY_DEPTH)


def body_of(message: Any, interop: str | None = None) -> Any:
    """Return the JSON tree of the body of a received message.

    :raises InvalidFormat: if it is compressed or not valid JSON (see `parse`).
    """
    if getattr(message, "compressed", False):
        raise exc.InvalidFormat("the message is compressed")
    return parse(message.body, interop)


def freeze(envelope: Envelope) -> bytes:
    """Return a terminal reply in the format of ledgers and of wbengine's own brokers."""
    return _encoding.seal(envelope, "")


def thaw(
    frozen: bytes, correlation_id: str, reply_to: str = "", signer: signing.Signer | None = None
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


def copy_of(message: Any) -> Envelope:
    """Return a copy of a delivered message that can be published as a new message."""
    copy = received({}, message)
    copy._encoded = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    properties = message.properties
    priority = properties.get("priority")
    copy.priority = min(9, max(0, priority)) if type(priority) is int else 0
    copy.persistent = properties.get("delivery_mode") == 2
    return copy


class ReplyFactory:
    """Creates the replies of one worker. `max_size` limits the encoded body, in bytes."""

    def __init__(self, identity: str, max_size: int) -> None:
        self._identity = identity
        self._max_size = max_size

    def running(self, job: Job, inquiry_number: int | None = None) -> Envelope:
        return self._make(job, pr.RUNNING, {}, inquiry_number=inquiry_number)

    def elsewhere(self, job: Job) -> Envelope:
        """Return a PENDING reply without an inquiry: another worker has claimed the request."""
        return self._make(job, pr.PENDING, {}, inquiry_number=0)

    def event(self, job: Job, event_type: str, details: Mapping[str, Any]) -> Envelope:
        """Return an EVENT.

        :raises InvalidFormat: if it cannot be encoded or is too large.
        """
        if not isinstance(event_type, str):
            raise exc.InvalidFormat(f"the name of an event must be a str, got {event_type!r:.80}")
        packed = packer(job.extended)(dict(details), "details")
        reply = self._make(job, pr.EVENT, {"event_type": event_type, "details": packed})
        check_size(reply, job.name, "an event", self._max_size)
        return reply

    def succeeded(self, job: Job, outcome: invocation.Outcome) -> Envelope:
        """Return a SUCCESS.

        :raises InvalidFormat: if the result cannot be encoded or is too large.
        """
        data = {"result": packer(job.extended)(outcome.value, "result")}
        reply = self._make(job, pr.SUCCESS, data, outcome)
        check_size(reply, job.name, "the result", self._max_size)
        return reply

    def failed(
        self,
        job: Job,
        failure: ft.Failure,
        outcome: invocation.Outcome | None = None,
        *,
        lost: bool = False,
    ) -> Envelope:
        """Return a FAILURE. `lost` marks a task whose effects are unknown."""
        reply = self._make(job, pr.FAILURE, {"result": pr.failure_to_dict(failure)}, outcome)
        if len(reply.encoded) > self._max_size:
            too_large = exc.TooLarge(
                f"the failure of task {job.name!r} is too large to send"
                f" ({len(reply.encoded):,} bytes): {failure.exception_str[:1000]}"
            )
            data = {"result": ft.Failure.from_exception(too_large).to_dict(include_args=False)}
            reply = self._make(job, pr.FAILURE, data, outcome)
        if lost and job.extended:
            reply.headers[hd.WBE_LOST] = 1
        return reply

    def _make(
        self,
        job: Job,
        state: str,
        data: Mapping[str, Any],
        outcome: invocation.Outcome | None = None,
        inquiry_number: int | None = None,
    ) -> Envelope:
        job.seq += 1
        headers: dict[str, Any] = {}
        if job.extended:
            headers = {
                hd.WBE_VERSION: hd.VERSION,
                hd.WBE_WORKER: self._identity,
                hd.WBE_EPOCH: job.epoch,
                hd.WBE_SEQ: job.seq,
            }
            if outcome is not None and outcome.started is not None:
                headers[hd.WBE_STARTED] = outcome.started
                headers[hd.WBE_ENDED] = outcome.ended
            if inquiry_number is not None:
                headers[hd.WBE_ASK] = inquiry_number
        body = {"state": state, "data": data}
        return Envelope(pr.RESPONSE, body, job.reply_to, job.id, None, headers)


def value_of(answer: Envelope) -> Any:
    """Return the value or the failure in a terminal reply; a failure if it cannot be decoded."""
    data = answer.body["data"]["result"]
    try:
        if answer.body["state"] == pr.FAILURE:
            return ft.Failure.from_dict(data)
        return unpacker(answer.extended)(data)
    except Exception as error:
        return ft.Failure.from_exception(error)


def details_of(answer: Envelope) -> dict[str, Any] | None:
    try:
        details = unpacker(answer.extended)(answer.body["data"]["details"])
    except exc.InvalidFormat as error:
        LOG.warning("an event of request %s cannot be read: %s", answer.correlation_id, error)
        return None
    return details if isinstance(details, dict) else None
