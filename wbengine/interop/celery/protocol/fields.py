"""Every field of Celery's task messages: where it is, what it holds, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine.interop.celery.protocol import reading
from wbengine.interop.celery.protocol.reading import Kind, malformed

__all__ = [
    "ARGUMENTS", "EMBED", "HEADERS", "PROPERTIES", "UTC", "VERSION_1", "Field", "read", "schema",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name on the wire, and the attribute of `TaskMessage` that holds it.

    `default` says in words what a missing one, or null, stands for; a required one must be there.
    """

    name: str
    attribute: str
    kind: Kind
    meaning: str
    default: str = "none"
    unit: str = ""
    since: str = ""
    required: bool = False


_F = Field

#: Message properties, of both versions.
PROPERTIES: Final = (
    _F(
        "correlation_id",
        "correlation_id",
        reading.ID,
        "The id of the call again; answers carry it. In version 2 it is the id where the header "
        "`id` is missing.",
        "the id",
    ),
    _F("reply_to", "reply_to", reading.TEXT, "The queue, or address, that the result is sent to."),
)

#: The headers of version 2.
HEADERS: Final = (
    _F(
        "lang",
        "lang",
        reading.WORD,
        "The language of the workers that it is for; a worker hands on, or rejects, what is for "
        "others.",
        "py",
    ),
    _F(
        "task",
        "task",
        reading.WORD,
        "The name of the task. A message with this header is of version 2.",
        required=True,
    ),
    _F("id", "id", reading.ID, "The id of the call, usually a UUID.", "the correlation id"),
    _F("root_id", "root_id", reading.ID, "The id of the first call of the work-flow.", "the id"),
    _F("parent_id", "parent_id", reading.ID, "The id of the call that sent this one."),
    _F("group", "group", reading.ID, "The id of the group that the call is a part of."),
    _F(
        "group_index",
        "group_index",
        reading.COUNT,
        "Its place in the group: a chord's body gets the results in this order.",
        since="4.4",
    ),
    _F(
        "meth",
        "meth",
        reading.WORD,
        "The name of a method of the task. It is carried; Python's workers do not use it.",
    ),
    _F("shadow", "shadow", reading.WORD, "Another name of the task, for logs and monitors."),
    _F("eta", "eta", reading.TIME, "It is not run before this time.", unit="UTC without a zone"),
    _F(
        "expires",
        "expires",
        reading.TIME,
        "After this time it is not run any more, and its state becomes REVOKED.",
        unit="UTC without a zone",
    ),
    _F("retries", "retries", reading.COUNT, "How often the call was sent again.", "0"),
    _F(
        "timelimit",
        "timelimit",
        reading.TIMELIMIT,
        "After the soft limit SoftTimeLimitExceeded is raised in the task, after the hard one it "
        "is ended. The hard one is first.",
        "no limits",
        "seconds",
        since="3.1",
    ),
    _F("argsrepr", "argsrepr", reading.TEXT, "The positional arguments, for logs and monitors."),
    _F("kwargsrepr", "kwargsrepr", reading.TEXT, "The keyword arguments, for logs and monitors."),
    _F("origin", "origin", reading.WORD, "The name of the node that sent it."),
    _F(
        "replaced_task_nesting",
        "replaced_task_nesting",
        reading.COUNT,
        "How often tasks of this line replaced themselves by others.",
        "0",
        since="5.1",
    ),
    _F(
        "ignore_result",
        "ignore_result",
        reading.BOOLEAN,
        "Whether nobody wants the result: it is not stored, and not sent.",
        "false",
        since="5.1",
    ),
    _F(
        "stamped_headers", "stamped_headers", reading.NAMES, "The names of its stamps.", since="5.3"
    ),
    _F(
        "stamps",
        "stamps",
        reading.MAPPING,
        "The values of its stamps, by name: what may be used to revoke many calls at once.",
        "none",
        since="5.3",
    ),
)

#: The third part of a body of version 2: signatures.
EMBED: Final = (
    _F(
        "callbacks",
        "callbacks",
        reading.SIGNATURES,
        "What is called with the result after success (`link`).",
    ),
    _F(
        "errbacks",
        "errbacks",
        reading.SIGNATURES,
        "What is called with the id after failure (`link_error`).",
    ),
    _F(
        "chain",
        "chain",
        reading.SIGNATURES,
        "The rest of the chain, the next one last: it is taken off, and sent with those before it.",
    ),
    _F(
        "chord",
        "chord",
        reading.SIGNATURE,
        "The body of the chord that this call is a part of: it is called with all results once all "
        "parts of the group have ended.",
    ),
)

#: The two parts of a body of version 2 before that.
ARGUMENTS: Final = (
    _F("args", "args", reading.LIST, "The positional arguments.", "no arguments"),
    _F("kwargs", "kwargs", reading.MAPPING, "The keyword arguments.", "no arguments"),
)

#: The body of version 1: everything.
VERSION_1: Final = (
    _F("task", "task", reading.WORD, "The name of the task.", required=True),
    _F("id", "id", reading.ID, "The id of the call, usually a UUID.", required=True),
    *ARGUMENTS,
    _F("retries", "retries", reading.COUNT, "How often the call was sent again.", "0"),
    _F(
        "eta",
        "eta",
        reading.TIME,
        "It is not run before this time.",
        unit="as `utc` says, without a zone",
    ),
    _F(
        "expires",
        "expires",
        reading.TIME,
        "After this time it is not run any more, and its state becomes REVOKED.",
        unit="as `utc` says, without a zone",
        since="2.0.2",
    ),
    _F("group", "group", reading.ID, "The same as `taskset`, where that is missing.", since="3.0"),
    _F("taskset", "group", reading.ID, "The id of the group that the call is a part of."),
    _F(
        "group_index",
        "group_index",
        reading.COUNT,
        "Its place in the group.",
        since="4.4",
    ),
    _F(
        "chord",
        "chord",
        reading.SIGNATURE,
        "The body of the chord that this call is a part of.",
        since="2.3",
    ),
    _F(
        "callbacks",
        "callbacks",
        reading.SIGNATURES,
        "What is called with the result after success; a chain is one callback inside another.",
        since="3.0",
    ),
    _F(
        "errbacks",
        "errbacks",
        reading.SIGNATURES,
        "What is called with the id after failure.",
        since="3.0",
    ),
    _F(
        "timelimit",
        "timelimit",
        reading.TIMELIMIT,
        "As in version 2, the hard one first.",
        "no limits",
        "seconds",
        since="3.1",
    ),
)

#: Also of version 1's body, but of no message: how its times are read.
UTC: Final = _F(
    "utc",
    "",
    reading.BOOLEAN,
    "Whether times without a zone are in UTC; else they are in the reader's local zone.",
    "true",
    since="2.5",
)

#: The headers of version 2 by name: others are not the protocol's, and travel on.
NAMES: Final = frozenset(field.name for field in HEADERS)


def read(fields: tuple[Field, ...], source: Mapping[str, Any]) -> dict[str, Any]:
    """What `source` says, by attributes of `TaskMessage`; what it does not say is left out.

    :raises Malformed: a field is missing, or not what it must be.
    """
    found: dict[str, Any] = {}
    for field in fields:
        value = source.get(field.name)
        if value is not None:
            value = field.kind.read(value, field.name)
        if value is not None:
            found[field.attribute] = value
        elif field.required:
            raise malformed(field.name, source.get(field.name), f"a {field.kind.words}")
    return found


def schema(fields: tuple[Field, ...]) -> dict[str, Any]:
    """A JSON Schema of a mapping with these fields; others may be in it."""
    return {
        "type": "object",
        "properties": {
            field.name: dict(field.kind.schema)
            if field.required
            else {"anyOf": [dict(field.kind.schema), {"type": "null"}]}
            for field in fields
        },
        "required": [field.name for field in fields if field.required],
    }


#: JSON Schemas of the parts of a message: version 2's headers and body, version 1's body.
HEADERS_SCHEMA: Final = schema(HEADERS)
BODY_SCHEMA: Final = {
    "type": "array",
    "minItems": 3,
    "maxItems": 3,
    "prefixItems": [
        {"type": ["array", "null"]},
        {"type": ["object", "null"]},
        {"anyOf": [schema(EMBED), {"type": "null"}]},
    ],
}
VERSION_1_SCHEMA: Final = schema((*VERSION_1, UTC))
