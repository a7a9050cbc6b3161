"""Celery's message protocol: task messages of versions 1 and 2, and result messages.

Pure: messages are read from a `Wire`, and written to one; nothing is imported that they name, and
Celery is not needed.  The annotation of a field says of what `Kind` it is on the wire, and in which
parts of a message: tables of fields are made of that, and readers, writers and JSON Schemas of
them.  The reference says what each field means.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_type_hints

from wbengine import exceptions
from wbengine.concurrency import limits
from wbengine.interop.celery.serializers import JSON, RAW, Accepted, Wire, dump, name_of, type_of

__all__ = [
    "ARGUMENTS", "EMBED", "HEADERS", "PROPERTIES", "RESULT", "RESULT_SCHEMA", "TASK_V1_SCHEMA",
    "TASK_V2_SCHEMA", "VERSION_1", "Field", "Kind", "Malformed", "Result", "TaskMessage", "decode",
    "decode_result", "encode", "encode_result", "read", "schema", "shown", "table",
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
    """A call of a task, in either version of the protocol."""

    task: Annotated[str, WORD, "headers", "version 1"]
    id: Annotated[str, ID, "headers", "version 1"]
    args: Annotated[Sequence[Any], LIST, "arguments", "version 1"] = ()
    kwargs: Annotated[Mapping[str, Any], MAPPING, "arguments", "version 1"] = field(
        default_factory=dict
    )
    lang: Annotated[str, WORD, "headers"] = "py"
    root_id: Annotated[str | None, ID, "headers"] = None
    parent_id: Annotated[str | None, ID, "headers"] = None
    group: Annotated[str | None, ID, "headers", "version 1"] = None
    group_index: Annotated[int | None, COUNT, "headers", "version 1"] = None
    meth: Annotated[str | None, WORD, "headers"] = None
    shadow: Annotated[str | None, WORD, "headers"] = None
    #: Not before, and not after, these times, which are in UTC.
    eta: Annotated[dt.datetime | None, TIME, "headers", "version 1"] = None
    expires: Annotated[dt.datetime | None, TIME, "headers", "version 1"] = None
    retries: Annotated[int, COUNT, "headers", "version 1"] = 0
    #: (soft, hard), in seconds; on the wire the hard one is first.
    timelimit: Annotated[limits.TimeLimit, TIMELIMIT, "headers", "version 1"] = limits.UNLIMITED
    argsrepr: Annotated[str | None, TEXT, "headers"] = None
    kwargsrepr: Annotated[str | None, TEXT, "headers"] = None
    origin: Annotated[str | None, WORD, "headers"] = None
    replaced_task_nesting: Annotated[int, COUNT, "headers"] = 0
    ignore_result: Annotated[bool, BOOLEAN, "headers"] = False
    stamped_headers: Annotated[Sequence[str] | None, STRINGS, "headers"] = None
    stamps: Annotated[Mapping[str, Any], MAPPING, "headers"] = field(default_factory=dict)
    callbacks: Annotated[Sequence[Mapping[str, Any]], SIGNATURES, "embed", "version 1"] = ()
    errbacks: Annotated[Sequence[Mapping[str, Any]], SIGNATURES, "embed", "version 1"] = ()
    #: The rest of a chain, its next task last.
    chain: Annotated[Sequence[Mapping[str, Any]], SIGNATURES, "embed"] = ()
    chord: Annotated[Mapping[str, Any] | None, SIGNATURE, "embed", "version 1"] = None
    #: None: the same as `id`.
    correlation_id: Annotated[str | None, ID, "properties"] = None
    reply_to: Annotated[str | None, TEXT, "properties"] = None
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

    task_id: Annotated[str, ID]
    status: Annotated[str, WORD]
    result: Annotated[Any, ANY] = None
    traceback: Annotated[str | None, TEXT] = None
    #: The tasks that it sent, each as Celery's `AsyncResult.as_tuple()` gives it.
    children: Annotated[Sequence[Any], LIST] = ()
    date_done: Annotated[dt.datetime | None, TIME] = None
    group_id: Annotated[str | None, ID] = None
    parent_id: Annotated[str | None, ID] = None
    name: Annotated[str | None, WORD] = None
    args: Annotated[Any, ANY] = None
    kwargs: Annotated[Any, ANY] = None
    worker: Annotated[str | None, WORD] = None
    retries: Annotated[int | None, COUNT] = None
    queue: Annotated[str | None, WORD] = None
    extra: Mapping[str, Any] = field(default_factory=dict)


# Fields. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A type of values: in words, as JSON Schema, and how a value that fits is read and written."""

    words: str
    schema: Mapping[str, Any]
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, and the attribute that holds it; by default of the same name.

    Unless it is `required` it may be missing, or null.
    """

    name: str
    kind: Kind
    required: bool = False
    attribute: str = ""

    def read(self, value: Any) -> Any:
        """
        :raises Malformed: the value is not of this kind.
        """
        path: Sequence[object] = ()
        try:
            error = next(_validator(self.kind).iter_errors(value), None)
            if error is None:
                return self.kind.read(value)
            path, why = error.absolute_path, error.message
        except (ValueError, OverflowError, RecursionError):  # perhaps it cannot even be shown
            shown = value if isinstance(value, str) else f"this {type(value).__name__}"
            why = f"{shown!r} is no {self.kind.words}"
        if len(why) > 200:
            why = f"{why[:80]}...{why[-100:]}"
        name = "".join([self.name, *(f"[{part!r:.80}]" for part in path)])
        raise Malformed(f"{name}: {why}", field=name)


def table(cls: type, part: str = "", *, required: Sequence[str] = ()) -> tuple[Field, ...]:
    """The fields of a dataclass that are in a part of a message; all that have a kind, without."""
    hints = get_type_hints(cls, include_extras=True)
    known = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return tuple(
        Field(name, told[0], name in required)
        for name, told in known.items()
        if told and (not part or part in told)
    )


@functools.cache
def _validator(kind: Kind) -> Any:
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
    return extend(draft, type_checker=checker)(kind.schema)


def read(table: Sequence[Field], source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mapping, by attributes; those that are missing, null or empty are left out.

    :raises Malformed: a field is missing, or not what it must be.
    """
    found: dict[str, Any] = {}
    for one in table:
        value = source.get(one.name)
        if isinstance(value, dt.datetime):  # YAML and msgpack have them
            value = value.isoformat()
        if value is not None:
            value = one.read(value)
        if value is not None:
            found[one.attribute or one.name] = value
        elif one.required:
            raise Malformed(f"{one.name} is missing, or empty", field=one.name)
    return found


def write(table: Sequence[Field], source: object) -> dict[str, Any]:
    """These fields of a dataclass, as they are on the wire."""
    values = ((one, getattr(source, one.attribute or one.name)) for one in table)
    return {one.name: None if value is None else one.kind.write(value) for one, value in values}


def schema(table: Sequence[Field]) -> dict[str, Any]:
    """A JSON Schema of a mapping with these fields, of which those that may be missing may be null;
    others may be in it."""
    known = {}
    for one in table:
        found = dict(one.kind.schema)
        if "type" in found and not one.required:
            kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
            found["type"] = [*kinds, "null"]
        known[one.name] = found
    required = [one.name for one in table if one.required]
    return {"type": "object", "properties": known, "required": required}


#: A fraction of a second, of which Python keeps six digits, and 3.10 reads three or six.
_FRACTION: Final = re.compile(r"[.,](\d{1,6})\d*")


def _time(words: str) -> dt.datetime | None:
    """The time that ISO 8601 words tell, with a zone if they name one; None of no words.

    :raises ValueError: they tell none.
    """
    if not words:
        return None
    words = _FRACTION.sub(lambda found: f".{found[1].ljust(6, '0')}", words)
    return dt.datetime.fromisoformat(re.sub("[Zz]$", "+00:00", words))


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


def _signatures(value: Any) -> tuple[Any, ...]:
    """One signature may stand for a list of one, as Celery's own reader takes it."""
    return (dict(value),) if isinstance(value, Mapping) else tuple(value)


def _string(words: str, longest: int) -> Kind:
    return Kind(words, {"type": "string", "maxLength": longest}, _word)


def _word(value: str) -> str | None:
    """
    :raises ValueError: half of a surrogate pair is in it, which cannot travel on.
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
TIME: Final = Kind(
    "time (ISO 8601)", {"type": "string", "maxLength": 64}, _time, dt.datetime.isoformat
)
_SECONDS: Final = {"type": ["number", "null"], "minimum": 0}
TIMELIMIT: Final = Kind(
    "[hard, soft]: numbers or null",
    {"type": "array", "minItems": 2, "maxItems": 2, "items": _SECONDS},
    _limit,
    lambda limit: [limit.hard, limit.soft],
)
_STRING: Final = {"type": "string"}
LIST: Final = Kind("list", {"type": "array"}, tuple, tuple)
STRINGS: Final = Kind("list of strings", {"type": "array", "items": _STRING}, tuple, list)
MAPPING: Final = Kind("mapping", {"type": "object", "propertyNames": _STRING}, dict, dict)
SIGNATURE: Final = Kind("signature", _SIGNATURE, dict, dict)
SIGNATURES: Final = Kind(
    "list of signatures",
    {"type": ["array", "object"], "items": _SIGNATURE, **_CALLED},
    _signatures,
    lambda several: [dict(one) for one in several] or None,
)
ANY: Final = Kind("value", {})

#: Message properties, of both versions.
PROPERTIES: Final = table(TaskMessage, "properties")
#: The headers of version 2.
HEADERS: Final = table(TaskMessage, "headers", required=("task",))
#: The first two parts of a body of version 2, and the third one.
ARGUMENTS: Final = table(TaskMessage, "arguments")
EMBED: Final = table(TaskMessage, "embed")
#: The body of version 1: everything.
VERSION_1: Final = (
    *table(TaskMessage, "version 1", required=("task", "id")),
    Field("taskset", ID, attribute="group"),
)
#: Of version 1's body, but of no message: how its times are read.
UTC: Final = Field("utc", BOOLEAN)
#: Results.
RESULT: Final = table(Result, required=("task_id", "status"))

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
                *schema(ARGUMENTS)["properties"].values(),
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


# Task messages. -----------------------------------------------------------------------------------

#: Headers that brokers add, or that tell how the body was packed: they do not travel on.
_TRANSPORT: Final = (
    "compression", "x-death", "x-delivery-", "x-first-death-", "x-last-death-", "x-acquired-",
)  # fmt: skip
_NAMES: Final = frozenset(one.name for one in HEADERS)


def decode(wire: Wire, accepted: Accepted, *, local: dt.tzinfo = dt.timezone.utc) -> TaskMessage:
    """Read a task message of either version, told apart by the header `task`.

    `local`: the zone of version 1's times where it says that they are not in UTC.

    :raises Refused: its content type is not accepted; it was not decoded.
    :raises InvalidFormat: it is malformed, cannot be decoded, or is too large: whatever bytes come,
        nothing else is raised.
    """
    body = accepted.read(wire)
    version: Literal[1, 2] = 2 if "task" in wire.headers else 1
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
        raise Malformed(f"embed must be a mapping, not {shown(embed)}", field="embed")
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
    known = write(PROPERTIES, message) | {"priority": message.priority, "delivery_mode": 2}
    properties = {name: value for name, value in known.items() if value is not None}
    properties.setdefault("correlation_id", message.id)
    if protocol == 2:
        headers |= _headers(message)
    if message.raw:
        return Wire(headers, properties, *_raw(message, protocol))
    body = _body_1(message) if protocol == 1 else _body_2(message)
    kind = serializer or name_of(message.content_type) or "json"
    return Wire(headers, properties, *dump(body, kind))


def _headers(message: TaskMessage) -> dict[str, Any]:
    """All headers that Celery writes, also those that say nothing."""
    found = write(HEADERS, message)
    if message.meth is None:
        del found["meth"]
    found["root_id"] = message.root_id or message.id
    if not message.raw:
        found["argsrepr"] = message.argsrepr or shown(tuple(message.args))
        found["kwargsrepr"] = message.kwargsrepr or shown(dict(message.kwargs))
    return found


def _body_2(message: TaskMessage) -> Any:
    return *write(ARGUMENTS, message).values(), write(EMBED, message)


def _body_1(message: TaskMessage) -> Any:
    following: Mapping[str, Any] | None = None
    for one in message.chain:  # the last to be called comes first
        following = one if following is None else _linked(one, following)
    found = write(VERSION_1, message) | {"utc": True}
    if following is not None:
        found["callbacks"] = [*(found["callbacks"] or ()), dict(following)]
    return found


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


_REPR: Final = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 50
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def shown(value: object) -> str:
    """A value for logs and monitors: never long, and never an error."""
    try:
        words = _REPR.repr(value)
    except Exception:  # of a class of the user's
        return "..."
    words = words.encode("utf-8", "backslashreplace").decode()
    return words if len(words) <= 1024 else f"{words[:1021]}..."


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
        raise Malformed(f"a result must be a mapping, not {shown(body)}", field="body")
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
    body = write(RESULT, result)
    for name in ("group_id", "parent_id", *(_EXTENDED if result.name is None else ())):
        if body[name] is None:
            del body[name]
    return Wire({}, {"correlation_id": result.task_id}, *dump({**result.extra, **body}, serializer))
