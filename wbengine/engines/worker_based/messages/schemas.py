"""The JSON Schemas of all messages.

NOTIFY, REQUEST and RESPONSE have the shape that TaskFlow's peers use.
"""

from __future__ import annotations

from typing import Any, Final

from wbengine import _names

#: Ids at most that one message asks for, or cancels.
MAX_IDS: Final = 500

#: Numbers above this one count nothing.
MAX_NUMBER: Final = 2**53

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

#: Failures in it have a schema of their own (`Failure.SCHEMA`).
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

#: Its data is an event, a result, or nothing.
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
    """A list of request ids, with a number each."""
    pair = [
        {"type": "string", "pattern": _names.LABEL_PATTERN},
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
