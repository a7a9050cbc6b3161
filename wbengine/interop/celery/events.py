"""Encoding and decoding of Celery's event messages.

An event is published once to the current subscribers, and may be lost. It is a mapping with six
standard fields (`STANDARD`) and fields that depend on its type (`CATALOGUE`). A message is UTF-8
JSON and contains one mapping or a list of mappings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from wbengine import exceptions
from wbengine._text import json_text
from wbengine.interop.celery import _protocol, _serializers
from wbengine.interop.celery._protocol import Field, Kind, Malformed

__all__ = [
    "CATALOGUE", "EXCHANGE", "SCHEMA", "STANDARD", "Event", "decode", "encode",
    "exchange_type", "utcoffset",
]  # fmt: skip

#: Default exchange; Celery's setting `event_exchange` overrides it.
EXCHANGE: Final = "celeryev"
#: Delivery mode: the broker does not store events on disk.
TRANSIENT: Final = 1
CONTENT_ENCODING: Final = "utf-8"
MAX_EVENT_BYTES: Final = 16 << 20

#: Brokers on which the event exchange delivers each event to all subscribers.
_FANOUT: Final = frozenset(("redis", "gcpubsub"))

_NAME: Final = Kind("string", {"type": "string", "minLength": 1, "maxLength": 1000})
_UNSIGNED: Final = Kind(
    "unsigned long long", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
)
_TIMESTAMP: Final = Kind("float", {"type": "number", "minimum": -1e12, "maximum": 1e12})
_HOURS: Final = Kind("signed short", {"type": "number", "minimum": -48, "maximum": 48})

_CALL: Final = (
    "uuid", "name", "args", "kwargs", "retries", "eta", "expires", "root_id", "parent_id",
)  # fmt: skip
_FAILED: Final = ("uuid", "exception", "traceback")
_WORKER: Final = ("freq", "active", "processed", "loadavg", "sw_ident", "sw_ver", "sw_sys")

#: Event types in chronological order, with their additional fields.
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
    """One event. `fields` contains all fields except the standard ones, of any name.

    `clock`, `utcoffset` and `pid` are None if the sender omitted them, as some senders do.
    """

    type: Annotated[str, _NAME]
    hostname: Annotated[str, _NAME]
    clock: Annotated[int | None, _UNSIGNED]
    timestamp: Annotated[float, _TIMESTAMP]
    utcoffset: Annotated[float | None, _HOURS] = None
    pid: Annotated[int | None, _UNSIGNED] = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The part of the type before the first dash: `task`, `worker`, ..."""
        return self.type.partition("-")[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the event as the mapping that messages contain."""
        return {field.name: getattr(self, field.name) for field in STANDARD} | dict(self.fields)


STANDARD: Final = _protocol.table(Event, required=("type", "hostname", "timestamp"))
_ABOUT_TASK: Final = (*STANDARD, Field("uuid", _NAME, required=True))

_EVENT_SCHEMA: Final = _protocol.schema(STANDARD) | {
    "if": {"properties": {"type": {"pattern": "^task-"}}, "required": ["type"]},
    "then": {"properties": {"uuid": _NAME.schema}, "required": ["uuid"]},
}
#: The JSON Schema of a message body.
SCHEMA: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"event": _EVENT_SCHEMA},
    "oneOf": [
        {"$ref": "#/$defs/event"},
        {"type": "array", "items": {"$ref": "#/$defs/event"}},
    ],
}


def utcoffset() -> float:
    """Return the hours that local time is *behind* UTC, as Celery sends them.

    Examples: -2 for Helsinki in winter, 5 for New York in winter. (Celery's documentation has the
    opposite sign.) A whole number is an int.
    """
    seconds = time.altzone if time.localtime().tm_isdst > 0 else time.timezone
    hours, remainder = divmod(seconds, 3600)
    return seconds / 3600 if remainder else hours


def exchange_type(driver: str | None) -> str:
    """Return the type of the event exchange for brokers of this kind (kombu's `driver_type`)."""
    return "fanout" if driver in _FANOUT else "topic"


def encode(events: Event | Sequence[Event]) -> tuple[_serializers.Wire, str]:
    """Return the message, and its routing key, of an event or of several events of one group.

    :raises ValueError: if there are no events, if they belong to several groups, or if JSON cannot
        represent a value (NaN, cycles).
    :raises TypeError: if JSON does not support the type of a value.
    """
    body: Any
    if isinstance(events, Event):
        first, body, key = events, events.as_dict(), events.type.replace("-", ".")
    else:
        if not events or len({event.group for event in events}) > 1:
            raise ValueError(
                "an event message must contain at least one event, all of the same group"
            )
        first, body = events[0], [event.as_dict() for event in events]
        key = f"{first.group}.multi"
    try:
        # JSON can escape lone surrogates, but UTF-8 cannot encode them. "replace" writes "?".
        data = json_text.encode(body, "replace")
    except RecursionError:
        raise ValueError("an event is nested too deeply") from None
    headers, properties = {"hostname": first.hostname}, {"delivery_mode": TRANSIENT}
    wire = _serializers.Wire(headers, properties, _serializers.JSON, CONTENT_ENCODING, data)
    return wire, key


def decode(wire: _serializers.Wire) -> list[Event]:
    """Return the events of a message, in order.

    :raises ~wbengine.exceptions.InvalidFormat: if the message is not an event message, or contains
        an invalid event (`Malformed`).
    """
    if _serializers.type_of(wire) != _serializers.JSON:
        raise Malformed(
            f"the content type of events must be {_serializers.JSON},"
            f" got {wire.content_type!r:.100}"
        )
    try:
        tree, _ = json_text.parse(wire.unpacked(MAX_EVENT_BYTES))
    except exceptions.InvalidFormat as error:
        raise Malformed(str(error)) from None
    return [_read(item) for item in (tree if isinstance(tree, list) else [tree])]


_STANDARD_NAMES: Final = frozenset(one.name for one in STANDARD)


def _read(item: Any) -> Event:
    if not isinstance(item, dict):
        raise Malformed(f"an event must be a mapping, got {item!r:.80}")
    about_task = str(item.get("type")).startswith("task-")
    standard = _protocol.read(_ABOUT_TASK if about_task else STANDARD, item)
    standard.pop("uuid", None)
    other_fields = {key: value for key, value in item.items() if key not in _STANDARD_NAMES}
    return Event(clock=standard.pop("clock", None), **standard, fields=other_fields)
