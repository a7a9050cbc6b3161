"""Results of Celery's workers, read for all tasks of a process: one reader for each backend."""

from __future__ import annotations

import builtins
import contextlib
import logging
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import kombu

from wbengine import _names, exceptions, transports
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import protocol, reconnecting
from wbengine.interop.celery.serializers import JSON, Accepted, Wire, name_of
from wbengine.transports import reasons
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.interop.celery.publisher import OutgoingTask

__all__ = [
    "BROKER_OPTIONS", "ENDED", "Reader", "RedisReader", "RpcReader", "failure_of", "redis_url",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: The states of a result that does not change any more.
ENDED: Final = frozenset({"SUCCESS", "FAILURE", "REVOKED"})
#: Seconds after which a reader looks whether it is to end.
_TURN: Final = 0.2
#: Seconds after which a Redis that answers nothing, not even a ping, is lost.
_SILENCE: Final = 60.0
#: Seconds for which the queue of results waits for its reader to come back.
_EXPIRES: Final = 3600.0

#: What a key of a result begins with, and one of ours that says that a task was sent, which is kept
#: for as many seconds as Celery keeps results.
_RESULT: Final = "celery-task-meta-"
_SENT: Final = "wbengine-celery-sent-"
_KEPT: Final = 86400
#: What says that a stored result is compressed, before its content type.
_PACKED: Final = b"\x00celery-compressed\x00"

#: What kombu's Redis transport is told: without, it waits for ever for a server that is stopped.
BROKER_OPTIONS: Final[Mapping[str, Any]] = {
    "socket_timeout": 15.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
}
#: What a Redis may be asked about the certificate of its server, as Celery writes it.
_CERT: Final = re.compile("(?<=ssl_cert_reqs=)CERT_(NONE|OPTIONAL|REQUIRED)")

#: Told of a result, or of the failure to get one.
OnResult = Callable[["protocol.Result | ft.Failure"], object]
_T = TypeVar("_T")


class Reader(reconnecting.ReconnectLoop):
    """Reads one result backend; `on_result` is called once, in the reader's thread.

    :param shown: where the results are, without passwords.
    """

    closes_last = True

    def __init__(self, shown: str, content_type: str = JSON) -> None:
        super().__init__(f"Celery's results at {shown}")
        kinds = dict.fromkeys(("json", name_of(content_type) or "json"))
        self._accepted = Accepted(kinds)
        self._waiting: dict[str, OnResult] = {}

    def expect(self, id: str, on_result: OnResult) -> None:
        """Have the result of a task told, from now on."""
        with self._changed:
            self._waiting[id] = on_result
            self._watch(id)
            self._wake()

    def forget(self, id: str) -> None:
        """Its result is of no use any more."""
        with self._changed:
            if self._waiting.pop(id, None) is not None:
                self._watch(id)

    def was_sent(self, id: str) -> bool:
        """Whether it is known that a task was sent: its result is there, or a note that it was."""
        return False

    def note_sent(self, sent: OutgoingTask) -> None:
        """The broker has the message of a task: its result may come, and a resumed flow is to
        know."""
        sent.confirmed()

    @property
    def _pending(self) -> int:
        return len(self._waiting)

    def _watch(self, id: str) -> None:
        """A result is waited for from now on, or not any more; called with the lock held."""

    def _refused(self, error: Exception) -> None:
        text = f"{self.place} cannot be read: {reasons.explain(error.__cause__ or error)}"
        self._fail_all(exceptions.TransportFailure(text, error))

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for on_result in waiting:
            on_result(ft.Failure.from_exception(error))

    def _heard(self, id: str, value: protocol.Result | ft.Failure) -> None:
        if isinstance(value, protocol.Result) and value.status not in ENDED:
            return
        with self._changed:
            on_result = self._waiting.pop(id, None)
            self._watch(id)
            self._used = time.monotonic()
        if on_result is not None:
            on_result(value)

    def _decoded(self, wire: Wire) -> protocol.Result | ft.Failure:
        try:
            return protocol.decode_result(wire, self._accepted)
        except exceptions.InvalidFormat as error:
            LOG.warning("a result of Celery's cannot be read: %s", error)
            return ft.Failure.from_exception(error)


class RpcReader(Reader):
    """Reads the one queue of this process that results are sent back to (`rpc://`).

    The queue outlasts connections, so that results which come meanwhile are there afterwards.
    """

    def __init__(self, url: str, content_type: str = JSON) -> None:
        is_redis = url.startswith(("redis", "sentinel"))
        self._target = transports.Target(url, None, dict(BROKER_OPTIONS if is_redis else {}))
        super().__init__(self._target.shown, content_type)
        name = f"wbengine-replies-{uuid.uuid4()}"
        self.queue = kombu.Queue(name, kombu.Exchange(""), name, durable=True, expires=_EXPIRES)

    def _serve(self) -> None:
        amqp = self._target.amqp
        connection = connecting.reach(self._target, self._stopping, within=10.0)
        try:
            consumer = kombu.Consumer(
                connection.channel(), [self.queue], on_message=self._on_message, no_ack=not amqp
            )
            consumer.consume()
            self._back()
            while not self._is_over():
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=_TURN)
                if amqp:
                    connection.heartbeat_check()
            if self._stopping.is_set():
                consumer.cancel()
                self.queue(consumer.channel).delete()
        finally:
            connecting.release(connection)

    def _on_message(self, message: Any) -> None:
        wire = Wire.of(message)
        self._heard(str(wire.properties.get("correlation_id", "")), self._decoded(wire))
        if self._target.amqp:
            message.ack()


class RedisReader(Reader):
    """Reads results that are stored in a Redis, which tells of each; those that came before it
    was asked to tell are looked for.  Notes there which tasks were sent.

    :param prefix: what keys begin with, before Celery's own words.
    """

    def __init__(self, url: str, content_type: str = JSON, prefix: str = "") -> None:
        """
        :raises TransportFailure: the library is not installed.
        """
        super().__init__(transports.Target(url, None).shown, content_type)
        self._client = _redis_client(url)
        self._content_type = content_type
        self._prefix = prefix
        #: The ids of results that are waited for now, or not any more.
        self._news: list[str] = []
        #: What is to be noted.
        self._sent: list[OutgoingTask] = []
        #: The channel on which the thread is told that there is something to do.
        self._bell = f"{prefix}wbengine-celery-bell-{uuid.uuid4()}"

    def was_sent(self, id: str) -> bool:
        """See `Reader.was_sent`; raises what says that the Redis is away."""
        return bool(self._client.exists(self._key(id), f"{self._prefix}{_SENT}{id}"))

    def note_sent(self, sent: OutgoingTask) -> None:
        """See `Reader.note_sent`: its thread is told at once, and confirms what it has noted."""
        with self._changed:
            self._sent.append(sent)
            self._wake()
        if not self.why:
            with contextlib.suppress(Exception):  # the thread will meet it, too
                self._client.publish(self._bell, b"")

    @property
    def _pending(self) -> int:
        return len(self._waiting) + len(self._sent)

    def _fail_all(self, error: Exception) -> None:
        with self._changed:
            sent, self._sent = self._sent, []
        for one in sent:
            one.failed(error)
        super()._fail_all(error)

    def _watch(self, id: str) -> None:
        self._news.append(id)

    def _serve(self) -> None:
        known: set[str] = set()
        with self._changed:
            self._news = list(self._waiting)
        with contextlib.closing(self._client.pubsub()) as told:
            told.subscribe(self._bell)
            heard = asked = time.monotonic()
            while not self._is_over():
                self._follow(told, known)
                self._note()
                message = told.get_message(timeout=_TURN)
                now = time.monotonic()
                fresh = []
                while message:
                    heard, id = now, self._id(message["channel"] or b"")
                    if message["type"] == "subscribe":
                        self._back()
                        fresh.append(id)
                    elif id and message["type"] == "message":
                        self._heard(id, self._stored(message["data"]))
                    message = told.get_message(timeout=0)
                self._look_for([id for id in fresh if id])
                if now - heard > _SILENCE:
                    raise TimeoutError("the Redis of the results does not answer")
                if now - max(heard, asked) > _SILENCE / 3:
                    told.ping()
                    asked = now
            self._note()

    def _note(self) -> None:
        """Note what was sent; it is confirmed then."""
        sent = list(self._sent)
        for some in _in_parts(sent):
            with self._client.pipeline(transaction=False) as pipe:
                for one in some:
                    pipe.set(f"{self._prefix}{_SENT}{one.id}", b"1", ex=_KEPT)
                pipe.execute()
        with self._changed:
            del self._sent[: len(sent)]
        for one in sent:
            one.confirmed()

    def _follow(self, told: Any, known: set[str]) -> None:
        """Listen to the results that are waited for, and to no others."""
        with self._changed:
            news, self._news = set(self._news), []
            wanted = {id for id in news if id in self._waiting}
        for ask, ids in (
            (told.subscribe, wanted - known),
            (told.unsubscribe, (news - wanted) & known),
        ):
            for some in _in_parts(ids):
                ask(*map(self._key, some))
        known.difference_update(news - wanted)
        known.update(wanted)

    def _look_for(self, ids: list[str]) -> None:
        for some in _in_parts(ids):
            for id, data in zip(some, self._client.mget(map(self._key, some)), strict=True):
                if data is not None:
                    self._heard(id, self._stored(data))

    def _key(self, id: str) -> str:
        return f"{self._prefix}{_RESULT}{id}"

    def _id(self, channel: bytes) -> str:
        """The id in a key; empty: it is no result's."""
        _, found, id = channel.decode().partition(f"{self._prefix}{_RESULT}")
        return id if found else ""

    def _stored(self, data: bytes) -> protocol.Result | ft.Failure:
        headers: dict[str, Any] = {}
        if data.startswith(_PACKED):
            kind, _, data = data[len(_PACKED) :].partition(b"\0")
            headers["compression"] = kind.decode("utf-8", "replace")
        return self._decoded(Wire(headers, {}, self._content_type, "utf-8", data))


def _in_parts(found: Iterable[_T]) -> Iterable[list[_T]]:
    every = list(found)
    return (every[start : start + 1000] for start in range(0, len(every), 1000))


def redis_url(url: str) -> str:
    """The URL of a Redis as redis-py reads it, of one that Celery reads."""
    scheme, _, rest = url.partition(":")
    if scheme == "redis+socket":
        url = f"unix:{rest}"
    head, _, query = url.partition("?")
    return f"{head}?{_CERT.sub(lambda found: found[1].lower(), query)}" if query else url


def _redis_client(url: str) -> Any:
    try:
        import redis
        from redis import backoff, retry
    except ImportError as error:
        raise exceptions.TransportFailure(
            "results in a Redis need the library redis: install wbengine[redis]"
        ) from error
    known: dict[str, Any] = {"socket_timeout": 15.0, "socket_connect_timeout": 5.0}
    if not url.startswith("unix:"):
        known["socket_keepalive"] = True
    return redis.Redis.from_url(url, protocol=2, retry=retry.Retry(backoff.NoBackoff(), 0), **known)


# Failures. ----------------------------------------------------------------------------------------

#: What a failure that names one of Celery's is besides.
_OURS: Final[Mapping[tuple[str, str], type[BaseException]]] = {
    ("SoftTimeLimitExceeded", "billiard.exceptions"): exceptions.SoftTimeLimitExceeded,
    ("TimeLimitExceeded", "billiard.exceptions"): exceptions.TimeLimitExceeded,
    ("WorkerLostError", "billiard.exceptions"): exceptions.WorkerLost,
    ("Terminated", "billiard.exceptions"): exceptions.Cancelled,
    ("TaskRevokedError", "celery.exceptions"): exceptions.Cancelled,
    ("NotRegistered", "celery.exceptions"): exceptions.NotFound,
}
#: What Celery puts in the place of an exception that cannot be pickled.
_WRAPPER: Final = ("UnpickleableExceptionWrapper", "celery.utils.serialization")
_HEAD: Final = "Traceback (most recent call last):"
_LONGEST: Final = 65536
_PLAIN: Final = (str, bool, float, int, type(None))


def failure_of(result: protocol.Result) -> ft.Failure:
    """The failure that a result tells of; whatever is in it, there is one.

    Nothing is imported for it.  It names Celery's class, its bases as far as they are known here,
    and our own class that means the same (`WorkerLost` for `WorkerLostError`).
    """
    value, trace = result.result, _lines(result.traceback or "")
    if isinstance(value, BaseException):  # only pickle brings one
        found = ft.Failure.from_exception(value)
        return ft.Failure(
            (type(value), found.exception, None),
            exception_str=found.exception_str,
            exc_type_names=tuple(found),
            traceback_str=trace,
            exc_args=found.exception_args,
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
        exc_type_names=_names_of(kind, module),
        traceback_str=trace,
        exc_args=arguments if all(type(one) in _PLAIN for one in arguments) else (),
    )


def _names_of(kind: str, module: str) -> list[str]:
    """The names of a class and its bases, as far as they are known without importing anything."""
    found: Any = sys.modules.get(module or builtins.__name__)
    for part in kind.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, type) and issubclass(found, Exception):
        names = _bases(found)
    else:
        names = [kind if module in ("", "builtins") else f"{module}.{kind}", "Exception"]
    ours = _OURS.get((kind, module))
    return names if ours is None else [*names[:-1], *_bases(ours)]


def _bases(cls: type[BaseException]) -> list[str]:
    return [_names.dotted(base) for base in cls.__mro__[: cls.__mro__.index(Exception) + 1]]


def _lines(trace: str) -> str:
    """A traceback without its first line and the exception behind it, as failures have it."""
    head, found, rest = trace.rpartition(f"{_HEAD}\n")
    if head or not found:
        return trace[:_LONGEST]  # one with its causes, or what is no traceback
    lines = rest.splitlines()
    while lines and not lines[-1].startswith(" "):
        lines.pop()
    return "\n".join(lines)[:_LONGEST]


def _word(value: Any) -> str:
    return value[:500] if isinstance(value, str) else ""


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)
