"""The JSON Schemas of NOTIFY, REQUEST and RESPONSE bodies, in the shape TaskFlow's peers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jsonschema
from referencing import Registry

from wbengine import exceptions as exc

#: Who is there?
QUESTION: Final[dict[str, Any]] = {"type": "object", "additionalProperties": False}

#: This worker is, with these tasks.
ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "topic": {"type": "string"},
        "tasks": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["topic", "tasks"],
    "additionalProperties": False,
}

REQUEST: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["execute", "revert"]},
        "arguments": {"type": "object"},
        "failures": {"type": "object"},
        "result": {},
        "task_cls": {"type": "string"},
        "task_name": {"type": "string"},
        "task_version": {"oneOf": [{"type": "string"}, {"type": "array"}]},
    },
    "required": ["task_cls", "task_name", "task_version", "action"],
}

RESPONSE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "state": {
            "type": "string",
            "enum": ["WAITING", "PENDING", "RUNNING", "SUCCESS", "FAILURE", "EVENT"],
        },
        "data": {
            "anyOf": [
                {"$ref": "#/definitions/event"},
                {"$ref": "#/definitions/completion"},
                {"$ref": "#/definitions/empty"},
            ]
        },
    },
    "required": ["state", "data"],
    "additionalProperties": False,
    "definitions": {
        "event": {
            "type": "object",
            "properties": {"event_type": {"type": "string"}, "details": {"type": "object"}},
            "required": ["event_type", "details"],
            "additionalProperties": False,
        },
        "completion": {
            "type": "object",
            "properties": {"result": {}},
            "required": ["result"],
            "additionalProperties": False,
        },
        "empty": {"type": "object", "additionalProperties": False},
    },
}


def validator(schema: Mapping[str, Any]) -> jsonschema.Draft4Validator:
    """Build a validator; costs a millisecond, so it is done once."""
    # An explicit empty registry: a `$ref` in a schema must never become a network request.
    return jsonschema.Draft4Validator(schema, registry=Registry())


def check(validator: jsonschema.Draft4Validator, data: Any, what: str) -> None:
    """Raise `InvalidFormat` unless `data` is valid, naming the culprit."""
    try:
        error = next(validator.iter_errors(data), None)
        if error is None:
            return
        where = "".join(f"[{part!r}]" for part in error.absolute_path)
        text = f"{what}{where} is invalid: {error.message[:200]}"
    except (RecursionError, ValueError):  # what cannot even be shown in the message
        text = f"{what} is invalid"
    raise exc.InvalidFormat(text)
