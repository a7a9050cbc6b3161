"""Celery's message protocol: task messages of versions 1 and 2, and result messages.

Pure: messages are read from a `Wire`, and written to one; nothing is imported that they name, and
Celery is not needed.  Every field is a row of a table here; the tables make the readers, the JSON
Schemas and the reference.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from wbengine import exceptions, limits
from wbengine.interop.celery.serializers import JSON, RAW, Accepted, Wire, dump, name_of, type_of

__all__ = [
    "ARGUMENTS", "EMBED", "HEADERS", "PROPERTIES", "RESULT", "RESULT_SCHEMA", "TASK_V1_SCHEMA",
    "TASK_V2_SCHEMA", "VERSION_1", "Field", "Malformed", "Result", "TaskMessage", "decode",
    "decode_result", "encode", "encode_result", "is_version_2", "read", "schema",
]  # fmt: skip


class Malformed(exceptions.InvalidFormat):
    """A message has a field that is missing, or not what it must be; `field` names it."""

    field: str = ""

    def __init__(
        self, message: str = "", cause: BaseException | None = None, *, field: str = ""
    ) -> None:
        super().__init__(message, cause)
        self.field = field


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A call of a task, in either version of the protocol; the tables describe its fields."""

    task: str
    id: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    lang: str = "py"
    meth: str | None = None
    shadow: str | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    #: Not before, and not after, these times, which are in UTC.
    eta: dt.datetime | None = None
    expires: dt.datetime | None = None
    retries: int = 0
    #: (soft, hard), in seconds; on the wire the hard one is first.
    timelimit: limits.TimeLimit = limits.UNLIMITED
    argsrepr: str | None = None
    kwargsrepr: str | None = None
    origin: str | None = None
    replaced_task_nesting: int = 0
    ignore_result: bool = False
    stamped_headers: Sequence[str] | None = None
    stamps: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[Mapping[str, Any]] = ()
    errbacks: Sequence[Mapping[str, Any]] = ()
    #: The rest of a chain, its next task last.
    chain: Sequence[Mapping[str, Any]] = ()
    chord: Mapping[str, Any] | None = None
    reply_to: str | None = None
    #: None: the same as `id`.
    correlation_id: str | None = None
    priority: int | None = None
    #: The body was raw data, which is the single argument.
    raw: bool = False
    protocol: Literal[1, 2] = 2
    #: Headers that are none of the protocol's.
    extra: Mapping[str, Any] = field(default_factory=dict)
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Result:
    """The state of one task, as workers send it, or keep it in a result backend.

    `result` is the value; of a failure, `exc_type`, `exc_message` (its arguments) and `exc_module`.
    The fields from `name` on are those of extended results; `extra` holds further ones, as stamps.
    """

    task_id: str
    status: str
    result: Any = None
    traceback: str | None = None
    #: The tasks that it sent, each as Celery's `AsyncResult.as_tuple()` gives it.
    children: Sequence[Any] = ()
    date_done: dt.datetime | None = None
    group_id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    args: Any = None
    kwargs: Any = None
    worker: str | None = None
    retries: int | None = None
    queue: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


# Times. -------------------------------------------------------------------------------------------

_TIME: Final = re.compile(
    r"(?P<year>\d{4})"
    r"(?:-?W(?P<week>\d\d)-?(?P<weekday>[1-7])|-(?P<month>\d\d)-(?P<day>\d\d)|(?P<short>\d{4}))"
    r"(?:[T ](?P<hour>\d\d)(?::?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<part>\d+))?)?)?"
    r"(?P<zone>Z|[+-]\d\d(?::?\d\d(?::?\d\d(?:\.\d+)?)?)?)?)?",
    re.ASCII | re.IGNORECASE,
)


def _time(words: str) -> dt.datetime | None:
    """The time that ISO 8601 words tell, with a zone if they name one; None of no words.

    Dates may be `2009-11-17`, `20091117` or `2009-W47-2`, times have hours and as much more as is
    there, zones are `Z` or an offset.

    :raises ValueError: they tell none.
    """
    if not words:
        return None
    found = _TIME.fullmatch(words)
    if found is None:
        raise ValueError(f"{words!r} is no time in ISO 8601")
    year, short = int(found["year"]), found["short"] or f"{found['month']}{found['day']}"
    if found["week"]:
        day = dt.date.fromisocalendar(year, int(found["week"]), int(found["weekday"]))
    else:
        day = dt.date(year, int(short[:2]), int(short[2:]))
    hour, minute, second = (int(found[key] or 0) for key in ("hour", "minute", "second"))
    micro = int((found["part"] or "0")[:6].ljust(6, "0"))
    midnight = (hour, minute, second, micro) == (24, 0, 0, 0)
    time = dt.time(0 if midnight else hour, minute, second, micro, _zone(found["zone"]))
    return dt.datetime.combine(day, time) + dt.timedelta(days=midnight)


def _zone(words: str | None) -> dt.timezone | None:
    if not words:
        return None
    plain = words[1:].replace(":", "")
    hours, minutes, seconds = (int(plain[at : at + 2] or 0) for at in (0, 2, 4))
    offset = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return dt.timezone(-offset if words[0] == "-" else offset)


def _text(time: dt.datetime | None) -> str | None:
    return None if time is None else time.isoformat()


# Fields. ------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A type of values: in words, as JSON Schema, and how a value that fits is read."""

    words: str
    schema: Mapping[str, Any]
    read: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a message, and the attribute that holds it; by default of the same name.

    A field that is missing, or null, says `missing`; one with 'required' there must be there.
    """

    name: str
    kind: Kind
    meaning: str
    missing: str = "none"
    since: str = ""
    unit: str = ""
    attribute: str = ""

    @property
    def required(self) -> bool:
        """Whether the message makes no sense without it."""
        return self.missing == "required"


def _limit(pair: Sequence[float | None]) -> limits.TimeLimit:
    """0 is no limit; a soft limit that is not below the hard one could never come.

    :raises ValueError: one is not a number.
    """
    if any(one != one for one in pair):
        raise ValueError("NaN is no limit")
    hard, soft = (float(one) if one and 0 < one < 1e9 else None for one in pair)
    if soft is not None and hard is not None and soft >= hard:
        soft = None
    return limits.TimeLimit(soft, hard)


def _several(value: Any) -> tuple[Any, ...]:
    """One signature may stand for a list of one, as Celery's own reader takes it."""
    return (dict(value),) if isinstance(value, Mapping) else tuple(value)


def _string(words: str, longest: int) -> Kind:
    return Kind(words, {"type": "string", "maxLength": longest}, _word)


def _word(value: str) -> str | None:
    """
    :raises ValueError: half of a pair is in it, which cannot travel on.
    """
    value.encode("utf-8")
    return value or None


_CALLED: Final = {
    "properties": {
        "task": {"type": "string", "minLength": 1, "maxLength": 1000},
        "args": {"type": ["array", "null"]},
        "kwargs": {"type": ["object", "null"]},
        "options": {"type": ["object", "null"]},
        "subtask_type": {"type": ["string", "null"]},
        "immutable": {"type": ["boolean", "null"]},
    },
    "required": ["task"],
    "propertyNames": {"type": "string"},
}
_SIGNATURE: Final = {"type": "object", **_CALLED}

ID: Final = _string("id", 255)
WORD: Final = _string("string", 1000)
TEXT: Final = _string("string", 1_000_000)
BOOLEAN: Final = Kind("boolean", {"type": "boolean"})
COUNT: Final = Kind("integer", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1})
TIME: Final = Kind("time (ISO 8601)", {"type": "string", "maxLength": 64}, _time)
TIMELIMIT: Final = Kind(
    "[hard, soft]: numbers or null",
    {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {"type": ["number", "null"], "minimum": 0},
    },
    _limit,
)
LIST: Final = Kind("list", {"type": "array"}, tuple)
MAPPING: Final = Kind("mapping", {"type": "object", "propertyNames": {"type": "string"}}, dict)
STRINGS: Final = Kind("list of strings", {"type": "array", "items": {"type": "string"}}, tuple)
SIGNATURE: Final = Kind("signature", _SIGNATURE, dict)
SIGNATURES: Final = Kind(
    "list of signatures", {"type": ["array", "object"], "items": _SIGNATURE, **_CALLED}, _several
)
ANY: Final = Kind("value", {})

_F = Field

#: Message properties, of both versions.
PROPERTIES: Final = (
    _F(
        "correlation_id", ID,
        "The id of the call again; answers carry it. In version 2 it is the id where the header"
        " `id` is missing.",
        "the id",
    ),
    _F("reply_to", TEXT, "The queue, or address, that the result is sent to."),
)  # fmt: skip

_ETA: Final = "It is not run before this time."
_EXPIRES: Final = "After this time it is not run any more, and its state becomes REVOKED."
_RETRIES: Final = _F("retries", COUNT, "How often the call was sent again.", "0")

#: The headers of version 2.
HEADERS: Final = (
    _F(
        "lang", WORD,
        "The language of the workers that it is for; a worker hands on, or rejects, messages for"
        " others.",
        "py",
    ),
    _F(
        "task", WORD, "The name of the task. A message with this header is of version 2.",
        "required",
    ),
    _F("id", ID, "The id of the call, usually a UUID.", "the correlation id"),
    _F("root_id", ID, "The id of the first call of the work-flow.", "the id"),
    _F("parent_id", ID, "The id of the call that sent this one."),
    _F("group", ID, "The id of the group that the call is a part of."),
    _F(
        "group_index", COUNT,
        "Its place in the group: a chord's body gets the results in this order.", since="4.4",
    ),
    _F(
        "meth", WORD,
        "The name of a method of the task. It is carried; Python's workers do not use it.",
    ),
    _F("shadow", WORD, "Another name of the task, for logs and monitors."),
    _F("eta", TIME, _ETA, unit="UTC without a zone"),
    _F("expires", TIME, _EXPIRES, unit="UTC without a zone"),
    _RETRIES,
    _F(
        "timelimit", TIMELIMIT,
        "After the soft limit SoftTimeLimitExceeded is raised in the task, after the hard one it is"
        " ended. The hard one is first.",
        "no limits", "3.1", "seconds",
    ),
    _F("argsrepr", TEXT, "The positional arguments, for logs and monitors."),
    _F("kwargsrepr", TEXT, "The keyword arguments, for logs and monitors."),
    _F("origin", WORD, "The name of the node that sent it."),
    _F(
        "replaced_task_nesting", COUNT,
        "How often tasks of this line replaced themselves by others.", "0", "5.1",
    ),
    _F(
        "ignore_result", BOOLEAN,
        "Whether its result is neither stored nor sent.", "false", "5.1",
    ),
    _F("stamped_headers", STRINGS, "The names of its stamps.", since="5.3"),
    _F(
        "stamps", MAPPING,
        "The values of its stamps, by name: many calls are revoked at once by them.", since="5.3",
    ),
)  # fmt: skip

#: The first two parts of a body of version 2.
ARGUMENTS: Final = (
    _F("args", LIST, "The positional arguments.", "no arguments"),
    _F("kwargs", MAPPING, "The keyword arguments.", "no arguments"),
)

_CALLBACKS: Final = "They are called with the result after success (`link`)."
_ERRBACKS: Final = _F("errbacks", SIGNATURES, "They are called after failure (`link_error`).")
_CHORD: Final = (
    "The body of the chord that this call is a part of: it is called with all results once all"
    " parts of the group have ended."
)

#: The third part of a body of version 2.
EMBED: Final = (
    _F("callbacks", SIGNATURES, _CALLBACKS),
    _ERRBACKS,
    _F(
        "chain", SIGNATURES,
        "The rest of the chain, the next one last: it is taken off, and sent with those before it.",
    ),
    _F("chord", SIGNATURE, _CHORD),
)  # fmt: skip

#: Of version 1's body, but of no message: how its times are read.
UTC: Final = _F(
    "utc", BOOLEAN,
    "Whether times without a zone are in UTC; else they are in the reader's local zone.",
    "true", "2.5",
)  # fmt: skip

#: The body of version 1: everything.
VERSION_1: Final = (
    _F("task", WORD, "The name of the task.", "required"),
    _F("id", ID, "The id of the call, usually a UUID.", "required"),
    *ARGUMENTS,
    _RETRIES,
    _F("eta", TIME, _ETA, unit="as `utc` says, without a zone"),
    _F("expires", TIME, _EXPIRES, since="2.0.2", unit="as `utc` says, without a zone"),
    _F("group", ID, "The same as `taskset`, where that is missing.", since="3.0"),
    _F("taskset", ID, "The id of the group that the call is a part of.", attribute="group"),
    _F("group_index", COUNT, "Its place in the group.", since="4.4"),
    _F("chord", SIGNATURE, _CHORD, since="2.3"),
    _F(
        "callbacks", SIGNATURES,
        f"{_CALLBACKS} A chain is one callback inside another.", since="3.0",
    ),
    _F("errbacks", SIGNATURES, _ERRBACKS.meaning, since="3.0"),
    _F(
        "timelimit", TIMELIMIT, "As in version 2, the hard one first.",
        "no limits", "3.1", "seconds",
    ),
)  # fmt: skip

#: Results.
RESULT: Final = (
    _F("task_id", ID, "The id of the call.", "required"),
    _F("status", WORD, "STARTED, RETRY, SUCCESS, FAILURE, REVOKED, or a task's own.", "required"),
    _F(
        "result", ANY,
        "The value; of a failure a mapping of `exc_type`, `exc_message` (its arguments) and"
        " `exc_module`.",
    ),
    _F("traceback", TEXT, "Of a failure, as Python prints it."),
    _F("children", LIST, "The calls that it sent, as `AsyncResult.as_tuple()` gives them."),
    _F("date_done", TIME, "When it ended.", unit="UTC without a zone"),
    _F("group_id", ID, "The id of the group that the call is a part of."),
    _F("parent_id", ID, "The id of the call that sent this one."),
    _F("name", WORD, "Extended results: the name of the task."),
    _F("args", ANY, "Extended results: its positional arguments."),
    _F("kwargs", ANY, "Extended results: its keyword arguments."),
    _F("worker", WORD, "Extended results: the worker that ran it."),
    _F("retries", COUNT, "Extended results: how often the call was sent again."),
    _F("queue", WORD, "Extended results: the routing key that it came by."),
)  # fmt: skip

_Table = tuple[Field, ...]


def schema(table: _Table) -> dict[str, Any]:
    """A JSON Schema of a mapping with these fields, of which those that may be missing may be null;
    others may be in it."""
    known = {}
    for one in table:
        found = {"description": one.meaning, **one.kind.schema}
        if "type" in found and not one.required:
            kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
            found["type"] = [*kinds, "null"]
        known[one.name] = found
    required = [one.name for one in table if one.required]
    return {"type": "object", "properties": known, "required": required}


_DIALECT: Final = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

#: JSON Schemas of whole messages: their properties, headers and decoded bodies.
TASK_V2_SCHEMA: Final = _DIALECT | {
    "type": "object",
    "properties": {
        "properties": schema(PROPERTIES),
        "headers": schema(HEADERS),
        "body": {
            "type": "array",
            "minItems": 3,
            "maxItems": 3,
            "prefixItems": [
                *(schema(ARGUMENTS)["properties"][one.name] for one in ARGUMENTS),
                schema(EMBED) | {"type": ["object", "null"]},
            ],
        },
    },
    "required": ["properties", "headers", "body"],
}
TASK_V1_SCHEMA: Final = _DIALECT | {
    "type": "object",
    "properties": {"properties": schema(PROPERTIES), "body": schema((*VERSION_1, UTC))},
    "required": ["properties", "body"],
}
RESULT_SCHEMA: Final = _DIALECT | schema(RESULT)


@functools.cache
def _validator(table: _Table) -> Any:
    import jsonschema  # takes a while, and who only sends does not need it

    draft = jsonschema.Draft202012Validator
    checker = draft.TYPE_CHECKER.redefine_many(
        {
            "array": lambda _, value: isinstance(value, list | tuple | set | frozenset),
            "object": lambda _, value: isinstance(value, Mapping),
            "integer": lambda _, value: type(value) is int,
        }
    )
    extend: Any = jsonschema.validators.extend
    return extend(draft, type_checker=checker)(schema(table))


def read(table: _Table, source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mapping, by attributes; those that are missing, or null, are left out.

    :raises Malformed: a field is missing, or not what it must be.
    """
    given = {
        one.name: _text(value) if isinstance(value, dt.datetime) else value
        for one in table
        if (value := source.get(one.name)) is not None
    }
    try:
        error = next(_validator(table).iter_errors(given), None)
    except (RecursionError, ValueError):  # a value that cannot even be shown
        raise _too_deep(given) from None
    if error is not None:
        raise _malformed(table, error)
    found: dict[str, Any] = {}
    for one in table:
        if one.name in given:
            try:
                value = one.kind.read(given[one.name])
            except (ValueError, OverflowError):
                said = f"{one.name} must be a {one.kind.words}, not {_shown(given[one.name])}"
                raise Malformed(said, field=one.name) from None
            if value is not None:
                found[one.attribute or one.name] = value
        if one.required and one.name not in found:
            raise Malformed(f"{one.name} is missing, or empty", field=one.name)
    return found


def _too_deep(given: Mapping[str, Any]) -> Malformed:
    for name, value in given.items():
        try:
            repr(value)
        except (RecursionError, ValueError):
            return Malformed(f"{name} is too deep, or has too large a number", field=name)
    return Malformed("a field is too deep")


#: What a value must be, by the keyword of JSON Schema that it breaks.
_MUST: Final = {
    "minimum": "be at least {}",
    "maximum": "be at most {}",
    "minLength": "have at least {} character",
    "maxLength": "have at most {} characters",
    "minItems": "have {} parts",
    "maxItems": "have {} parts",
}


def _malformed(table: _Table, error: Any) -> Malformed:
    path, rule, value = list(error.absolute_path), error.validator, error.validator_value
    if rule == "required":
        path.append(next(name for name in value if name not in error.instance))
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    name = name[1:200]
    if rule == "required":
        return Malformed(f"{name} is missing", field=name)
    words = " or ".join([value] if isinstance(value, str) else value) if rule == "type" else ""
    if path == [error.absolute_path[0]] and error.absolute_schema_path[-2] == path[0]:
        words = next(one.kind.words for one in table if one.name == path[0])
    must = _MUST.get(rule, f"be of type {words}").format(value)
    return Malformed(f"{name} must {must}, not {_shown(error.instance)}", field=name)


def _shown(value: Any) -> str:
    """A value in a line, however long or odd it is."""
    if isinstance(value, str | bytes | bool | float | None):
        return repr(value[:80] if isinstance(value, str | bytes) else value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**40 else "a very long number"
    return f"a value of type {type(value).__name__}"


# Task messages. -----------------------------------------------------------------------------------

#: Headers that brokers add, or that tell how the body was packed: they do not travel on.
_TRANSPORT: Final = (
    "compression", "x-death", "x-delivery-", "x-first-death-", "x-last-death-", "x-acquired-",
)  # fmt: skip
_NAMES: Final = frozenset(one.name for one in HEADERS)


def is_version_2(wire: Wire) -> bool:
    """Whether a message is of version 2: it has a header `task`."""
    return "task" in wire.headers


def decode(wire: Wire, accepted: Accepted, *, local: dt.tzinfo = dt.timezone.utc) -> TaskMessage:
    """Read a task message of either version, told apart by the header `task`.

    `local`: the zone of version 1's times where it says that they are not in UTC.

    :raises Refused: its content type is not accepted; it was not decoded.
    :raises InvalidFormat: it is malformed, cannot be decoded, or is too large: whatever bytes come,
        nothing else is raised.
    """
    body = accepted.read(wire)
    version: Literal[1, 2] = 2 if is_version_2(wire) else 1
    found = _read_2(wire, body) if version == 2 else _read_1(body)
    found |= read(PROPERTIES, wire.properties)
    found.setdefault("id", found.get("correlation_id"))
    if not found["id"]:
        raise Malformed("id is missing, and so is correlation_id", field="id")
    priority = wire.properties.get("priority")
    if type(priority) is int and 0 < priority <= 255:
        found["priority"] = priority
    in_utc = not isinstance(body, Mapping) or read((UTC,), body).get("utc", True)
    for name in ("eta", "expires"):
        if name in found:
            found[name] = _in_utc(name, found[name], dt.timezone.utc if in_utc else local)
    extra = {
        name: value
        for name, value in wire.headers.items()
        if isinstance(name, str) and name not in _NAMES and not name.startswith(_TRANSPORT)
    }
    kind = wire.content_type or "application/data"
    return TaskMessage(**found, protocol=version, extra=extra, content_type=kind)


def _in_utc(name: str, time: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    try:
        return (time.replace(tzinfo=time.tzinfo or zone)).astimezone(dt.timezone.utc)
    except (OverflowError, ValueError):
        raise Malformed(f"{name} must be a time in UTC, not {time}", field=name) from None


def _read_1(body: Any) -> dict[str, Any]:
    if not isinstance(body, Mapping):
        raise Malformed("the body must be a mapping, or there must be a header task", field="body")
    return read(VERSION_1, body)


def _read_2(wire: Wire, body: Any) -> dict[str, Any]:
    """Some senders write a body as in version 1: it says what the headers leave out."""
    source: Mapping[str, Any] = wire.headers
    if type_of(wire) in RAW:
        return read(HEADERS, source) | {"args": (body,), "raw": True}
    embed: Any = None
    if isinstance(body, Mapping) and "args" in body:
        source = {**{key: body[key] for key in _NAMES if key in body}, **source}
        args, kwargs, embed = body["args"], body.get("kwargs"), {**body, "chain": None}
    elif isinstance(body, list | tuple) and len(body) == 3:
        args, kwargs, embed = body
    else:
        raise Malformed("the body must be [args, kwargs, embed]", field="body")
    if not isinstance(embed, Mapping | None):
        raise Malformed(f"embed must be a mapping, not {_shown(embed)}", field="embed")
    inside = read(ARGUMENTS, {"args": args, "kwargs": kwargs}) | read(EMBED, embed or {})
    return read(HEADERS, source) | inside


def encode(
    message: TaskMessage, protocol: int | None = None, serializer: str | None = None
) -> Wire:
    """Write a task message, in the version and by the serializer that it came in, unless others are
    named; a content type that no serializer writes becomes JSON.

    Version 1 has no field for the rest of a chain, which becomes one callback inside another, nor
    for `shadow`, `root_id`, stamps and others, which stay behind.

    :raises NotEncodable: the arguments cannot be written by the serializer.
    :raises Malformed: it is raw, and is to be sent in version 1, or has other arguments than that.
    :raises ValueError: there is no such version or serializer.
    """
    protocol = message.protocol if protocol is None else protocol
    if protocol not in (1, 2):
        raise ValueError(f"there is no version {protocol!r} of the protocol: use 1 or 2")
    headers = dict(message.extra)
    properties = {"correlation_id": message.correlation_id or message.id, "delivery_mode": 2}
    for name in ("reply_to", "priority"):
        if getattr(message, name) is not None:
            properties[name] = getattr(message, name)
    if protocol == 2:
        headers |= _headers(message)
    if message.raw:
        return Wire(headers, properties, *_raw(message, protocol))
    body = _body_1(message) if protocol == 1 else _body_2(message)
    kind = serializer or name_of(message.content_type) or "json"
    return Wire(headers, properties, *dump(body, kind))


def _headers(message: TaskMessage) -> dict[str, Any]:
    """All headers that Celery writes, also those that say nothing."""
    stamped = message.stamped_headers
    found = {
        one.name: getattr(message, one.attribute or one.name)
        for one in HEADERS
        if one.name != "meth" or message.meth is not None
    }
    found |= {name: _text(found[name]) for name in ("eta", "expires")}
    found["timelimit"] = [message.timelimit.hard, message.timelimit.soft]
    found["root_id"] = message.root_id or message.id
    found["stamped_headers"] = None if stamped is None else list(stamped)
    found["stamps"] = dict(message.stamps)
    if not message.raw:
        found["argsrepr"] = message.argsrepr or _repr(tuple(message.args))
        found["kwargsrepr"] = message.kwargsrepr or _repr(dict(message.kwargs))
    return found


def _body_2(message: TaskMessage) -> Any:
    chord = None if message.chord is None else dict(message.chord)
    embed = {
        name: [dict(one) for one in getattr(message, name)] or None
        for name in ("callbacks", "errbacks", "chain")
    }
    return tuple(message.args), dict(message.kwargs), {**embed, "chord": chord}


def _body_1(message: TaskMessage) -> Any:
    following: Mapping[str, Any] | None = None
    for one in message.chain:  # the last to be called comes first
        following = one if following is None else _linked(one, following)
    callbacks = [*message.callbacks, *([] if following is None else [following])]
    found = {one.name: getattr(message, one.attribute or one.name) for one in VERSION_1}
    return found | {
        "args": tuple(message.args),
        "kwargs": dict(message.kwargs),
        "eta": _text(message.eta),
        "expires": _text(message.expires),
        "utc": True,
        "timelimit": (message.timelimit.hard, message.timelimit.soft),
        "callbacks": [dict(one) for one in callbacks] or None,
        "errbacks": [dict(one) for one in message.errbacks] or None,
    }


def _linked(signature: Mapping[str, Any], callback: Mapping[str, Any]) -> dict[str, Any]:
    """`signature`, with one more callback."""
    options = dict(signature.get("options") or {})
    links = options.get("link") or []
    options["link"] = [*([links] if isinstance(links, Mapping) else links), callback]
    return {**signature, "options": options}


def _raw(message: TaskMessage, protocol: int) -> tuple[str, str, bytes]:
    """Content type, encoding and body of a message whose single argument is its body."""
    if protocol == 1:
        raise Malformed("a raw message cannot be sent in version 1", field="body")
    if len(message.args) != 1 or not isinstance(message.args[0], bytes | str) or message.kwargs:
        raise Malformed("a raw message has bytes or a text as its single argument", field="args")
    [data] = message.args
    if isinstance(data, bytes):
        return "application/data", "binary", data
    try:
        return "text/plain", "utf-8", data.encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed("a raw message cannot hold half of a pair", field="args") from None


class _Short(reprlib.Repr):
    """Arguments for logs and monitors: never long, and never an error."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxtuple = self.maxlist = self.maxdict = 50
        self.maxstring = self.maxother = self.maxlong = 200

    def repr(self, x: Any) -> str:
        try:
            words = super().repr(x)
        except Exception:  # of a class of the user's
            return "..."
        words = words.encode("utf-8", "backslashreplace").decode()
        return words if len(words) <= 1024 else f"{words[:1021]}..."


_repr: Final = _Short().repr


# Result messages. ---------------------------------------------------------------------------------

_RESULT_NAMES: Final = frozenset(one.name for one in RESULT)
#: Those that only extended results have; the others are always written, but for group and parent.
_EXTENDED: Final = frozenset(("name", "args", "kwargs", "worker", "retries", "queue"))


def decode_result(wire: Wire, accepted: Accepted) -> Result:
    """Read a result.

    :raises Refused: its content type is not accepted; it was not decoded.
    :raises InvalidFormat: it is no result; nothing else is raised.
    """
    body = accepted.read(wire)
    if not isinstance(body, Mapping):
        raise Malformed(f"a result must be a mapping, not {_shown(body)}", field="body")
    found = read(RESULT, body)
    if "date_done" in found:
        found["date_done"] = _in_utc("date_done", found["date_done"], dt.timezone.utc)
    extra = {key: body[key] for key in body if isinstance(key, str) and key not in _RESULT_NAMES}
    return Result(**found, extra=extra)


def encode_result(result: Result, serializer: str = "json") -> Wire:
    """Write a result.

    :raises NotEncodable: the serializer cannot write the value.
    :raises ValueError: there is no such serializer.
    """
    body = {one.name: getattr(result, one.name) for one in RESULT}
    body["children"] = list(result.children)
    body["date_done"] = _text(result.date_done)
    for name in ("group_id", "parent_id", *(_EXTENDED if result.name is None else ())):
        if body[name] is None:
            del body[name]
    properties = {"correlation_id": result.task_id}
    return Wire({}, properties, *dump({**result.extra, **body}, serializer))
