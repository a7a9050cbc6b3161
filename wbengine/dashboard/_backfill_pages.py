"""The page that submits flows for past times of a schedule: the times, and a form to confirm."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import _http_errors, _operation_forms, _role_checks
from wbengine.dashboard._app_state import AppState
from wbengine.operations import _operation
from wbengine.operations._operation import Operation

__all__ = ["NOTICE", "BackfillPages", "operation", "submit"]

NOTICE: Final = "The flows are submitted. Conductors run them after other flows."

_FIELDS: Final = ("from_time", "to_time", "max_flows", "priority")


def operation() -> Operation:
    return _operation.table()["schedule backfill"]


class BackfillPages:
    """Handlers of the page. They block: Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/schedules/backfill", self.backfill)]

    def backfill(self, request: Request) -> Response:
        """Show a form, and the past times without a flow, if it was filled in."""
        schedule = request.query_params.get("schedule", "")
        role = operation().role
        _role_checks.check_allowed(self._state, request, "schedule backfill", role, None)
        fields = {name: request.query_params.get(name, "").strip() for name in _FIELDS}
        context: dict[str, Any] = {
            "here": "/schedules",
            "schedule": schedule,
            "operation": operation(),
            "parameters": operation().parameters,
            "defaults": operation().defaults,
            "fields": fields,
            "preview": None,
        }
        if fields["from_time"]:
            with _http_errors.as_http_errors():
                preview = _preview(self._state, request, schedule, fields)
            context |= {"preview": preview, "selection": _digest(preview)}
        return self._state.render(request, "backfill.html", context)


def submit(app_state: AppState, request: Request, schedule: str, form: Mapping[str, str]) -> None:
    """Submit the flows of a confirmed form.

    :raises HTTPException: if the times without a flow are no longer those of the page.
    """
    fields = {name: form.get(name, "").strip() for name in _FIELDS}
    if _digest(_preview(app_state, request, schedule, fields)) != form.get("selection", ""):
        raise HTTPException(409, "The times without a flow have changed. Confirm them again.")
    operation().perform(app_state.scope(request), _arguments(schedule, fields))


def _preview(
    app_state: AppState, request: Request, schedule: str, fields: Mapping[str, str]
) -> Mapping[str, Any]:
    arguments = {**_arguments(schedule, fields), "dry_run": True}
    return operation().perform(app_state.scope(request), arguments)


def _arguments(schedule: str, fields: Mapping[str, str]) -> dict[str, Any]:
    return {**_operation_forms.arguments_of(operation(), fields), "schedule": schedule}


def _digest(preview: Mapping[str, Any]) -> str:
    """Return a digest of the times that a visitor confirms."""
    times = " ".join(each["scheduled_at"] for each in preview["flows"])
    return hashlib.sha256(times.encode()).hexdigest()
