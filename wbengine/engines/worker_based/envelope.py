"""One message as the sans-I/O parts see it: a body, an address, and the headers that are ours."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import _codec
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: The version of everything that travels in headers.  A peer that sends none speaks plain TaskFlow.
VERSION: Final = "1"

#: Numbers in headers above this one are no numbers of anything.
_MOST: Final = 2**53

#: A value of a user may nest as deep as the codec allows, and stands a few levels inside its body.
_BODY_DEPTH: Final = _codec.MAX_DEPTH + 8

#: Encoded bodies above this many bytes are refused before they are published.
MAX_MESSAGE_SIZE: Final = 16 * 1024 * 1024

# Headers of Celery's protocol, where it has a word for the thing.
LANG: Final = "lang"
TASK: Final = "task"
ID: Final = "id"
ROOT_ID: Final = "root_id"
#: How often the task was tried before: the number of this attempt, less one.
RETRIES: Final = "retries"
#: `[hard, soft]`: seconds, or null.
TIMELIMIT: Final = "timelimit"
#: Unix seconds after which a request is not to be started any more; where there is no ledger.
EXPIRES: Final = "expires"

# Ours.
WBE_VERSION: Final = "wbe-version"
#: Number of this execution or reversion of the atom, for the life of its flow.
WBE_ATTEMPT: Final = "wbe-attempt"
#: Fencing number: rises each time the engine dispatches the same attempt again.
WBE_EPOCH: Final = "wbe-epoch"
#: Number of this answer among the answers to one (id, epoch), from 1.
WBE_SEQ: Final = "wbe-seq"
#: Identity of the worker process that speaks.
WBE_WORKER: Final = "wbe-worker"
#: How many tasks that worker runs at once, and how many it runs now.
WBE_SLOTS: Final = "wbe-slots"
WBE_RUNNING: Final = "wbe-running"
#: The ids of the requests that it runs for the engine it speaks to; absent where it speaks to all.
WBE_IDS: Final = "wbe-ids"
#: The life of that worker (see `life`).
WBE_LIFE: Final = "wbe-life"
#: In a terminal FAILURE: nobody ran the request to its end, and nobody can tell how far it came.
WBE_LOST: Final = "wbe-lost"
#: The queue from which that worker takes requests of the topic it announces.
WBE_QUEUE: Final = "wbe-queue"
#: Seconds between two beats (a worker's own, or what an engine asks for).
WBE_PERIOD: Final = "wbe-period"
#: The least that an engine asks for, and that a worker agrees to.
LEAST_PERIOD: Final = 0.5
#: READY, STOPPED, or BEAT: what a worker's NOTIFY is about.
WBE_STATE: Final = "wbe-state"
#: Digest of the ledger in which the request has its row.
WBE_LEDGER: Final = "wbe-ledger"
#: The number under which an engine asked for a request, in the answer to that; 0: unasked.
WBE_ASK: Final = "wbe-ask"
#: Set by an engine that speaks to itself, to hear whether it still hears anything.
WBE_ECHO: Final = "wbe-echo"
#: Unix seconds at which a task started and ended, on the worker's clock.
WBE_STARTED: Final = "wbe-started"
WBE_ENDED: Final = "wbe-ended"

READY: Final = "ready"
STOPPED: Final = "stopped"
BEAT: Final = "beat"

#: Routing keys of the topic exchange that reach every worker, and every engine.
ALL_WORKERS: Final = "wbe.workers"
ALL_ENGINES: Final = "wbe.engines"


@dataclass(slots=True, eq=False)
class Envelope:
    """A message to be published, or one that came.

    `body` is a tree that JSON can hold.  `priority` is 0 to 9, 9 first.  A `persistent` one is to
    survive the broker's end, where brokers can do that.  Outgoing ones are encoded once, on first
    use of `encoded`.
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
    _encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = json.dumps(self.body, separators=(",", ":"), ensure_ascii=False).encode(
                "utf-8", "replace"
            )  # user values hold no lone surrogates, failure texts may
        return self._encoded

    @property
    def ours(self) -> bool:
        """Whether the peer speaks more than plain TaskFlow."""
        return WBE_VERSION in self.headers

    def number(self, header: str, default: int = 0) -> int:
        """A header that counts something; whatever is not a count reads as `default`."""
        value = self.headers.get(header)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
            return value
        return default

    def seconds(self, header: str) -> float | None:
        """A header that holds seconds, not negative and finite, or None."""
        value = self.headers.get(header)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST:
            return float(value)
        return None

    def text(self, header: str) -> str | None:
        """A header that holds a short text, or None."""
        value = self.headers.get(header)
        return value if isinstance(value, str) and len(value) <= 512 else None


def check_size(envelope: Envelope, task: str, what: str, limit: int = MAX_MESSAGE_SIZE) -> None:
    """Refuse a body that no broker should be asked to carry.

    :raises TooLarge: naming the task, what is too large, and by how much.
    """
    size = len(envelope.encoded)
    if size > limit:
        raise exc.TooLarge(
            f"{what} of task {task!r} is too large to send: {size:,} bytes, at most {limit:,};"
            f" keep the data elsewhere and pass a reference to it"
        )


def packer(ours: bool) -> Any:
    """How user values are written for a peer: typed for our own, plain JSON for TaskFlow's."""
    return _codec.pack if ours else _codec.plain


def unpacker(ours: bool) -> Any:
    """How user values of a peer are read."""
    return _codec.unpack if ours else _identity


def _identity(value: Any) -> Any:
    return value


def parse(body: bytes | str) -> Any:
    """The tree of an encoded body that came.

    :raises InvalidFormat: it is not strict JSON in UTF-8.
    """
    return _codec.parse(body, depth=_BODY_DEPTH)


def freeze(envelope: Envelope) -> bytes:
    """What a ledger keeps of a terminal answer, so that it can be given again."""
    headers = json.dumps(envelope.headers, separators=(",", ":")).encode("ascii")
    # The body was encoded to be sent; it may be large, and is not encoded twice.
    return b'{"headers":%b,"body":%b}' % (headers, envelope.encoded)


def thaw(frozen: bytes, correlation_id: str, reply_to: str = "") -> Envelope:
    """The answer that `freeze` kept."""
    data = json.loads(frozen)
    return Envelope(
        pr.RESPONSE,
        data["body"],
        routing_key=reply_to,
        correlation_id=correlation_id,
        headers=data["headers"],
    )


def received(data: Any, message: Any) -> Envelope:
    """The envelope of a message that came, with `data` its decoded body."""
    properties = message.properties
    correlation_id = properties.get("correlation_id")
    reply_to = properties.get("reply_to")
    info = message.delivery_info or {}
    return Envelope(
        properties.get("type", ""),
        data,
        routing_key=str(info.get("routing_key", "")),
        correlation_id=correlation_id if isinstance(correlation_id, str) else None,
        reply_to=reply_to if isinstance(reply_to, str) else None,
        headers=dict(message.headers or {}),
        redelivered=bool(info.get("redelivered", False)),
    )


def value_of(answer: Envelope) -> Any:
    """The result in a terminal answer, or its failure; never raises: what came is an end."""
    data = answer.body["data"]["result"]
    try:
        if answer.body["state"] == pr.FAILURE:
            return ft.Failure.from_dict(data)
        return unpacker(answer.ours)(data)
    except Exception as error:
        return ft.Failure.from_exception(error)


def details_of(answer: Envelope) -> dict[str, Any] | None:
    """The details in an EVENT, or None if they cannot be read."""
    try:
        details = unpacker(answer.ours)(answer.body["data"]["details"])
    except exc.InvalidFormat as error:
        LOG.warning("an event of request %s cannot be read: %s", answer.correlation_id, error)
        return None
    return details if isinstance(details, dict) else None
