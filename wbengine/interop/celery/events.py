"""Celery's event messages: what is in them, written and read.

An event is told once, to those who listen, and may get lost.  It is a mapping with six fields that
all have (`STANDARD`), and more by its type (`CATALOGUE`).  A message is UTF-8 JSON always, and
holds one mapping, or a list of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import _json_text, exceptions
from wbengine.interop.celery import protocol, serializers
from wbengine.interop.celery.protocol import Kind, Malformed

__all__ = [
    "CATALOGUE", "EXCHANGE", "FIELDS", "SCHEMA", "STANDARD", "Event", "EventType", "Field",
    "decode", "encode", "exchange_type", "routing_key", "utcoffset",
]  # fmt: skip

#: Where events go, unless Celery's `event_exchange` says something else.
EXCHANGE: Final = "celeryev"
#: They are not worth a broker's disk.
TRANSIENT: Final = 1
CONTENT_ENCODING: Final = "utf-8"
#: Bytes of a message of events.
LARGEST: Final = 16 << 20

#: Brokers that send what is published to all who listen, whatever the routing key.
_FANOUT: Final = frozenset(("redis", "gcpubsub"))

Field = protocol.Field

_NAME: Final = Kind("string", {"type": "string", "minLength": 1, "maxLength": 1000})
_WHOLE: Final = Kind("unsigned long long", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1})
_WHEN: Final = Kind("float", {"type": "number", "minimum": -1e12, "maximum": 1e12})
_HOURS: Final = Kind("signed short", {"type": "number", "minimum": -48, "maximum": 48})
#: The fields of one type only are carried as they are.
_STRING, _FLOAT, _INT, _BOOL = (Kind(words, {}) for words in ("string", "float", "int", "bool"))

STANDARD: Final[tuple[Field, ...]] = (
    Field("type", _NAME, "group and action, as in `task-succeeded`", "required"),
    Field("hostname", _NAME, "name of the node that tells it, as in `celery@host`", "required"),
    Field("clock", _WHOLE, "Lamport time stamp; null: the sender keeps none"),
    Field("timestamp", _WHEN, "when it happened, in unix seconds", "required"),
    Field(
        "utcoffset",
        _HOURS,
        "hours that the sender's local time is behind UTC (-2 is two hours east of it); with a"
        " fraction where its zone has one",
    ),
    Field("pid", _WHOLE, "id of the process that tells it"),
)
_ABOUT_TASK: Final = (*STANDARD, Field("uuid", _NAME, "id of the task", "required"))

#: All fields of the types in the catalogue, by name.
FIELDS: Final[Mapping[str, Field]] = {
    one.name: one
    for one in (
        Field("uuid", _STRING, "id of the task"),
        Field("name", _STRING, "name of the task"),
        Field("args", _STRING, "`repr` of the positional arguments, cut where it is long"),
        Field("kwargs", _STRING, "`repr` of the keyword arguments, cut where it is long"),
        Field("retries", _INT, "how often it was tried again before"),
        Field("eta", _STRING, "ISO 8601: not to be run before; null: at once"),
        Field("expires", _STRING, "ISO 8601: not to be run after; null: it never expires"),
        Field("root_id", _STRING, "id of the first task of the work-flow"),
        Field("parent_id", _STRING, "id of the task that sent it; null: a client did"),
        Field("queue", _STRING, "queue that it was sent to"),
        Field("exchange", _STRING, "exchange that it was sent to"),
        Field("routing_key", _STRING, "routing key that it was sent with"),
        Field("result", _STRING, "`repr` of what it returned, cut where it is long"),
        Field("runtime", _FLOAT, "seconds that it ran"),
        Field("exception", _STRING, "`repr` of the exception"),
        Field("traceback", _STRING, "its traceback, as Python prints it"),
        Field("requeued", _BOOL, "whether the message went back to a queue"),
        Field("requeue", _BOOL, "the same, under the name that Celery's workers send"),
        Field("terminated", _BOOL, "whether it ran, and was ended"),
        Field("signum", _INT, "signal that ended it; null: none, or it did not run"),
        Field("expired", _BOOL, "whether its time was up"),
        Field("freq", _FLOAT, "seconds between two heartbeats"),
        Field("active", _INT, "tasks that run"),
        Field("processed", _INT, "tasks that began since the worker started"),
        Field("loadavg", Kind("float[3]", {}), "load of its host over 1, 5 and 15 minutes"),
        Field("sw_ident", _STRING, "what it is: `py-celery`"),
        Field("sw_ver", _STRING, "its version"),
        Field("sw_sys", _STRING, "its operating system"),
    )
}


@dataclass(frozen=True, slots=True)
class EventType:
    """A type of event: when it is told, and its fields besides the standard ones."""

    type: str
    when: str
    fields: tuple[Field, ...]


def _type(name: str, when: str, *names: str) -> tuple[str, EventType]:
    return name, EventType(name, when, tuple(FIELDS[one] for one in names))


_CALL: Final = (
    "uuid", "name", "args", "kwargs", "retries", "eta", "expires", "root_id", "parent_id",
)  # fmt: skip
_FAILED: Final = ("uuid", "exception", "traceback")
_WORKER: Final = ("freq", "active", "processed", "loadavg", "sw_ident", "sw_ver", "sw_sys")

#: Event types, in the order in which they happen.
CATALOGUE: Final[Mapping[str, EventType]] = dict(
    (
        _type(
            "task-sent", "a client or a task has sent a task message",
            *_CALL, "queue", "exchange", "routing_key",
        ),
        _type("task-received", "a worker has taken the message", *_CALL),
        _type("task-started", "the task begins to run", "uuid"),
        _type("task-succeeded", "it ended well", "uuid", "result", "runtime"),
        _type("task-failed", "it ended with an exception", *_FAILED),
        _type(
            "task-rejected", "it was not run: the message went back, or away",
            "uuid", "requeued", "requeue",
        ),
        _type(
            "task-revoked", "it was not run, or not to its end: it was revoked, or it expired",
            "uuid", "terminated", "signum", "expired",
        ),
        _type("task-retried", "it failed, and was sent again for later", *_FAILED),
        _type("worker-online", "the worker connected, and is ready", *_WORKER),
        _type("worker-heartbeat", "it still is, every `freq` seconds", *_WORKER),
        _type("worker-offline", "it said goodbye", *_WORKER),
    )
)  # fmt: skip

_EVENT_SCHEMA: Final = protocol.schema(STANDARD) | {
    "if": {"properties": {"type": {"pattern": "^task-"}}, "required": ["type"]},
    "then": {"properties": {"uuid": _NAME.schema}, "required": ["uuid"]},
}
#: The JSON Schema of a message's body.
SCHEMA: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"event": _EVENT_SCHEMA},
    "oneOf": [
        {"$ref": "#/$defs/event"},
        {"type": "array", "items": {"$ref": "#/$defs/event"}},
    ],
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event.  `fields`: all but the standard ones; there may be any.

    `clock`, `utcoffset` and `pid` are None where the sender left them out, as some do.
    """

    type: str
    hostname: str
    clock: int | None
    timestamp: float
    utcoffset: float | None = None
    pid: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The part of the type before the first dash: `task`, `worker`, ..."""
        return self.type.partition("-")[0]

    def as_dict(self) -> dict[str, Any]:
        """As in messages."""
        return {one.name: getattr(self, one.name) for one in STANDARD} | dict(self.fields)


def utcoffset() -> float:
    """The hours that local time is *behind* UTC, as Celery sends them: -2 in Helsinki's winter and
    5 in New York's; its documentation has the sign the other way round.

    An integer wherever the zone has whole hours.
    """
    seconds = time.altzone if time.localtime().tm_isdst > 0 else time.timezone
    hours, rest = divmod(seconds, 3600)
    return seconds / 3600 if rest else hours


def routing_key(event_type: str) -> str:
    """What a message with one event of this type is published with: `task.succeeded`."""
    return event_type.replace("-", ".")


def exchange_type(driver: str | None) -> str:
    """The type of the exchange of events on brokers of this kind (kombu's `driver_type`)."""
    return "fanout" if driver in _FANOUT else "topic"


def encode(events: Event | Sequence[Event]) -> tuple[serializers.Wire, str]:
    """The message of an event, or of several of one group, and its routing key.

    Several have the key of their group, as in `task.multi`.

    :raises ValueError: there is none, they are of several groups, or they hold what JSON cannot
        (NaN, cycles).
    :raises TypeError: they hold what JSON cannot.
    """
    body: Any
    if isinstance(events, Event):
        first, body, key = events, events.as_dict(), routing_key(events.type)
    else:
        if not events or len({event.group for event in events}) > 1:
            raise ValueError("a message of events has one or more of one group")
        first, body = events[0], [event.as_dict() for event in events]
        key = f"{first.group}.multi"
    try:
        # JSON has lone surrogates as escapes, UTF-8 has not: there they are question marks.
        data = _json_text.encode(body, "replace")
    except RecursionError:
        raise ValueError("an event is nested too deeply") from None
    headers, properties = {"hostname": first.hostname}, {"delivery_mode": TRANSIENT}
    wire = serializers.Wire(headers, properties, serializers.JSON, CONTENT_ENCODING, data)
    return wire, key


def decode(
    wire: serializers.Wire, refused: Callable[[Malformed], Any] | None = None
) -> list[Event]:
    """The events of a message, in order.

    Of a list, those that are none are told to `refused`, if it is given, and left out.

    :raises Malformed: it is no event message, or one of its events is none.
    """
    if serializers.type_of(wire) != serializers.JSON:
        raise Malformed(f"events are {serializers.JSON}, not {wire.content_type!r:.100}")
    try:
        tree, _, _ = _json_text.parse(wire.unpacked(LARGEST))
    except exceptions.InvalidFormat as error:
        raise Malformed(str(error)) from None
    if not isinstance(tree, list):
        return [_read(tree)]
    events = []
    for item in tree:
        try:
            events.append(_read(item))
        except Malformed as error:
            if refused is None:
                raise
            refused(error)
    return events


_OF_ALL: Final = frozenset(one.name for one in STANDARD)


def _read(item: Any) -> Event:
    if not isinstance(item, dict):
        raise Malformed(f"an event is a mapping, not {item!r:.80}")
    about_task = str(item.get("type")).startswith("task-")
    found = protocol.read(_ABOUT_TASK if about_task else STANDARD, item)
    found.pop("uuid", None)
    rest = {key: value for key, value in item.items() if key not in _OF_ALL}
    return Event(clock=found.pop("clock", None), **found, fields=rest)
