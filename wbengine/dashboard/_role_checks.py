"""Checks before an action: its form is valid, and the visitor has the roles that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from wbengine.dashboard import _bulk_views, _roles, _visitors
from wbengine.dashboard._app_state import AppState
from wbengine.operations._operation import Operation

__all__ = ["check_allowed", "check_arguments", "check_bulk", "check_form"]


def check_form(
    app_state: AppState, request: Request, form: Mapping[str, str], action: str, role: str
) -> None:
    """Check a form that changes something.

    :raises HTTPException: if the visitor lacks the role, or the form is invalid or expired.
    """
    sessions = app_state.sessions
    is_valid = sessions.is_valid_form_token(
        request.cookies.get(sessions.cookie), form.get("form_token")
    )
    problem = None if is_valid else "The form has expired. Reload the page."
    check_allowed(app_state, request, action, role, problem)


def check_allowed(
    app_state: AppState, request: Request, action: str, role: str, problem: str | None
) -> None:
    """Check that the dashboard allows actions and that the visitor has the role.

    :param problem: another reason for a refusal, or None.
    :raises HTTPException: if the action is refused.
    """
    visitor_role = _visitors.role_of(request)
    reason = None
    if not app_state.allow_actions:
        reason = "The dashboard is read-only; start it with --allow-actions to allow actions."
    elif problem is not None:
        reason = problem
    elif not _roles.includes(visitor_role, role):
        reason = f"This action needs role {role}, got {visitor_role or 'none'}."
    if reason is not None:
        app_state.audit.refused(request, action, reason)
        raise HTTPException(403, reason)


def check_arguments(
    app_state: AppState,
    request: Request,
    action: str,
    operation: Operation,
    arguments: Mapping[str, Any],
) -> None:
    """Check that the visitor has the roles that an operation with these arguments needs.

    :raises HTTPException: if the action is refused.
    """
    for role in operation.needed_roles(arguments):
        check_allowed(app_state, request, action, role, None)


def check_bulk(
    app_state: AppState,
    request: Request,
    action: str,
    operation: Operation | None,
    problem: str | None,
) -> None:
    """Check that the visitor may carry an operation out on many flows.

    :raises HTTPException: if not.
    """
    role = _roles.ADMIN if operation is None else operation.role
    if problem is None and _visitors.restriction_of(request):
        problem = _bulk_views.RESTRICTED
    check_allowed(app_state, request, action, role, problem)
