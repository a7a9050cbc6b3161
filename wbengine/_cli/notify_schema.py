"""The schema of the table `[notify]`, which few commands need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine.notifications import _email, _event, _settings

__all__ = ["NOTIFY"]


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


def _strings(description: str) -> dict[str, Any]:
    items = {"type": "string", "minLength": 1}
    return {"type": "array", "items": items, "description": description}


def _duration(description: str) -> dict[str, Any]:
    return {"type": ["number", "string"], "description": description}


_RULES: Final = {
    "events": {
        "type": "array",
        "items": {"enum": list(_event.KINDS)},
        "description": "kinds of events (default: all)",
    },
    "flows": _strings("only flows with these names, with the wildcards * and ?"),
    "tags": {"type": "object", "description": "only flows with these tags"},
    "backlog_after": _duration("age at which a flow that was not started is a backlog ('10m')"),
    "missed_after": _duration("time after which a due firing is missing ('5m')"),
    "group_wait": _duration("time for which the first event waits for others ('10s')"),
    "interval": _duration("minimum time between two messages ('1m')"),
    "error_messages": {
        "type": "boolean",
        "description": "whether messages contain masked messages of errors, not only types (true)",
    },
}

_DESTINATION: Final = {
    "type": "object",
    "properties": {
        "type": {"enum": list(_settings.TYPES), "description": "its kind"},
        "url": _string("webhook: the URL, if it is not secret"),
        "url_file": _string("webhook, slack, apprise: file that contains the URL"),
        "url_variable": _string("the same: environment variable that contains the URL"),
        "key_file": _string("webhook: file that contains the key of signatures"),
        "key_variable": _string("webhook: environment variable that contains the key"),
        "host": _string("email: host of the server"),
        "port": {
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "description": "email: port of the server (587, 465 or 25, as tls requires)",
        },
        "tls": {"enum": list(_email.TLS), "description": "email: encryption ('starttls')"},
        "user": _string("email: user at the server"),
        "password_file": _string("email: file that contains the password"),
        "password_variable": _string("email: environment variable that contains the password"),
        "from": _string("email: address of the sender"),
        "to": _strings("email: addresses of the recipients"),
        "timeout": _duration("webhook, slack, email: limit of an attempt ('10s', at most '30s')"),
        "ca_file": _string("webhook, slack, email: file of certificate authorities"),
        **_RULES,
    },
    "required": ["type"],
    "additionalProperties": False,
}

NOTIFY: Final[Mapping[str, Any]] = {
    "properties": {
        **_RULES,
        "dashboard_url": _string("URL of the dashboard, for links"),
        "hook": _string("function that is called with each event: module:function"),
        "to": {
            "type": "object",
            "additionalProperties": _DESTINATION,
            "description": "destinations by name; their rules replace those of [notify]",
        },
    },
    "additionalProperties": False,
}
