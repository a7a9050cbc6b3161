"""Pages of operations on many flows: confirmation, progress and list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import (
    _bulk_routes,
    _bulk_views,
    _http_errors,
    _listings,
    _operation_forms,
    _role_checks,
    _roles,
    _visitors,
)
from wbengine.dashboard._app_state import AppState
from wbengine.operations import _bulk
from wbengine.operations._operation import Operation
from wbengine.persistence._bulk_records import CANCELLED, RUNNING
from wbengine.persistence._listing import FlowRow

__all__ = [
    "BulkPages",
    "fields_of_filter",
    "offered",
    "operation_of",
    "request_of",
    "selection_of",
]

_NOTICES: Final[Mapping[str, str]] = {
    "start": "The operation is stored.",
    "cancel": "The operation is cancelled.",
    "resume": "The operation continues.",
}
#: Fields of a form with JSON, by operation.
_JSON_FIELDS: Final[Mapping[str, str]] = {"signal": "value"}


class BulkPages:
    """Handlers of the pages. They block: Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/bulks", self.bulks),
            Route("/bulks/new", self.new),
            Route("/bulks/{uuid:uuid}", self.bulk),
        ]

    def bulks(self, request: Request) -> Response:
        with _http_errors.as_http_errors():
            context = {"here": "/bulks", "bulks": _bulk_views.latest(self._state, request)}
        part = request.query_params.get("part")
        return self._state.render(request, "_bulks.html" if part else "bulks.html", context)

    def new(self, request: Request) -> Response:
        """Show which flows an operation would change, and a form that confirms it."""
        operation = operation_of(request.query_params.get("operation", ""))
        _role_checks.check_bulk(
            self._state, request, f"{operation.name} of many flows", operation, None
        )
        with _http_errors.as_http_errors():
            flow_filter = _listings.FlowFilter.of(request)
            selected = _bulk_routes.BulkRequest(operation, {}, None, flow_filter.conditions())
            rows = _bulk_routes.rows_of(self._state, request, selected)
        fields = _operation_forms.fields_of(operation)
        context = {
            "here": "/bulks",
            "operation": operation,
            "preview": _bulk_routes.examples(self._state, rows),
            "selection": selection_of(operation, rows),
            "fields": {name: each for name, each in fields.items() if name != "reason"},
            "json_field": _JSON_FIELDS.get(operation.verb),
            "query": flow_filter.query(limit="", after=""),
            "max_reason": _bulk.MAX_REASON_CHARS,
        }
        return self._state.render(request, "bulk_new.html", context)

    def bulk(self, request: Request) -> Response:
        with _http_errors.as_http_errors():
            view = _bulk_views.one(self._state, request)
        context = {
            "here": "/bulks",
            "view": view,
            "is_running": view.bulk.state == RUNNING,
            "is_cancelled": view.bulk.state == CANCELLED,
            "operation": _bulk.operations().get(view.bulk.operation),
            "notice": _NOTICES.get(request.query_params.get("done", "")),
        }
        part = request.query_params.get("part")
        return self._state.render(request, "_bulk.html" if part else "bulk.html", context)


def offered(app_state: AppState, request: Request) -> list[Operation]:
    """Return the operations that the visitor may apply to all flows of a list."""
    if not app_state.allow_actions or _visitors.restriction_of(request):
        return []
    role = _visitors.role_of(request)
    return [each for each in _bulk.operations().values() if _roles.includes(role, each.role)]


def operation_of(verb: str) -> Operation:
    """Return the operation of a form.

    :raises HTTPException: if there is none.
    """
    operation = _bulk.operations().get(f"flow {verb}")
    if operation is None:
        raise HTTPException(404, "This operation does not exist.")
    return operation


def selection_of(operation: Operation, rows: Sequence[FlowRow]) -> str:
    """Return a digest of the flows that a visitor confirms; '' if nothing is lost afterwards."""
    if operation.many is None or not operation.many.is_destructive:
        return ""
    return hashlib.sha256(" ".join(sorted(row.uuid for row in rows)).encode()).hexdigest()


def request_of(
    operation: Operation, flow_filter: _listings.FlowFilter, form: Mapping[str, str]
) -> _bulk_routes.BulkRequest:
    """Return the request in a form of `BulkPages.new`.

    :raises ValueError: if a field is invalid.
    """
    arguments = _operation_forms.arguments_of(operation, form)
    reason = arguments.pop("reason", None) or form.get("reason", "").strip() or None
    json_field = _JSON_FIELDS.get(operation.verb)
    if json_field is not None and form.get(json_field, "").strip():
        try:
            arguments[json_field] = json.loads(form[json_field])
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{json_field} must be JSON: {error}") from error
    text = form.get("rate", "").strip()
    try:
        rate = float(text) if text else None
    except ValueError:
        raise ValueError(f"rate must be a number, got {text!r:.40}") from None
    return _bulk_routes.BulkRequest(
        operation, arguments, None, flow_filter.conditions(), rate, reason
    )


def fields_of_filter(flow_filter: _listings.FlowFilter) -> list[tuple[str, str]]:
    """Return the parameters of a filter as fields of a form."""
    query = flow_filter.query(limit="", after="")
    return [
        (name, str(each))
        for name, value in query.items()
        for each in (value if isinstance(value, tuple) else (value,))
        if each
    ]
