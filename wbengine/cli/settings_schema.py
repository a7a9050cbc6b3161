"""What may be set: one JSON Schema for files, errors, documentation and editors."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["DEFAULTS", "LEVELS", "SCHEMA", "SECRETS", "VARIABLES"]

LEVELS: Final = ("debug", "info", "warning", "error", "critical")


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _texts(description: str) -> dict[str, Any]:
    items = {"type": "string", "minLength": 1}
    return {"type": "array", "items": items, "default": [], "description": description}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "default": False, "description": description}


def _choice(description: str, default: str, *words: str) -> dict[str, Any]:
    return {"enum": list(words), "default": default, "description": description}


_LABEL: Final = {"pattern": r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,120}$"}

_SCHEDULE: Final = {
    "type": "object",
    "properties": {
        "factory": _text("what makes the flow: module:function"),
        "cron": _text("five fields, such as '30 2 * * MON-FRI'"),
        "every": {"type": ["integer", "string"], "description": "an interval: seconds, or '5m'"},
        "time_zone": _text("of cron, such as Europe/Berlin; without one, UTC"),
        "jitter": {
            "type": ["number", "string"],
            "minimum": 0,
            "description": "up to so much later: seconds, or '1m'",
        },
        "catch_up": _choice("of ticks that were missed", "one", "skip", "one", "all"),
        "overlap": _choice(
            "while the flow before runs", "skip", "skip", "queue", "cancel", "allow"
        ),
        "inputs": {"type": "object", "description": "values that are there from the start"},
        "tags": {"type": "object", "description": "to find its flows by"},
        "priority": _text("VERY_HIGH, HIGH, NORMAL, LOW or VERY_LOW"),
    },
    "required": ["factory"],
    "additionalProperties": False,
}

SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "wbengine.toml, or [tool.wbengine] of pyproject.toml",
    "description": "Besides these, a table for each command holds defaults of its own options.",
    "type": "object",
    "properties": {
        "url": _text("the broker; without one, a folder of this user"),
        "exchange": {
            **_text("the exchange that engines and workers meet at"),
            **_LABEL,
            "default": "default",
        },
        "transport": _text("kombu transport, such as filesystem or memory"),
        "transport_options": {
            "type": "object",
            "default": {},
            "description": "options of the transport",
        },
        "ledger": _text("the ledger of the workers; without one, that of the broker"),
        "keys": _text("the file of the keys that messages are signed with; 'none': they are not"),
        "persistence": _text("the store of flows; without one, a folder of this user"),
        "board": _text("the job board of submitted flows; without one, that in the store"),
        "include": _texts("modules that are imported first"),
        "flows": _texts(
            "modules, or functions as 'module:name', that may make the flows of records; without"
            " any, all that is neither Python's own nor an installed package's"
        ),
        "timeout": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 86400,
            "default": 5.0,
            "description": "seconds that a broker, a store or a worker has to answer",
        },
        "json": _flag("print JSON instead of tables"),
        "color": _choice("whether to colour", "auto", "auto", "always", "never"),
        "quiet": _flag("say nothing but results and errors"),
        "log_level": _choice("least level that is logged", "warning", *LEVELS),
        "log_format": _choice("how lines of the log are written", "text", "text", "json"),
        "schedules": {
            "type": "object",
            "default": {},
            "description": "schedules by name, which `wbengine serve` keeps when it begins",
            "additionalProperties": _SCHEDULE,
        },
    },
}

#: What holds where nobody says anything.
DEFAULTS: Final[dict[str, Any]] = {
    name: found["default"] for name, found in SCHEMA["properties"].items() if "default" in found
}

#: What may hold a password: it may be in a file of its own, which NAME_FILE names.
SECRETS: Final = ("url", "ledger", "persistence", "board")

#: Setting -> its variables of the environment, the first of which counts.
VARIABLES: Final[dict[str, tuple[str, ...]]] = {
    name: (f"WBENGINE_{name.upper()}",) for name in SCHEMA["properties"]
}
VARIABLES["url"] += ("WBENGINE_BROKER_URL",)
VARIABLES["persistence"] += ("WBENGINE_PERSISTENCE_URL",)
