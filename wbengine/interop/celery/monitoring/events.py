"""Celery's event messages: what is in them, written and read.

An event is told once, to whoever listens: nobody waits for it, and it may get lost.  It is a
mapping with seven fields that all have (`STANDARD`), and more by its type (`CATALOGUE`).  A message
is UTF-8 JSON always, and holds one mapping, or a list of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import _json_text, exceptions
from wbengine.interop.celery.protocol import wire as wires

__all__ = [
    "CATALOGUE",
    "EXCHANGE",
    "STANDARD",
    "Event",
    "Field",
    "Kind",
    "MalformedEvent",
    "decode",
    "encode",
    "exchange_type",
    "routing_key",
    "utcoffset",
]

#: Where events go, unless Celery's `event_exchange` says something else.
EXCHANGE: Final = "celeryev"

#: They are not worth a broker's disk.
TRANSIENT: Final = 1

CONTENT_TYPE: Final = "application/json"
CONTENT_ENCODING: Final = "utf-8"

#: So many bytes may a message of events have.
MAX_SIZE: Final = 16 << 20

#: So many characters may the names in an event have.
_MAX_NAME: Final = 1000

#: Brokers that send what is published to everybody who listens, whatever the routing key.
_FANOUT: Final = frozenset(("redis", "gcpubsub"))


class MalformedEvent(exceptions.InvalidFormat):
    """A message is no event message, or an event in it is none."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of events: its name, its type in JSON, and what it says."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of event: when it is told, and what it says besides the standard fields."""

    type: str
    when: str
    fields: tuple[Field, ...]


STANDARD: Final[tuple[Field, ...]] = (
    Field("type", "string", "group and action, as in `task-succeeded`"),
    Field("hostname", "string", "name of the node that tells it, as in `celery@host`"),
    Field("clock", "unsigned long long", "Lamport time stamp; null: the sender keeps none"),
    Field("timestamp", "float", "when it happened, in unix seconds"),
    Field(
        "utcoffset",
        "signed short",
        "hours that the sender's local time is behind UTC (-2 is two hours east of it); with a"
        " fraction where its zone has one",
    ),
    Field("pid", "unsigned long long", "id of the process that tells it"),
)

_UUID: Final = Field("uuid", "string", "id of the task")
_EXCEPTION: Final = (
    Field("exception", "string", "`repr` of the exception"),
    Field("traceback", "string", "its traceback, as Python prints it"),
)
_CALL: Final = (
    _UUID,
    Field("name", "string", "name of the task"),
    Field("args", "string", "`repr` of the positional arguments, cut where it is long"),
    Field("kwargs", "string", "`repr` of the keyword arguments, cut where it is long"),
    Field("retries", "int", "how often it was tried again before"),
    Field("eta", "string", "ISO 8601: not to be run before; null: at once"),
    Field("expires", "string", "ISO 8601: not to be run after; null: it never expires"),
    Field("root_id", "string", "id of the first task of the work-flow"),
    Field("parent_id", "string", "id of the task that sent it; null: a client did"),
)
_WORKER: Final = (
    Field("freq", "float", "seconds between two heartbeats"),
    Field("active", "int", "tasks that run"),
    Field("processed", "int", "tasks that began since the worker started"),
    Field("loadavg", "float[3]", "load of its host over 1, 5 and 15 minutes"),
    Field("sw_ident", "string", "what it is: `py-celery`, `py-wbengine`"),
    Field("sw_ver", "string", "its version"),
    Field("sw_sys", "string", "its operating system"),
)

#: What is told, in the order in which it happens.
CATALOGUE: Final[Mapping[str, Kind]] = {
    kind.type: kind
    for kind in (
        Kind(
            "task-sent",
            "a client or a task has sent a task message",
            (
                *_CALL,
                Field("queue", "string", "queue that it was sent to"),
                Field("exchange", "string", "exchange that it was sent to"),
                Field("routing_key", "string", "routing key that it was sent with"),
            ),
        ),
        Kind("task-received", "a worker has taken the message", _CALL),
        Kind("task-started", "the task begins to run", (_UUID,)),
        Kind(
            "task-succeeded",
            "it ended well",
            (
                _UUID,
                Field("result", "string", "`repr` of what it returned, cut where it is long"),
                Field("runtime", "float", "seconds that it ran"),
            ),
        ),
        Kind("task-failed", "it ended with an exception", (_UUID, *_EXCEPTION)),
        Kind(
            "task-rejected",
            "it was not run: the message went back, or away",
            (
                _UUID,
                Field("requeued", "bool", "whether the message went back to a queue"),
                Field("requeue", "bool", "the same, under the name that Celery's workers send"),
            ),
        ),
        Kind(
            "task-revoked",
            "it was not run, or not to its end: somebody revoked it, or it expired",
            (
                _UUID,
                Field("terminated", "bool", "whether it ran, and was ended"),
                Field("signum", "int", "signal that ended it; null: none, or it did not run"),
                Field("expired", "bool", "whether its time was up"),
            ),
        ),
        Kind("task-retried", "it failed, and was sent again for later", (_UUID, *_EXCEPTION)),
        Kind("worker-online", "the worker connected, and is ready", _WORKER),
        Kind("worker-heartbeat", "it still is, every `freq` seconds", _WORKER),
        Kind("worker-offline", "it said goodbye", _WORKER),
    )
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

    @property
    def action(self) -> str:
        """The part of the type after it: `succeeded`, `heartbeat`, ..."""
        return self.type.partition("-")[2]

    @property
    def uuid(self) -> str | None:
        """The id of its task, if it is about one."""
        uuid = self.fields.get("uuid")
        return uuid if isinstance(uuid, str) else None

    def as_dict(self) -> dict[str, Any]:
        """As in messages."""
        return {
            "type": self.type,
            "hostname": self.hostname,
            "clock": self.clock,
            "timestamp": self.timestamp,
            "utcoffset": self.utcoffset,
            "pid": self.pid,
            **self.fields,
        }


def utcoffset() -> float:
    """What Celery sends as such: the hours that local time is *behind* UTC, so -2 in Helsinki's
    winter and 5 in New York's; its documentation has the sign the other way round.

    An integer wherever the zone has whole hours.  No reader needs it to know when something
    happened: time stamps are in unix seconds.
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


def encode(events: Event | Sequence[Event]) -> tuple[wires.Wire, str]:
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
    wire = wires.Wire(
        headers={"hostname": first.hostname},
        properties={"delivery_mode": TRANSIENT},
        content_type=CONTENT_TYPE,
        content_encoding=CONTENT_ENCODING,
        body=data,
    )
    return wire, key


def decode(wire: wires.Wire, refused: Callable[[MalformedEvent], Any] | None = None) -> list[Event]:
    """The events of a message, in order.

    Of a list, those that are none are told to `refused`, if it is given, and left out.

    :raises MalformedEvent: it is no event message, or one of its events is none.
    """
    if wire.content_type != CONTENT_TYPE:
        raise MalformedEvent(f"events are {CONTENT_TYPE}, not {wire.content_type!r:.100}")
    try:
        tree, _, _ = _json_text.parse(wire.unpacked(MAX_SIZE))
    except exceptions.InvalidFormat as error:
        raise MalformedEvent(str(error)) from None
    if not isinstance(tree, list):
        return [_read(tree)]
    events = []
    for item in tree:
        try:
            events.append(_read(item))
        except MalformedEvent as error:
            if refused is None:
                raise
            refused(error)
    return events


_OF_ALL: Final = frozenset(each.name for each in STANDARD)


def _read(item: Any) -> Event:
    if type(item) is not dict:
        raise MalformedEvent(f"an event is a mapping, not {_shown(item)}")
    kind = item.get("type")
    if type(kind) is not str or not kind or len(kind) > _MAX_NAME:
        raise MalformedEvent(f"the type of an event is a name, not {_shown(kind)}")
    hostname = item.get("hostname")
    if type(hostname) is not str or not hostname or len(hostname) > _MAX_NAME:
        raise MalformedEvent(f"the hostname of a {kind} event is a name, not {_shown(hostname)}")
    uuid = item.get("uuid")
    about_task = kind.startswith("task-")
    if about_task and (type(uuid) is not str or not uuid or len(uuid) > _MAX_NAME):
        raise MalformedEvent(f"the uuid of a {kind} event is a name, not {_shown(uuid)}")
    timestamp = _number(item, "timestamp", kind, -1e12, 1e12)
    if timestamp is None:
        raise MalformedEvent(f"a {kind} event of {hostname} has no timestamp")
    return Event(
        kind,
        hostname,
        _whole(item, "clock", kind),
        timestamp,
        _number(item, "utcoffset", kind, -48, 48),
        _whole(item, "pid", kind),
        {key: value for key, value in item.items() if key not in _OF_ALL},
    )


def _whole(item: Mapping[str, Any], name: str, kind: str) -> int | None:
    value = item.get(name)
    if value is None or (type(value) is int and 0 <= value < 2**64):
        return value
    raise MalformedEvent(
        f"the {name} of a {kind} event is a whole number below 2**64, not {_shown(value)}"
    )


def _number(
    item: Mapping[str, Any], name: str, kind: str, least: float, most: float
) -> float | None:
    value = item.get(name)
    if value is None or (type(value) in (int, float) and least <= value <= most):
        return value
    raise MalformedEvent(
        f"the {name} of a {kind} event is from {least:g} to {most:g}, not {_shown(value)}"
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a very long number"
    return f"{value!r:.60}"
