"""One message as the sans-I/O parts see it: a body, an address, and the headers that are ours.

And the answers of workers, as they are made, kept, and read again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wbengine import _codec, _json_text
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import kombu_json, schemas
from wbengine.transports import _envelope
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.messages import signing
    from wbengine.engines.worker_based.worker_side.jobs import Job

LOG = logging.getLogger(__name__)

#: The version of everything that travels in headers.  A peer that sends none speaks plain TaskFlow.
VERSION: Final = "1"

#: A value of a user may nest as deep as the codec allows, and stands a few levels inside its body.
_BODY_DEPTH: Final = _codec.MAX_DEPTH + 8

_NOTHING: Final[Mapping[str, Any]] = {}

#: For TaskFlow's peers, who are sent what is no number as Python writes it.
_encode: Final = _json_text.writer(allow_nan=True)

#: Encoded bodies above this many bytes are refused before they are published.
MAX_MESSAGE_SIZE: Final = 16 * 1024 * 1024

# Headers of Celery's protocol, where it has a word for the thing.
#: The language of the task: `py`.
LANG: Final = "lang"
#: The class of the task.
TASK: Final = "task"
#: The id of the request.
ID: Final = "id"
#: The id of the flow.
ROOT_ID: Final = "root_id"
#: How often the task was tried before: the number of this attempt, less one.
RETRIES: Final = "retries"
#: `[hard, soft]`: seconds, or null.
TIMELIMIT: Final = "timelimit"
#: Unix seconds after which a request is not to be started any more; where there is no ledger.
EXPIRES: Final = "expires"
#: The arguments, for people; masked and cut (see `traces`).
ARGSREPR: Final = "argsrepr"
KWARGSREPR: Final = "kwargsrepr"

# Ours.
#: The version of everything else here.
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
#: The time of that worker as it speaks, in unix seconds; or when a request was put aside.
WBE_TIME: Final = "wbe-time"
#: The life of that worker (see `life`).
WBE_LIFE: Final = "wbe-life"
#: In a terminal FAILURE: nobody ran the request to its end, and nobody can tell how far it came.
WBE_LOST: Final = "wbe-lost"
#: In a request that was put aside: why.
WBE_DEAD: Final = "wbe-dead"
#: The queue from which that worker takes requests of the topic it announces; or from which workers
#: took a request that was put aside.
WBE_QUEUE: Final = "wbe-queue"
#: Seconds between two beats (a worker's own, or what an engine asks for).
WBE_PERIOD: Final = "wbe-period"
#: The least that an engine asks for, and that a worker agrees to.
LEAST_PERIOD: Final = 0.5
#: READY, STOPPED, or BEAT: what a worker's NOTIFY is about.
WBE_STATE: Final = "wbe-state"
#: The version of wbengine that a worker runs, where it tells what it offers.
WBE_SOFTWARE: Final = "wbe-software"
#: Digest of the ledger in which the request has its row; or of the one that a worker has, where it
#: tells what it offers.
WBE_LEDGER: Final = "wbe-ledger"
#: In a request: the engine keeps what its task logs.
WBE_LOGS: Final = "wbe-logs"
#: The number under which an engine asked for a request, in the answer to that; 0: unasked.
WBE_ASK: Final = "wbe-ask"
#: Set by an engine that speaks to itself, to hear whether it still hears anything.
WBE_ECHO: Final = "wbe-echo"
#: Unix seconds at which a task started and ended, on the worker's clock; the former also where it
#: is asked for while it runs.
WBE_STARTED: Final = "wbe-started"
WBE_ENDED: Final = "wbe-ended"

#: Who said it: version, id of the key, time, nonce, to whom, and what shows it (see `signing`).
WBE_SIGNATURE: Final = "wbe-signature"
#: The id of the key that opens the body: then that is a text in base64.
WBE_ENCRYPTED: Final = "wbe-encrypted"

READY: Final = "ready"
STOPPED: Final = "stopped"
BEAT: Final = "beat"

#: Routing keys of the topic exchange that reach every worker, and every engine.
ALL_WORKERS: Final = "wbe.workers"
ALL_ENGINES: Final = "wbe.engines"


#: So much of its topic is in the name of a queue, which cannot be longer than a topic.
_TOPIC_SHOWN: Final = 100


def queue_name(exchange: str, topic: str, names: Iterable[str]) -> str:
    """The queue of all workers that offer these tasks on this topic of this exchange.

    It begins with the topic, for people; other exchanges of the same broker have queues of theirs.
    Engines use no queue of another name, whatever is announced.
    """
    text = "\n".join((exchange, topic, *sorted(names)))
    return f"{topic[:_TOPIC_SHOWN]}.{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(slots=True, eq=False)
class Envelope:
    """A message to be published, or one that came.

    `body` is a tree that JSON can hold.  `priority` is 0 to 9, 9 first.  A `persistent` one is to
    survive the broker's end, where brokers can do that.  Outgoing ones are encoded once, on first
    use of `encoded` and `encoded_headers`, and not changed any more then.
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
    #: What signs it before it is encoded, where messages are signed and it is not yet.
    signer: signing.Signer | None = None
    _encoded: bytes | None = None
    _encoded_headers: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            # User values hold no lone surrogates, failure texts may.
            if WBE_VERSION in self.headers:
                self._encoded = _json_text.encode(self.body, "replace", finite=True)
            else:
                self._encoded = _encode(self.body).encode("utf-8", "replace")
        return self._encoded

    @property
    def signed_headers(self) -> dict[str, Any]:
        """The headers as they are sent: whoever encodes a message takes them from here, and the
        body afterwards, which may be encrypted by that.

        :raises ValueError, TypeError: they are no JSON, and the message is signed.
        """
        if self.signer is not None:
            signer, self.signer = self.signer, None
            if WBE_SIGNATURE not in self.headers:  # else it is passed on
                signer.sign(self)
        return self.headers

    @property
    def encoded_headers(self) -> bytes:
        """
        :raises ValueError, TypeError: they are no JSON.
        """
        if self._encoded_headers is None:
            self._encoded_headers = _json_text.encode(self.signed_headers)
        return self._encoded_headers

    @property
    def ours(self) -> bool:
        """Whether the peer speaks more than plain TaskFlow."""
        return WBE_VERSION in self.headers

    def number(self, header: str, default: int = 0) -> int:
        """A header that counts something; whatever is not a count reads as `default`."""
        value = self.headers.get(header)
        return value if type(value) is int and 0 <= value <= schemas.MAX_NUMBER else default

    def seconds(self, header: str) -> float | None:
        """A header that holds seconds, not negative and finite, or None."""
        value: Any = self.headers.get(header)
        if type(value) in (float, int) and 0 <= value <= schemas.MAX_NUMBER:
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
    """How user values are written for a peer: typed for our own, as kombu's JSON for TaskFlow's."""
    return _codec.pack_to_send if ours else kombu_json.pack


def unpacker(ours: bool) -> Any:
    """How user values of a peer are read."""
    return _codec.unpack_received if ours else kombu_json.unpack


def parse(body: bytes | str, interop: str | None = None) -> Any:
    """The tree of an encoded body that came.

    :raises InvalidFormat: it is not strict JSON in UTF-8 (`interop`: nor what TaskFlow sends).
    """
    if interop is not None:
        return kombu_json.parse(body, depth=_BODY_DEPTH)
    return _codec.parse(body, depth=_BODY_DEPTH)


def body_of(message: Any, interop: str | None = None) -> Any:
    """The tree of the body of a message that came.

    :raises InvalidFormat: it is not strict JSON in UTF-8 (see `parse`), or compressed.
    """
    if getattr(message, "compressed", False):
        raise exc.InvalidFormat("it is compressed")
    return parse(message.body, interop)


def freeze(envelope: Envelope) -> bytes:
    """What a ledger keeps of a terminal answer, so that it can be given again: as brokers of ours
    keep it, too."""
    return _envelope.seal(envelope, "")


def thaw(
    frozen: bytes, correlation_id: str, reply_to: str = "", signer: signing.Signer | None = None
) -> Envelope:
    """The answer that was kept.

    :raises ValueError: it is none.
    :raises NotTrusted: `signer` does not know who said it.
    """
    found = _envelope.Message(frozen, None, 0, False)
    opened = found.body
    if signer is not None:
        opened = signer.verify_outcome(correlation_id, found.headers, found.body)
    made = Envelope(
        pr.RESPONSE,
        json.loads(opened),
        reply_to,
        correlation_id=correlation_id,
        headers=found.headers,
    )
    made._encoded = found.body  # as it was signed
    return made


def received(data: Any, message: Any) -> Envelope:
    """The envelope of a message that came, with `data` its decoded body; they share headers."""
    find = message.properties.get
    correlation_id, reply_to = find("correlation_id"), find("reply_to")
    info = message.delivery_info or _NOTHING
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
    """What was delivered, to be published again to where it came from, as if for the first time."""
    found = received({}, message)
    found._encoded = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    properties = message.properties
    priority = properties.get("priority")
    found.priority = min(9, max(0, priority)) if type(priority) is int else 0
    found.persistent = properties.get("delivery_mode") == 2
    return found


class Answers:
    """Makes the answers of one worker; bodies above `max_size` bytes are refused."""

    def __init__(self, identity: str, max_size: int) -> None:
        self._identity = identity
        self._max_size = max_size

    def running(self, job: Job, asked: int | None = None) -> Envelope:
        return self._make(job, pr.RUNNING, {}, asked=asked)

    def elsewhere(self, job: Job) -> Envelope:
        """Somebody else has it; nobody asked."""
        return self._make(job, pr.PENDING, {}, asked=0)

    def event(self, job: Job, event_type: str, details: Mapping[str, Any]) -> Envelope:
        """
        :raises InvalidFormat: it cannot be sent.
        """
        if not isinstance(event_type, str):
            raise exc.InvalidFormat(f"{event_type!r:.80} is not the name of an event")
        packed = packer(job.ours)(dict(details), "details")
        made = self._make(job, pr.EVENT, {"event_type": event_type, "details": packed})
        check_size(made, job.name, "an event", self._max_size)
        return made

    def succeeded(self, job: Job, outcome: invocation.Outcome) -> Envelope:
        """
        :raises InvalidFormat: the result cannot be sent.
        """
        data = {"result": packer(job.ours)(outcome.value, "result")}
        made = self._make(job, pr.SUCCESS, data, outcome)
        check_size(made, job.name, "the result", self._max_size)
        return made

    def failed(
        self,
        job: Job,
        failure: ft.Failure,
        outcome: invocation.Outcome | None = None,
        *,
        lost: bool = False,
    ) -> Envelope:
        """`lost`: nobody can tell how far it came."""
        made = self._make(job, pr.FAILURE, {"result": pr.failure_to_dict(failure)}, outcome)
        if len(made.encoded) > self._max_size:
            short = exc.TooLarge(
                f"the failure of task {job.name!r} is too large to send"
                f" ({len(made.encoded):,} bytes): {failure.exception_str[:1000]}"
            )
            data = {"result": ft.Failure.from_exception(short).to_dict(include_args=False)}
            made = self._make(job, pr.FAILURE, data, outcome)
        if lost and job.ours:
            made.headers[WBE_LOST] = 1
        return made

    def _make(
        self,
        job: Job,
        state: str,
        data: Mapping[str, Any],
        outcome: invocation.Outcome | None = None,
        asked: int | None = None,
    ) -> Envelope:
        job.seq += 1
        headers: dict[str, Any] = {}
        if job.ours:
            headers = {
                WBE_VERSION: VERSION,
                WBE_WORKER: self._identity,
                WBE_EPOCH: job.epoch,
                WBE_SEQ: job.seq,
            }
            if outcome is not None and outcome.started is not None:
                headers[WBE_STARTED] = outcome.started
                headers[WBE_ENDED] = outcome.ended
            if asked is not None:
                headers[WBE_ASK] = asked
        body = {"state": state, "data": data}
        return Envelope(pr.RESPONSE, body, job.reply_to, job.id, None, headers)


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
