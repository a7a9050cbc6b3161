"""Roles of visitors: what each role may do."""

from __future__ import annotations

from typing import Final

from wbengine._introspection import object_names

__all__ = ["ADMIN", "EDITOR", "OPERATOR", "PROXY", "ROLES", "VIEWER", "check_role", "includes"]

VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
EDITOR: Final = "editor"
ADMIN: Final = "admin"
#: Roles, lowest first. A viewer reads pages. An operator also submits and changes flows, and
#: changes schedules, limits and pauses of tasks. An editor also retries flows with other inputs
#: and results. An admin also drains workers, and deletes flows and schedules.
ROLES: Final = (VIEWER, OPERATOR, EDITOR, ADMIN)
#: The role of a proxy, which names the visitor of each request.
PROXY: Final = "proxy"


def includes(role: str | None, needed: str) -> bool:
    """Return whether `role` is `needed` or higher. None: a visitor without access."""
    return role in ROLES and ROLES.index(role) >= ROLES.index(needed)


def check_role(role: str, known: tuple[str, ...] = ROLES) -> str:
    """Return `role`.

    :raises ValueError: if it is not known.
    """
    if role not in known:
        near = object_names.hint(role, known)
        raise ValueError(f"role must be one of {', '.join(known)}, got {role!r:.40}{near}")
    return role
