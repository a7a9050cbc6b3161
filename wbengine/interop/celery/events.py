"""Celery's event messages: what is in them, written and read.

An event is told once, to those who listen, and may get lost.  It is a mapping with six fields that
all have (`STANDARD`), and more by its type (`CATALOGUE`).  A message is UTF-8 JSON always, and
holds one mapping, or a list of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from wbengine import _json_text, exceptions
from wbengine.interop.celery import protocol, serializers
from wbengine.interop.celery.protocol import Field, Kind, Malformed

__all__ = [
    "CATALOGUE", "EXCHANGE", "SCHEMA", "STANDARD", "Event", "decode", "encode",
    "exchange_type", "utcoffset",
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

_NAME: Final = Kind("string", {"type": "string", "minLength": 1, "maxLength": 1000})
_WHOLE: Final = Kind("unsigned long long", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1})
_WHEN: Final = Kind("float", {"type": "number", "minimum": -1e12, "maximum": 1e12})
_HOURS: Final = Kind("signed short", {"type": "number", "minimum": -48, "maximum": 48})

_CALL: Final = (
    "uuid", "name", "args", "kwargs", "retries", "eta", "expires", "root_id", "parent_id",
)  # fmt: skip
_FAILED: Final = ("uuid", "exception", "traceback")
_WORKER: Final = ("freq", "active", "processed", "loadavg", "sw_ident", "sw_ver", "sw_sys")

#: Event types, in the order in which they happen, and their fields besides the standard ones.
CATALOGUE: Final[Mapping[str, tuple[str, ...]]] = {
    "task-sent": (*_CALL, "queue", "exchange", "routing_key"),
    "task-received": _CALL,
    "task-started": ("uuid",),
    "task-succeeded": ("uuid", "result", "runtime"),
    "task-failed": _FAILED,
    "task-rejected": ("uuid", "requeued", "requeue"),
    "task-revoked": ("uuid", "terminated", "signum", "expired"),
    "task-retried": _FAILED,
    "worker-online": _WORKER,
    "worker-heartbeat": _WORKER,
    "worker-offline": _WORKER,
}


@dataclass(frozen=True, slots=True)
class Event:
    """One event.  `fields`: all but the standard ones; there may be any.

    `clock`, `utcoffset` and `pid` are None where the sender left them out, as some do.
    """

    type: Annotated[str, _NAME]
    hostname: Annotated[str, _NAME]
    clock: Annotated[int | None, _WHOLE]
    timestamp: Annotated[float, _WHEN]
    utcoffset: Annotated[float | None, _HOURS] = None
    pid: Annotated[int | None, _WHOLE] = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The part of the type before the first dash: `task`, `worker`, ..."""
        return self.type.partition("-")[0]

    def as_dict(self) -> dict[str, Any]:
        """As in messages."""
        return {one.name: getattr(self, one.name) for one in STANDARD} | dict(self.fields)


#: The fields that all events have.
STANDARD: Final = protocol.table(Event, required=("type", "hostname", "timestamp"))
_ABOUT_TASK: Final = (*STANDARD, Field("uuid", _NAME, required=True))

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


def utcoffset() -> float:
    """The hours that local time is *behind* UTC, as Celery sends them: -2 in Helsinki's winter and
    5 in New York's; its documentation has the sign the other way round.

    An integer wherever the zone has whole hours.
    """
    seconds = time.altzone if time.localtime().tm_isdst > 0 else time.timezone
    hours, rest = divmod(seconds, 3600)
    return seconds / 3600 if rest else hours


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
        first, body, key = events, events.as_dict(), events.type.replace("-", ".")
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


def decode(wire: serializers.Wire) -> list[Event]:
    """The events of a message, in order.

    :raises Malformed: it is no event message, or one of its events is none.
    """
    if serializers.type_of(wire) != serializers.JSON:
        raise Malformed(f"events are {serializers.JSON}, not {wire.content_type!r:.100}")
    try:
        tree, _ = _json_text.parse(wire.unpacked(LARGEST))
    except exceptions.InvalidFormat as error:
        raise Malformed(str(error)) from None
    return [_read(item) for item in (tree if isinstance(tree, list) else [tree])]


_OF_ALL: Final = frozenset(one.name for one in STANDARD)


def _read(item: Any) -> Event:
    if not isinstance(item, dict):
        raise Malformed(f"an event is a mapping, not {item!r:.80}")
    about_task = str(item.get("type")).startswith("task-")
    found = protocol.read(_ABOUT_TASK if about_task else STANDARD, item)
    found.pop("uuid", None)
    rest = {key: value for key, value in item.items() if key not in _OF_ALL}
    return Event(clock=found.pop("clock", None), **found, fields=rest)
