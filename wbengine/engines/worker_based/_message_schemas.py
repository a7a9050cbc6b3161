"""JSON Schemas of all messages.

NOTIFY, REQUEST and RESPONSE have the form that TaskFlow's peers use.
"""

from __future__ import annotations

from typing import Any, Final

from wbengine._introspection import object_names

#: Maximum number of request ids in one ask or cancellation.
MAX_IDS: Final = 500

MAX_NUMBER: Final = 2**53

#: NOTIFY of an engine: requests the announcements of workers.
QUESTION: Final[dict[str, Any]] = {"type": "object", "additionalProperties": False}

#: NOTIFY of a worker: its topic and tasks.
ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "topic": {"type": "string"},
        "tasks": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["topic", "tasks"],
    "additionalProperties": False,
}

#: The failures in a request have a separate schema (`Failure.SCHEMA`).
REQUEST: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "action": {"enum": ["execute", "revert"]},
        "arguments": {"type": "object"},
        "failures": {"type": "object"},
        "result": {
            "type": "array",
            "items": [{"enum": ["success", "failure"]}, {}],
            "minItems": 2,
            "maxItems": 2,
        },
        "task_cls": {"type": "string"},
        "task_name": {"type": "string"},
        "task_version": {"type": ["string", "array"]},
    },
    "required": ["task_cls", "task_name", "task_version", "action"],
}

#: The data is an event, a result or empty.
RESPONSE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "state": {"enum": ["WAITING", "PENDING", "RUNNING", "SUCCESS", "FAILURE", "EVENT"]},
        "data": {
            "type": "object",
            "properties": {
                "event_type": {"type": "string"},
                "details": {"type": "object"},
                "result": {},
            },
            "additionalProperties": False,
            "dependencies": {
                "event_type": ["details"],
                "details": ["event_type"],
                "result": {"maxProperties": 1},
            },
        },
    },
    "required": ["state", "data"],
    "additionalProperties": False,
}


def _pairs(name: str) -> dict[str, Any]:
    pair = [
        {"type": "string", "pattern": object_names.LABEL_PATTERN},
        {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    ]
    item = {"type": "array", "items": pair, "minItems": 2, "maxItems": 2}
    return {
        "type": "object",
        "properties": {name: {"type": "array", "items": item, "maxItems": MAX_IDS}},
        "required": [name],
    }


ASK: Final = _pairs("asked")
CANCEL: Final = _pairs("cancel")
CONTROL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"do": {"enum": ["suspend", "resume", "drain", "stop"]}},
    "required": ["do"],
}
