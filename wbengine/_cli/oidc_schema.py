"""The schema of the table `[oidc]`, which few commands need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wbengine.dashboard import _oidc_settings, _roles

__all__ = ["OIDC"]


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": description}


_ROLE: Final = {"enum": list(_roles.ROLES)}

_RULE: Final = {
    "type": "object",
    "properties": {
        "value": _string("value of the claim with the roles"),
        "role": {**_ROLE, "description": "role of the users with this value"},
        "tags": {"type": "object", "description": "access only to flows with these tags"},
        "queues": {"type": "array", "description": "access only to flows of these queues"},
    },
    "required": ["value", "role"],
    "additionalProperties": False,
}

OIDC: Final[Mapping[str, Any]] = {
    "properties": {
        "issuer": _string("URL of the provider, exactly as the provider spells it"),
        "client_id": _string("id of the dashboard at the provider"),
        "client_secret_file": _string("file that contains the client secret"),
        "client_secret_variable": _string("environment variable that contains the client secret"),
        "dashboard_url": _string("URL of the dashboard in browsers, with its path prefix"),
        "label": _string("name of the provider on the button (default: its host)"),
        "scopes": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "description": f"requested scopes ({' '.join(_oidc_settings.SCOPES)})",
        },
        "roles_claim": _string(f"claim with the roles ('{_oidc_settings.ROLES_CLAIM}')"),
        "name_claim": _string(
            f"claim with the name (the first of {', '.join(_oidc_settings.NAME_CLAIMS)})"
        ),
        "roles": {
            "type": "array",
            "items": _RULE,
            "description": "roles by value of the claim; the first matching entry counts",
        },
        "default_role": {**_ROLE, "description": "role of other users (default: no access)"},
        "session": {
            "type": ["number", "string"],
            "description": f"length of a session ('{_oidc_settings.SESSION}')",
        },
        "ca_file": _string("file of certificate authorities"),
    },
    "additionalProperties": False,
}
