"""All settings, each defined once for options, files, errors, documentation and editors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from wbengine._cli import params
from wbengine._introspection import object_names

__all__ = ["DEFAULTS", "SCHEMA", "SECRETS", "SETTINGS", "VARIABLES", "Setting", "key_and_value"]


class Setting(NamedTuple):
    """A setting: the JSON Schema of its values, the spellings of its option, and click's arguments.

    The description in the schema is also the help of the option.
    """

    schema: Mapping[str, Any]
    spellings: tuple[str, ...] = ()
    option: Mapping[str, Any] = {}
    #: Text that describes the default.
    default: str = ""


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _enum(description: str, default: str, *words: str) -> dict[str, Any]:
    return {"enum": list(words), "default": default, "description": description}


def _text(metavar: str, *spellings: str, help: str, default: str = "") -> Setting:
    return Setting(_string(help), spellings, {"metavar": metavar}, default)


def _texts(metavar: str, *spellings: str, help: str, default: str = "") -> Setting:
    items = {"type": "string", "minLength": 1}
    schema = {"type": "array", "items": items, "default": [], "description": help}
    return Setting(schema, spellings, {"metavar": metavar, "multiple": True}, default)


def _flag(*spellings: str, help: str, **option: Any) -> Setting:
    schema = {"type": "boolean", "default": False, "description": help}
    return Setting(schema, spellings, {"default": None, **option})


def _choice(spelling: str, default: str, *words: str, help: str) -> Setting:
    return Setting(_enum(help, default, *words), (spelling,), {"type": params.Choice(words)})


def key_and_value(text: str) -> tuple[str, Any]:
    """Split `KEY=VALUE`. The value is JSON if it can be parsed, otherwise text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"must have the form KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _label(text: str) -> str:
    if not object_names.is_label(text):
        raise ValueError(f"must be 1 to 120 characters of A-Z a-z 0-9 _ . -, got {text!r}")
    return text


def _duration(description: str) -> dict[str, Any]:
    return {"type": ["number", "string"], "description": description}


_RETENTION: Final = {
    "success": _duration("time after which flows in SUCCESS are deleted: seconds, or '7d'"),
    "failure": _duration("the same for FAILURE"),
    "reverted": _duration("the same for REVERTED"),
    "max_flows": {
        "type": "integer",
        "minimum": 1,
        "description": "number of flows above which the oldest ended flows are deleted",
    },
}

_SCHEDULE: Final = {
    "type": "object",
    "properties": {
        "factory": _string("function that builds the flow: module:function"),
        "cron": _string("five fields, such as '30 2 * * MON-FRI', or '@daily'"),
        "every": {"type": ["integer", "string"], "description": "interval: seconds, or '5m'"},
        "time_zone": _string("time zone of cron, such as Europe/Berlin (default: UTC)"),
        "jitter": {
            "type": ["number", "string"],
            "minimum": 0,
            "description": "maximum random delay of a firing: seconds, or '1m'",
        },
        "catch_up": _enum(
            "firings for missed times: none, the latest or all", "one", "skip", "one", "all"
        ),
        "overlap": _enum(
            "action while the previous flow runs", "skip", "skip", "queue", "cancel", "allow"
        ),
        "inputs": {"type": "object", "description": "inputs of the flow"},
        "tags": {"type": "object", "description": "tags of the flow"},
        "priority": _string("VERY_HIGH, HIGH, NORMAL, LOW or VERY_LOW"),
        "undo_until": {
            "type": ["number", "string"],
            "description": "time from the end of a flow in which it can be undone: seconds, or"
            " '30d'",
        },
    },
    "required": ["factory"],
    "additionalProperties": False,
}

SETTINGS: Final[Mapping[str, Setting]] = {
    "url": _text("URL", "-b", "--broker", "--url",
        help="URL of the broker.", default="the database of --persistence if it is PostgreSQL or"
        " MySQL, or else a folder of this user"),
    "exchange": Setting(
        {**_string("Exchange of the engines and workers."),
         "default": "default", "pattern": r"^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,120}$"},
        ("-x", "--exchange"), {"type": params.Parsed("NAME", _label)}),
    "transport": _text("NAME", "--transport", help="Name of the transport, such as filesystem.",
        default="the scheme of the URL"),
    "transport_options": Setting(
        {"type": "object", "default": {}, "description": "Option of the transport (repeatable)."},
        ("--transport-option",),
        {"type": params.Parsed("K=V", key_and_value), "multiple": True}),
    "ledger": _text("URL", "--ledger", help="URL of the ledger.", default="the ledger of the"
    " broker"),
    "keys": _text("FILE", "--keys",
        help="Key file that signs and verifies messages, or 'none' (see `wbengine keys`).",
        default="no keys"),
    "persistence": _text("URL", "--persistence",
        help="URL of the store of flows, such as sqlite:////var/lib/flows.db.",
        default="a folder of this user"),
    "payloads": _text("URL", "--payloads",
        help="Folder, or URL of fsspec, for large values of flows, such as s3://bucket/flows, or"
        " 'none'.", default="records and messages contain all values"),
    "board": _text("URL", "--board",
        help="URL of the job board, such as"
        " redis://queues/0.", default="the job board in the store"),
    "include": _texts("MODULE", "-I", "--include", help="Import this module before the command"
    " runs (repeatable)."),
    "flows": _texts("MODULE[:NAME]", "--flows",
        help="Build stored flows only with functions of this module, or with this function"
        " (repeatable).",
        default="all except those of Python and of installed packages"),
    "timeout": Setting(
        {"type": "number", "exclusiveMinimum": 0, "maximum": 86400, "default": 5.0,
         "description": "Maximum wait in seconds for an answer of the broker, a store or a"
         " worker."},
        ("--timeout",), {"type": click.FloatRange(0, 86400, min_open=True), "metavar": "S"}),
    "json": _flag("--json/--no-json", help="Print JSON instead of text."),
    "color": _choice("--color", "auto", "auto", "always", "never",
        help="Use colors (auto: on a terminal, or as $NO_COLOR and $FORCE_COLOR request)."),
    "quiet": _flag("-q", "--quiet", is_flag=True, flag_value=True,
        help="Print only results and errors."),
    "log_level": _choice("--log-level", "warning", "debug", "info", "warning", "error", "critical",
        help="Lowest level of printed log lines (without a value, worker and serve use info)."),
    "log_format": _choice("--log-format", "text", "text", "json", help="Format of log lines."),
    "traceback": _flag("--traceback", is_flag=True, flag_value=True,
        help="Show all frames of failures, not only those of your own code."),
    "schedules": Setting(
        {"type": "object", "default": {}, "additionalProperties": _SCHEDULE,
         "description": "schedules by name; `wbengine serve` stores them when it starts"}),
    "retention": Setting(
        {"type": "object", "default": {}, "properties": _RETENTION, "additionalProperties": False,
         "description": "times after which `wbengine serve` deletes ended flows"},
        default="all flows are kept"),
    "notify": Setting({"type": "object", "default": {}, "description": "destinations of messages of"
        " `wbengine serve` about failed flows and other events"}, default="no messages"),
    "databases": Setting(
        {"type": "object", "default": {}, "additionalProperties": _string("URL of the database"),
         "description": "databases of tasks with a transaction: URLs by name"},
        default="those that programs register"),
    "oidc": Setting({"type": "object", "default": {}, "description": "the provider of OpenID"
        " Connect at which users of `wbengine dashboard` sign in"}, default="no provider"),
}  # fmt: skip

#: Complete schemas of large settings.
_SCHEMAS: Final = {
    "notify": "wbengine._cli.notify_schema:NOTIFY",
    "oidc": "wbengine._cli.oidc_schema:OIDC",
}

SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "wbengine.toml, or [tool.wbengine] of pyproject.toml",
    "description": "A table named as a command contains defaults of its options.",
    "type": "object",
    "properties": {name: found.schema for name, found in SETTINGS.items()},
}


def schema_of(name: str) -> Mapping[str, Any]:
    """Return the complete schema of a setting: `SCHEMA` contains only the type of a large one."""
    more = object_names.load(_SCHEMAS[name]) if name in _SCHEMAS else {}
    return {**SCHEMA["properties"][name], **more}


DEFAULTS: Final[dict[str, Any]] = {
    name: found["default"] for name, found in SCHEMA["properties"].items() if "default" in found
}

#: Settings that can contain a password. The variable NAME_FILE can name a file with the value.
SECRETS: Final = ("url", "ledger", "persistence", "payloads", "board")

#: Setting -> its environment variable.
VARIABLES: Final[dict[str, str]] = {
    name: f"WBENGINE_{name.upper()}" for name in SCHEMA["properties"]
}
