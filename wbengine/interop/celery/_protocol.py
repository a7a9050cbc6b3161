"""Celery's message protocol: task messages of versions 1 and 2, and result messages.

The functions convert between objects and a `Wire`. They import nothing that a message names, and do
not need Celery. The annotation of a field defines its `Kind` on the wire and the parts of the
message that contain it. Readers, writers and JSON Schemas are derived from the annotations.
"""

from __future__ import annotations

import datetime as dt
import functools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_type_hints

from wbengine import exceptions
from wbengine._concurrency import time_limits
from wbengine.interop.celery._serializers import JSON, RAW, Accepted, Wire, dump, name_of, type_of

__all__ = [
    "ARGUMENTS", "EMBED", "HEADERS", "PROPERTIES", "RESULT", "RESULT_SCHEMA", "TASK_V1_SCHEMA",
    "TASK_V2_SCHEMA", "VERSION_1", "Field", "Kind", "Malformed", "Result", "TaskMessage", "decode",
    "decode_result", "encode", "encode_result", "read", "schema", "shown", "table",
]  # fmt: skip


class Malformed(exceptions.InvalidFormat):
    """A field of a message is missing or invalid; `field` is its name."""

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
    #: The earliest and the latest start time, in UTC.
    eta: Annotated[dt.datetime | None, TIME, "headers", "version 1"] = None
    expires: Annotated[dt.datetime | None, TIME, "headers", "version 1"] = None
    retries: Annotated[int, COUNT, "headers", "version 1"] = 0
    #: (soft, hard), in seconds; the order on the wire is (hard, soft).
    timelimit: Annotated[time_limits.TimeLimit, TIMELIMIT, "headers", "version 1"] = (
        time_limits.UNLIMITED
    )
    argsrepr: Annotated[str | None, TEXT, "headers"] = None
    kwargsrepr: Annotated[str | None, TEXT, "headers"] = None
    origin: Annotated[str | None, WORD, "headers"] = None
    replaced_task_nesting: Annotated[int, COUNT, "headers"] = 0
    ignore_result: Annotated[bool, BOOLEAN, "headers"] = False
    stamped_headers: Annotated[Sequence[str] | None, STRINGS, "headers"] = None
    stamps: Annotated[Mapping[str, Any], MAPPING, "headers"] = field(default_factory=dict)
    callbacks: Annotated[Sequence[Mapping[str, Any]], SIGNATURES, "embed", "version 1"] = ()
    errbacks: Annotated[Sequence[Mapping[str, Any]], SIGNATURES, "embed", "version 1"] = ()
    #: The rest of a chain, with its next task last.
    chain: Annotated[Sequence[Mapping[str, Any]], SIGNATURES, "embed"] = ()
    chord: Annotated[Mapping[str, Any] | None, SIGNATURE, "embed", "version 1"] = None
    #: None: the same as `id`.
    correlation_id: Annotated[str | None, ID, "properties"] = None
    reply_to: Annotated[str | None, TEXT, "properties"] = None
    priority: int | None = None
    #: True if the body is raw data, which is the only argument.
    raw: bool = False
    protocol: Literal[1, 2] = 2
    #: Headers that are not part of the protocol.
    extra: Mapping[str, Any] = field(default_factory=dict)
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Result:
    """The state of one task, as workers send it or store it in a result backend.

    `result` is the return value. For a failure it is a mapping of `exc_type`, `exc_message` (the
    arguments) and `exc_module`. Only extended results contain `name` and the fields after it.
    `extra` contains further fields, such as stamps.
    """

    task_id: Annotated[str, ID]
    status: Annotated[str, WORD]
    result: Annotated[Any, ANY] = None
    traceback: Annotated[str | None, TEXT] = None
    #: The tasks that this task sent, each in the form of Celery's `AsyncResult.as_tuple()`.
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


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A type of values: its JSON Schema, and functions that read and write valid values."""

    words: str
    schema: Mapping[str, Any]
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, and the attribute for its value (by default of the same name).

    A field that is not `required` may be missing or null.
    """

    name: str
    kind: Kind
    required: bool = False
    attribute: str = ""

    def read(self, value: Any) -> Any:
        """Convert a value from the wire.

        :raises Malformed: if the value is not of this kind.
        """
        path: Sequence[object] = ()
        try:
            error = next(_validator(self.kind).iter_errors(value), None)
            if error is None:
                return self.kind.read(value)
            path, problem = error.absolute_path, error.message
        except (ValueError, OverflowError, RecursionError):  # the value may not even be printable
            shown = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
            problem = f"expected {self.kind.words}, got {shown}"
        if len(problem) > 200:
            problem = f"{problem[:80]}...{problem[-100:]}"
        name = "".join([self.name, *(f"[{key!r:.80}]" for key in path)])
        raise Malformed(f"{name}: {problem}", field=name)


def table(cls: type, part: str = "", *, required: Sequence[str] = ()) -> tuple[Field, ...]:
    """Return the fields of a dataclass in a part of a message, or all fields with a kind."""
    hints = get_type_hints(cls, include_extras=True)
    annotations = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return tuple(
        Field(name, metadata[0], name in required)
        for name, metadata in annotations.items()
        if metadata and (not part or part in metadata)
    )


@functools.cache
def _validator(kind: Kind) -> Any:
    import jsonschema  # slow to import, and not needed for sending

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
    """Read the fields of a mapping, by attribute. Missing, null and empty values are omitted.

    :raises Malformed: if a required field is missing or a field is invalid.
    """
    values: dict[str, Any] = {}
    for entry in table:
        value = source.get(entry.name)
        if isinstance(value, dt.datetime):  # YAML and msgpack have times
            value = value.isoformat()
        if value is not None:
            value = entry.read(value)
        if value is not None:
            values[entry.attribute or entry.name] = value
        elif entry.required:
            raise Malformed(f"{entry.name} is missing, or empty", field=entry.name)
    return values


def write(table: Sequence[Field], source: object) -> dict[str, Any]:
    """Return these fields of a dataclass in their wire format."""
    values = ((entry, getattr(source, entry.attribute or entry.name)) for entry in table)
    return {
        entry.name: None if value is None else entry.kind.write(value) for entry, value in values
    }


def schema(table: Sequence[Field]) -> dict[str, Any]:
    """Return a JSON Schema of a mapping with these fields.

    Fields that are not required may be null; additional fields are allowed.
    """
    properties = {}
    for entry in table:
        value_schema = dict(entry.kind.schema)
        if "type" in value_schema and not entry.required:
            kinds = (
                value_schema["type"]
                if isinstance(value_schema["type"], list)
                else [value_schema["type"]]
            )
            value_schema["type"] = [*kinds, "null"]
        properties[entry.name] = value_schema
    required = [entry.name for entry in table if entry.required]
    return {"type": "object", "properties": properties, "required": required}


def _time(text: str) -> dt.datetime | None:
    """Parse an ISO 8601 time, whose zone is optional; None for an empty string.

    :raises ValueError: if the string is not a time.
    """
    return dt.datetime.fromisoformat(text.upper()) if text else None


def _limit(pair: Sequence[float | None]) -> time_limits.TimeLimit:
    """Read time limits. 0 means no limit.

    A soft limit that is not below the hard one has no effect and is dropped.

    :raises ValueError: if a limit is NaN.
    """
    if any(seconds != seconds for seconds in pair):
        raise ValueError("a limit must not be NaN")
    hard, soft = (float(seconds) if seconds and 0 < seconds < 1e9 else None for seconds in pair)
    if soft is not None and hard is not None and soft >= hard:
        soft = None
    return time_limits.TimeLimit(soft, hard)


def _signatures(value: Any) -> tuple[Any, ...]:
    """Read signatures. Like Celery, accept a single signature instead of a list."""
    return (dict(value),) if isinstance(value, Mapping) else tuple(value)


def _string(description: str, max_length: int) -> Kind:
    return Kind(description, {"type": "string", "maxLength": max_length}, _word)


def _word(value: str) -> str | None:
    """Return the string, or None if it is empty.

    :raises ValueError: if the string contains a lone surrogate, which UTF-8 cannot encode.
    """
    value.encode("utf-8")
    return value or None


_SIGNATURE_SCHEMA: Final = {
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
_SIGNATURE: Final = {"type": "object", **_SIGNATURE_SCHEMA}

ID: Final = _string("id", 255)
WORD: Final = _string("string", 1000)
TEXT: Final = _string("string", 1_000_000)
BOOLEAN: Final = Kind("boolean", {"type": "boolean"})
COUNT: Final = Kind("integer", {"type": "integer", "minimum": 0, "maximum": 2**31 - 1})
TIME: Final = Kind(
    "time (ISO 8601)", {"type": "string", "maxLength": 64}, _time, dt.datetime.isoformat
)
_SECONDS_SCHEMA: Final = {"type": ["number", "null"], "minimum": 0}
TIMELIMIT: Final = Kind(
    "[hard, soft]: numbers or null",
    {"type": "array", "minItems": 2, "maxItems": 2, "items": _SECONDS_SCHEMA},
    _limit,
    lambda limit: [limit.hard, limit.soft],
)
_STRING_SCHEMA: Final = {"type": "string"}
LIST: Final = Kind("list", {"type": "array"}, tuple, tuple)
STRINGS: Final = Kind("list of strings", {"type": "array", "items": _STRING_SCHEMA}, tuple, list)
MAPPING: Final = Kind("mapping", {"type": "object", "propertyNames": _STRING_SCHEMA}, dict, dict)
SIGNATURE: Final = Kind("signature", _SIGNATURE, dict, dict)
SIGNATURES: Final = Kind(
    "list of signatures",
    {"type": ["array", "object"], "items": _SIGNATURE, **_SIGNATURE_SCHEMA},
    _signatures,
    lambda several: [dict(one) for one in several] or None,
)
ANY: Final = Kind("value", {})

PROPERTIES: Final = table(TaskMessage, "properties")
HEADERS: Final = table(TaskMessage, "headers", required=("task",))
ARGUMENTS: Final = table(TaskMessage, "arguments")
EMBED: Final = table(TaskMessage, "embed")
VERSION_1: Final = (
    *table(TaskMessage, "version 1", required=("task", "id")),
    Field("taskset", ID, attribute="group"),
)
#: A field of version 1 bodies that only defines how times are read.
UTC: Final = Field("utc", BOOLEAN)
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


#: Prefixes of headers that brokers add or that describe the compression. They are not copied.
_TRANSPORT: Final = (
    "compression", "x-death", "x-delivery-", "x-first-death-", "x-last-death-", "x-acquired-",
)  # fmt: skip
_NAMES: Final = frozenset(one.name for one in HEADERS)


def decode(wire: Wire, accepted: Accepted, *, local: dt.tzinfo = dt.UTC) -> TaskMessage:
    """Read a task message of either version. Version 2 has a header `task`.

    :param local: the zone of version 1 times that are not in UTC.
    :raises Refused: if the content type is not accepted; the body was not decoded.
    :raises InvalidFormat: if the message is malformed, cannot be decoded, or is too large. No input
        raises any other exception.
    """
    body = accepted.read(wire)
    version: Literal[1, 2] = 2 if "task" in wire.headers else 1
    fields = _read_2(wire, body) if version == 2 else _read_1(body)
    fields |= read(PROPERTIES, wire.properties)
    fields.setdefault("id", fields.get("correlation_id"))
    if not fields["id"]:
        raise Malformed("id or correlation_id must be set", field="id")
    priority = wire.properties.get("priority")
    if type(priority) is int and 0 < priority <= 255:
        fields["priority"] = priority
    in_utc = not isinstance(body, Mapping) or read((UTC,), body).get("utc", True)
    for name in ("eta", "expires"):
        if name in fields:
            fields[name] = _in_utc(name, fields[name], dt.UTC if in_utc else local)
    extra = {
        name: value
        for name, value in wire.headers.items()
        if isinstance(name, str) and name not in _NAMES and not name.startswith(_TRANSPORT)
    }
    content_type = wire.content_type or "application/data"
    return TaskMessage(**fields, protocol=version, extra=extra, content_type=content_type)


def _in_utc(name: str, time: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    try:
        return (time.replace(tzinfo=time.tzinfo or zone)).astimezone(dt.UTC)
    except (OverflowError, ValueError):
        raise Malformed(
            f"{name} must be a time that exists in UTC, got {time}", field=name
        ) from None


def _read_1(body: Any) -> dict[str, Any]:
    if not isinstance(body, Mapping):
        raise Malformed(
            "the body must be a mapping, or the headers must contain task", field="body"
        )
    return read(VERSION_1, body)


def _read_2(wire: Wire, body: Any) -> dict[str, Any]:
    """Read headers and body.

    Some senders write a version 1 body. It then supplies fields that the headers omit.
    """
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
        raise Malformed(f"embed must be a mapping, got {shown(embed)}", field="embed")
    inside = read(ARGUMENTS, {"args": args, "kwargs": kwargs}) | read(EMBED, embed or {})
    return read(HEADERS, source) | inside


def encode(
    message: TaskMessage, protocol: int | None = None, serializer: str | None = None
) -> Wire:
    """Write a task message.

    Version and serializer default to those of the message. A content type without a serializer
    becomes JSON.

    Version 1 has no field for the rest of a chain, which is written as nested callbacks. It loses
    `shadow`, `root_id`, stamps and other fields.

    :raises NotEncodable: if the serializer cannot write the arguments.
    :raises Malformed: if a raw message is to be sent in version 1, or does not have exactly one
        argument of raw data.
    :raises ValueError: if the version or serializer does not exist.
    """
    protocol = message.protocol if protocol is None else protocol
    if protocol not in (1, 2):
        raise ValueError(f"The version of the protocol must be 1 or 2, got {protocol!r}")
    headers = dict(message.extra)
    all_properties = write(PROPERTIES, message) | {"priority": message.priority, "delivery_mode": 2}
    properties = {name: value for name, value in all_properties.items() if value is not None}
    properties.setdefault("correlation_id", message.id)
    if protocol == 2:
        headers |= _headers(message)
    if message.raw:
        return Wire(headers, properties, *_raw(message, protocol))
    body = _body_1(message) if protocol == 1 else _body_2(message)
    kind = serializer or name_of(message.content_type) or "json"
    return Wire(headers, properties, *dump(body, kind))


def _headers(message: TaskMessage) -> dict[str, Any]:
    headers = write(HEADERS, message)
    if message.meth is None:
        del headers["meth"]
    headers["root_id"] = message.root_id or message.id
    if not message.raw:
        headers["argsrepr"] = message.argsrepr or shown(tuple(message.args))
        headers["kwargsrepr"] = message.kwargsrepr or shown(dict(message.kwargs))
    return headers


def _body_2(message: TaskMessage) -> Any:
    return *write(ARGUMENTS, message).values(), write(EMBED, message)


def _body_1(message: TaskMessage) -> Any:
    following: Mapping[str, Any] | None = None
    for signature in message.chain:  # The last task of the chain comes first.
        following = signature if following is None else _linked(signature, following)
    body = write(VERSION_1, message) | {"utc": True}
    if following is not None:
        body["callbacks"] = [*(body["callbacks"] or ()), dict(following)]
    return body


def _linked(signature: Mapping[str, Any], callback: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(signature.get("options") or {})
    links = options.get("link") or []
    options["link"] = [*([links] if isinstance(links, Mapping) else links), callback]
    return {**signature, "options": options}


def _raw(message: TaskMessage, protocol: int) -> tuple[str, str, bytes]:
    if protocol == 1:
        raise Malformed("a raw message cannot be sent in version 1", field="body")
    if len(message.args) != 1 or not isinstance(message.args[0], bytes | str) or message.kwargs:
        raise Malformed("the single argument of a raw message must be bytes or str", field="args")
    [data] = message.args
    if isinstance(data, bytes):
        return "application/data", "binary", data
    try:
        return "text/plain", "utf-8", data.encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed("a raw message must not contain lone surrogates", field="args") from None


_REPR: Final = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 50
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def shown(value: object) -> str:
    """Return a short representation of a value for logs and monitors. Never raises."""
    try:
        text = _REPR.repr(value)
    except Exception:  # from a `__repr__` of a user's class
        return "..."
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 1024 else f"{text[:1021]}..."


_RESULT_NAMES: Final = frozenset(one.name for one in RESULT)
#: Fields of extended results only.
_EXTENDED: Final = frozenset(("name", "args", "kwargs", "worker", "retries", "queue"))


def decode_result(wire: Wire, accepted: Accepted) -> Result:
    """Read a result.

    :raises Refused: if the content type is not accepted; the body was not decoded.
    :raises InvalidFormat: if the message is not a result. No input raises any other exception.
    """
    body = accepted.read(wire)
    if not isinstance(body, Mapping):
        raise Malformed(f"a result must be a mapping, got {shown(body)}", field="body")
    fields = read(RESULT, body)
    if "date_done" in fields:
        fields["date_done"] = _in_utc("date_done", fields["date_done"], dt.UTC)
    extra = {key: body[key] for key in body if isinstance(key, str) and key not in _RESULT_NAMES}
    return Result(**fields, extra=extra)


def encode_result(result: Result, serializer: str = "json") -> Wire:
    """Write a result.

    :raises NotEncodable: if the serializer cannot write the value.
    :raises ValueError: if the serializer does not exist.
    """
    body = write(RESULT, result)
    for name in ("group_id", "parent_id", *(_EXTENDED if result.name is None else ())):
        if body[name] is None:
            del body[name]
    return Wire({}, {"correlation_id": result.task_id}, *dump({**result.extra, **body}, serializer))
