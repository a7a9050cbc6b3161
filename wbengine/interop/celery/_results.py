"""Readers of Celery results: one for each backend, shared by all tasks of a process."""

from __future__ import annotations

import builtins
import contextlib
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

import kombu

from wbengine import exceptions, transports
from wbengine._configuration import named_options, tls_options
from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine._redis import client_options
from wbengine.engines.worker_based._connections import connecting
from wbengine.interop.celery import _protocol, _reconnecting
from wbengine.interop.celery._serializers import JSON, Accepted, Wire, name_of
from wbengine.transports import _reasons
from wbengine.types import failure as ft

__all__ = [
    "BROKER_OPTIONS", "ENDED", "Options", "Reader", "RedisReader", "RpcReader", "SentTask",
    "failure_of", "redis_url", "with_tls",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

ENDED: Final = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
#: Interval at which a reader checks whether it must end.
_CHECK_SECONDS: Final = 0.2
#: Time after which a Redis that does not answer a ping is considered lost.
_MAX_SILENCE_SECONDS: Final = 60.0
#: Time for which the results queue is kept while its reader is disconnected.
_QUEUE_EXPIRY_SECONDS: Final = 3600.0

#: Prefixes of Celery's result keys and of wbengine's keys (each records that a task was sent), and
#: the retention of the latter, which is the same as for Celery's results.
_RESULT_PREFIX: Final = "celery-task-meta-"
_SENT_PREFIX: Final = "wbengine-celery-sent-"
_SENT_SECONDS: Final = 86400
#: Prefix of a compressed result, before its compression type.
_COMPRESSED_PREFIX: Final = b"\x00celery-compressed\x00"

#: Options for kombu's Redis transport, which otherwise waits forever for a stopped server.
BROKER_OPTIONS: Final[Mapping[str, Any]] = {
    "socket_timeout": 15.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
}


class Options(dict[str, Any]):
    """Transport options that can be a part of a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


#: Certificate requirements of a Redis URL, in Celery's notation.
_CERTIFICATE_MODE: Final = re.compile("(?<=ssl_cert_reqs=)CERT_(NONE|OPTIONAL|REQUIRED)")

#: Options of TLS that are possible in a URL for kombu.
_TLS_OPTIONS: Final = tuple(
    name
    for name in client_options.NAMES
    if name.startswith("ssl_") and name != tls_options.MIN_VERSION
)

#: Called with a result, or with the failure to read it.
OnResult = Callable[["_protocol.Result | ft.Failure"], object]
_T = TypeVar("_T")


class SentTask(Protocol):
    """A task whose message was published; a `publisher.OutgoingTask`."""

    id: str

    def confirmed(self) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Reader(_reconnecting.ReconnectLoop):
    """Reads one result backend. The reader's thread calls `on_result` once.

    :param shown: a description of the backend, without passwords.
    """

    closes_last = True

    def __init__(self, shown: str, content_type: str = JSON) -> None:
        super().__init__(f"the results of Celery at {shown}")
        kinds = dict.fromkeys(("json", name_of(content_type) or "json"))
        self._accepted = Accepted(kinds)
        self._waiting: dict[str, OnResult] = {}

    def expect(self, id: str, on_result: OnResult) -> None:
        with self._lock:
            self._waiting[id] = on_result
            self._watch(id)
            self._wake()

    def forget(self, id: str) -> None:
        with self._lock:
            if self._waiting.pop(id, None) is not None:
                self._watch(id)

    def was_sent(self, id: str) -> bool:
        """Return True if a result or record proves that the task was sent."""
        return False

    def note_sent(self, sent: SentTask) -> None:
        """Record, for resumed flows, that the broker has confirmed the message of a task."""
        sent.confirmed()

    @property
    def _pending(self) -> int:
        return len(self._waiting)

    def _watch(self, id: str) -> None:
        """Start or stop watching for a result. The caller must hold the lock."""

    def _on_refusal(self, error: Exception) -> None:
        text = f"{self.place} cannot be read: {_reasons.explain(error.__cause__ or error)}"
        self._fail_all(exceptions.TransportFailure(text, error))

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for on_result in waiting:
            on_result(ft.Failure.from_exception(error))

    def _deliver(self, id: str, value: _protocol.Result | ft.Failure) -> None:
        if isinstance(value, _protocol.Result) and value.status not in ENDED:
            return
        with self._lock:
            on_result = self._waiting.pop(id, None)
            self._watch(id)
            self._used = time.monotonic()
        if on_result is not None:
            on_result(value)

    def _decoded(self, wire: Wire) -> _protocol.Result | ft.Failure:
        try:
            return _protocol.decode_result(wire, self._accepted)
        except exceptions.InvalidFormat as error:
            LOG.warning("a Celery result cannot be read: %s", error)
            return ft.Failure.from_exception(error)


class RpcReader(Reader):
    """Reads this process's reply queue (`rpc://`).

    The queue outlives connections, so that results are kept during a disconnection.
    """

    def __init__(
        self, url: str, content_type: str = JSON, options: Mapping[str, Any] | None = None
    ) -> None:
        is_redis = url.startswith(("redis", "sentinel"))
        defaults = BROKER_OPTIONS if is_redis else {}
        self._target = transports.kombu_target(url, options={**defaults, **(options or {})})
        super().__init__(self._target.shown, content_type)
        name = f"wbengine-replies-{uuid.uuid4()}"
        self.queue = kombu.Queue(
            name, kombu.Exchange(""), name, durable=True, expires=_QUEUE_EXPIRY_SECONDS
        )

    def _serve(self) -> None:
        amqp = self._target.amqp
        connection = connecting.reach(self._target, self._stopping, within=10.0)
        try:
            consumer = kombu.Consumer(
                connection.channel(), [self.queue], on_message=self._on_message, no_ack=not amqp
            )
            consumer.consume()
            self._note_available()
            while not self._is_over():
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=_CHECK_SECONDS)
                if amqp:
                    connection.heartbeat_check()
            if self._stopping.is_set():
                consumer.cancel()
                self.queue(consumer.channel).delete()
        finally:
            connecting.release(connection)

    def _on_message(self, message: Any) -> None:
        wire = Wire.of(message)
        self._deliver(str(wire.properties.get("correlation_id", "")), self._decoded(wire))
        if self._target.amqp:
            message.ack()


class RedisReader(Reader):
    """Reads results in Redis, and records in Redis which tasks were sent.

    Redis publishes each result. After subscribing, the reader also checks for results that were
    stored earlier.

    :param prefix: prefix of keys, before Celery's own prefix.
    """

    def __init__(self, url: str, content_type: str = JSON, prefix: str = "") -> None:
        """Create a reader.

        :raises TransportFailure: if redis-py is not installed.
        """
        super().__init__(transports.kombu_target(url).shown, content_type)
        self._client = _redis_client(url)
        self._content_type = content_type
        self._prefix = prefix
        #: Ids of results that must be subscribed or unsubscribed.
        self._changed_ids: list[str] = []
        self._sent: list[SentTask] = []
        #: The channel that wakes the thread.
        self._wake_channel = f"{prefix}wbengine-celery-bell-{uuid.uuid4()}"

    def was_sent(self, id: str) -> bool:
        """Raise redis-py's exception if Redis is unavailable; see `Reader.was_sent`."""
        return bool(self._client.exists(self._key(id), f"{self._prefix}{_SENT_PREFIX}{id}"))

    def note_sent(self, sent: SentTask) -> None:
        """Let the thread record the message and then confirm it."""
        with self._lock:
            self._sent.append(sent)
            self._wake()
        if not self.unavailable_reason:
            with contextlib.suppress(Exception):  # the thread reports the same error
                self._client.publish(self._wake_channel, b"")

    @property
    def _pending(self) -> int:
        return len(self._waiting) + len(self._sent)

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            sent, self._sent = self._sent, []
        for message in sent:
            message.failed(error)
        super()._fail_all(error)

    def _watch(self, id: str) -> None:
        self._changed_ids.append(id)

    def _serve(self) -> None:
        subscribed_ids: set[str] = set()
        with self._lock:
            self._changed_ids = list(self._waiting)
        with contextlib.closing(self._client.pubsub()) as subscription:
            subscription.subscribe(self._wake_channel)
            received_at = pinged_at = time.monotonic()
            while not self._is_over():
                self._follow(subscription, subscribed_ids)
                self._record_sent()
                message = subscription.get_message(timeout=_CHECK_SECONDS)
                now = time.monotonic()
                changed_ids = []
                while message:
                    received_at, id = now, self._id(message["channel"] or b"")
                    if message["type"] == "subscribe":
                        self._note_available()
                        changed_ids.append(id)
                    elif id and message["type"] == "message":
                        self._deliver(id, self._stored(message["data"]))
                    message = subscription.get_message(timeout=0)
                self._fetch([id for id in changed_ids if id])
                if now - received_at > _MAX_SILENCE_SECONDS:
                    raise TimeoutError("the Redis for results does not answer")
                if now - max(received_at, pinged_at) > _MAX_SILENCE_SECONDS / 3:
                    subscription.ping()
                    pinged_at = now
            self._record_sent()

    def _record_sent(self) -> None:
        sent = list(self._sent)
        for part in _chunks(sent):
            with self._client.pipeline(transaction=False) as pipe:
                for message in part:
                    pipe.set(f"{self._prefix}{_SENT_PREFIX}{message.id}", b"1", ex=_SENT_SECONDS)
                pipe.execute()
        with self._lock:
            del self._sent[: len(sent)]
        for message in sent:
            message.confirmed()

    def _follow(self, subscription: Any, subscribed_ids: set[str]) -> None:
        with self._lock:
            changed_ids, self._changed_ids = set(self._changed_ids), []
            expected_ids = {id for id in changed_ids if id in self._waiting}
        for change, ids in (
            (subscription.subscribe, expected_ids - subscribed_ids),
            (subscription.unsubscribe, (changed_ids - expected_ids) & subscribed_ids),
        ):
            for part in _chunks(ids):
                change(*map(self._key, part))
        subscribed_ids.difference_update(changed_ids - expected_ids)
        subscribed_ids.update(expected_ids)

    def _fetch(self, ids: list[str]) -> None:
        for part in _chunks(ids):
            for id, data in zip(part, self._client.mget(map(self._key, part)), strict=True):
                if data is not None:
                    self._deliver(id, self._stored(data))

    def _key(self, id: str) -> str:
        return f"{self._prefix}{_RESULT_PREFIX}{id}"

    def _id(self, channel: bytes) -> str:
        _, prefix, id = channel.decode().partition(f"{self._prefix}{_RESULT_PREFIX}")
        return id if prefix else ""

    def _stored(self, data: bytes) -> _protocol.Result | ft.Failure:
        headers: dict[str, Any] = {}
        if data.startswith(_COMPRESSED_PREFIX):
            kind, _, data = data[len(_COMPRESSED_PREFIX) :].partition(b"\0")
            headers["compression"] = kind.decode("utf-8", "replace")
        return self._decoded(Wire(headers, {}, self._content_type, "utf-8", data))


def _chunks(items: Iterable[_T]) -> Iterable[list[_T]]:
    all_items = list(items)
    return (all_items[start : start + 1000] for start in range(0, len(all_items), 1000))


def redis_url(url: str) -> str:
    """Convert a Redis URL from Celery's to redis-py's notation."""
    scheme, _, rest = url.partition(":")
    if scheme == "redis+socket":
        url = f"unix:{rest}"
    head, _, query = url.partition("?")
    return (
        f"{head}?{_CERTIFICATE_MODE.sub(lambda match: match[1].lower(), query)}" if query else url
    )


def with_tls(url: str, setting: str, value: Any) -> str:
    """Return a URL of Redis with the options of `broker_use_ssl` or `redis_backend_use_ssl`.

    As in Celery, the options of the URL have precedence. Other URLs are returned unchanged.

    :raises ValueError: if the value is not a dict, or contains an invalid option or a missing file.
        Celery itself connects to a broker without TLS if the value is True.
    """
    if not value or not url.startswith(("redis:", "rediss:", "sentinel:")):
        return url
    head, _, query = url.partition("?")
    in_url = dict(parse_qsl(query))
    if not isinstance(value, Mapping):
        if any(name.startswith("ssl_") for name in in_url):
            return url
        raise ValueError(
            f"{setting} must be a dict with ssl_cert_reqs for a Redis, got {value!r:.80}"
        )
    named_options.check_known(setting, value, _TLS_OPTIONS)
    options = {
        name: tls_options.read(name, option)
        for name, option in value.items()
        if option is not None or name == tls_options.CERT_REQS
    }
    tls_options.check_files(options)
    head = re.sub("^redis:", "rediss:", head)
    return f"{head}?{urlencode({**options, **in_url})}"


def _redis_client(url: str) -> Any:
    try:
        import redis
        from redis import backoff, retry
    except ImportError as error:
        raise exceptions.TransportFailure(
            installing.needs("a result backend in Redis", "redis-py", "redis")
        ) from error
    options: dict[str, Any] = {"socket_timeout": 15.0, "socket_connect_timeout": 5.0}
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    return redis.Redis.from_url(
        url, protocol=2, retry=retry.Retry(backoff.NoBackoff(), 0), **options
    )


#: Exceptions of wbengine with the same meaning, by (name, module) of Celery's exceptions.
_EQUIVALENTS: Final[Mapping[tuple[str, str], type[BaseException]]] = {
    ("SoftTimeLimitExceeded", "billiard.exceptions"): exceptions.SoftTimeLimitExceeded,
    ("TimeLimitExceeded", "billiard.exceptions"): exceptions.TimeLimitExceeded,
    ("WorkerLostError", "billiard.exceptions"): exceptions.WorkerLost,
    ("Terminated", "billiard.exceptions"): exceptions.Cancelled,
    ("TaskRevokedError", "celery.exceptions"): exceptions.Cancelled,
    ("NotRegistered", "celery.exceptions"): exceptions.NotFound,
}
#: Celery's replacement for exceptions that cannot be pickled.
_WRAPPER: Final = ("UnpickleableExceptionWrapper", "celery.utils.serialization")
_TRACEBACK_HEADER: Final = "Traceback (most recent call last):"
_MAX_TRACEBACK_LENGTH: Final = 65536
_PLAIN_TYPES: Final = (str, bool, float, int, type(None))


def failure_of(result: _protocol.Result) -> ft.Failure:
    """Return the failure that a result describes, for any content.

    Nothing is imported. The failure has the names of Celery's class, of its known base classes and
    of wbengine's equivalent class (`WorkerLost` for `WorkerLostError`).
    """
    value, trace = result.result, _lines(result.traceback or "")
    if isinstance(value, BaseException):  # only pickle produces exceptions
        failure = ft.Failure.from_exception(value)
        return ft.Failure(
            (type(value), failure.exception, None),
            exception_str=failure.exception_str,
            exc_type_names=tuple(failure),
            traceback_str=trace,
            exc_args=failure.exception_args,
            notes=failure.notes,
            members=failure.members,
        )
    if not isinstance(value, Mapping):
        value = {"exc_type": "Exception", "exc_module": "builtins", "exc_message": value}
    kind, module = _word(value.get("exc_type")) or "Exception", _word(value.get("exc_module"))
    arguments = _tuple(value.get("exc_message"))
    if (kind, module) == _WRAPPER and len(arguments) >= 3:
        kind, module = _word(arguments[1]) or kind, _word(arguments[0])
        arguments = _tuple(arguments[2])
    text: Any = arguments[0] if len(arguments) == 1 else arguments or ""
    return ft.Failure(
        exception_str=text if isinstance(text, str) else f"{text!r:.500}",
        exc_type_names=_class_names(kind, module),
        traceback_str=trace,
        exc_args=arguments if all(type(argument) in _PLAIN_TYPES for argument in arguments) else (),
    )


def _class_names(kind: str, module: str) -> list[str]:
    value: Any = sys.modules.get(module or builtins.__name__)
    for part in kind.split("."):
        value = getattr(value, "__dict__", {}).get(part)
    if isinstance(value, type) and issubclass(value, Exception):
        names = _bases(value)
    else:
        names = [kind if module in ("", "builtins") else f"{module}.{kind}", "Exception"]
    ours = _EQUIVALENTS.get((kind, module))
    return names if ours is None else [*names[:-1], *_bases(ours)]


def _bases(cls: type[BaseException]) -> list[str]:
    return [object_names.dotted(base) for base in cls.__mro__[: cls.__mro__.index(Exception) + 1]]


def _lines(trace: str) -> str:
    """Return a traceback without its first line and its exception, as failures store it."""
    head, separator, rest = trace.rpartition(f"{_TRACEBACK_HEADER}\n")
    if head or not separator:
        return trace[:_MAX_TRACEBACK_LENGTH]  # It contains causes, or is not a traceback.
    lines = rest.splitlines()
    while lines and not lines[-1].startswith(" "):
        lines.pop()
    return "\n".join(lines)[:_MAX_TRACEBACK_LENGTH]


def _word(value: Any) -> str:
    return value[:500] if isinstance(value, str) else ""


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
