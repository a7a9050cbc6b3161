"""What may be set, each setting once: for options, files, errors, documentation and editors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from wbengine import _names
from wbengine.cli import params

__all__ = ["DEFAULTS", "SCHEMA", "SECRETS", "SETTINGS", "VARIABLES", "Setting"]


class Setting(NamedTuple):
    """The JSON Schema of its values, whose description is the help of its option, too; how that is
    written, if there is one; and what click is told of it.
    """

    schema: Mapping[str, Any]
    spellings: tuple[str, ...] = ()
    option: Mapping[str, Any] = {}


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _enum(description: str, default: str, *words: str) -> dict[str, Any]:
    return {"enum": list(words), "default": default, "description": description}


def _text(metavar: str, *spellings: str, help: str) -> Setting:
    return Setting(_string(help), spellings, {"metavar": metavar})


def _texts(metavar: str, *spellings: str, help: str) -> Setting:
    items = {"type": "string", "minLength": 1}
    schema = {"type": "array", "items": items, "default": [], "description": help}
    return Setting(schema, spellings, {"metavar": metavar, "multiple": True})


def _flag(*spellings: str, help: str, **option: Any) -> Setting:
    schema = {"type": "boolean", "default": False, "description": help}
    return Setting(schema, spellings, {"default": None, **option})


def _choice(spelling: str, default: str, *words: str, help: str) -> Setting:
    return Setting(_enum(help, default, *words), (spelling,), {"type": click.Choice(words)})


def _key_and_value(text: str) -> tuple[str, Any]:
    """Of `KEY=VALUE`, where the value is JSON if it can be."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"{text!r} is not of the form KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _label(text: str) -> str:
    if not _names.is_label(text):
        raise ValueError(f"{text!r} is not 1 to 120 of A-Z a-z 0-9 _ . -")
    return text


_SCHEDULE: Final = {
    "type": "object",
    "properties": {
        "factory": _string("what makes the flow: module:function"),
        "cron": _string("five fields, such as '30 2 * * MON-FRI'"),
        "every": {"type": ["integer", "string"], "description": "an interval: seconds, or '5m'"},
        "time_zone": _string("of cron, such as Europe/Berlin; without one, UTC"),
        "jitter": {
            "type": ["number", "string"],
            "minimum": 0,
            "description": "up to so much later: seconds, or '1m'",
        },
        "catch_up": _enum("of ticks that were missed", "one", "skip", "one", "all"),
        "overlap": _enum("while the flow before runs", "skip", "skip", "queue", "cancel", "allow"),
        "inputs": {"type": "object", "description": "values that are there from the start"},
        "tags": {"type": "object", "description": "to find its flows by"},
        "priority": _string("VERY_HIGH, HIGH, NORMAL, LOW or VERY_LOW"),
    },
    "required": ["factory"],
    "additionalProperties": False,
}

SETTINGS: Final[Mapping[str, Setting]] = {
    "url": _text("URL", "-b", "--broker", "--url",
        help="The broker (default: a folder of this user)."),
    "exchange": Setting(
        {**_string("The exchange that engines and workers meet at ('default')."),
         "default": "default", "pattern": r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,120}$"},
        ("-x", "--exchange"), {"type": params.Parsed("NAME", _label)}),
    "transport": _text("NAME", "--transport", help="kombu transport, such as filesystem."),
    "transport_options": Setting(
        {"type": "object", "default": {}, "description": "Option of the transport (repeatable)."},
        ("--transport-option",),
        {"type": params.Parsed("K=V", _key_and_value), "multiple": True}),
    "ledger": _text("URL", "--ledger", help="The ledger of the workers (the broker's own)."),
    "keys": _text("FILE", "--keys",
        help="The file of the keys that messages are signed with, or 'none' ($WBENGINE_KEYS; see"
        " `wbengine keys`)."),
    "persistence": _text("URL", "--persistence",
        help="The store of flows: sqlite:////var/lib/flows.db (a folder of this user)."),
    "board": _text("URL", "--board",
        help="The job board of submitted flows: redis://queues/0 (that in the store)."),
    "include": _texts("MODULE", "-I", "--include", help="Import this module first (repeatable)."),
    "flows": _texts("MODULE[:NAME]", "--flows",
        help="Make flows of records by what is in this module, or by this function, only"
        " (repeatable; without it: by all but what is Python's or in an installed package)."),
    "timeout": Setting(
        {"type": "number", "exclusiveMinimum": 0, "maximum": 86400, "default": 5.0,
         "description": "Seconds that a broker, store or worker has to answer (5)."},
        ("--timeout",), {"type": click.FloatRange(0, 86400, min_open=True), "metavar": "S"}),
    "json": _flag("--json/--no-json", help="Print JSON instead of tables."),
    "color": _choice("--color", "auto", "auto", "always", "never",
        help="Colour (auto: on a terminal; $NO_COLOR and $FORCE_COLOR count)."),
    "quiet": _flag("-q", "--quiet", is_flag=True, flag_value=True,
        help="Say nothing but results and errors."),
    "log_level": _choice("--log-level", "warning", "debug", "info", "warning", "error", "critical",
        help="Least level logged ('warning')."),
    "log_format": _choice("--log-format", "text", "text", "json", help="Form of the log."),
    "schedules": Setting(
        {"type": "object", "default": {}, "additionalProperties": _SCHEDULE,
         "description": "schedules by name, which `wbengine serve` keeps when it begins"}),
}  # fmt: skip

SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "wbengine.toml, or [tool.wbengine] of pyproject.toml",
    "description": "Besides these, a table for each command holds defaults of its own options.",
    "type": "object",
    "properties": {name: found.schema for name, found in SETTINGS.items()},
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
