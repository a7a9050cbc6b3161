"""Operations on many flows in the API: `POST /api/v1/flows/retry` and `/api/v1/bulks`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine._configuration import plugins
from wbengine.dashboard import (
    _audit,
    _audited_actions,
    _http_errors,
    _listings,
    _operation_routes,
    _rendering,
    _role_checks,
    _urls,
)
from wbengine.dashboard._app_state import AppState
from wbengine.engines import _engine_choice
from wbengine.operations import _bulk, _bulk_selection
from wbengine.operations._operation import Choice, Operation, Parameter
from wbengine.persistence._bulk_records import Bulk, BulkFlow
from wbengine.persistence._listing import FlowRow

__all__ = ["CHOICE", "VERBS", "BulkRoutes", "BulkRequest", "examples", "parameters", "start"]

_MAX_EXAMPLES: Final = 10

#: Actions on a stored operation, with their summaries.
VERBS: Final[Mapping[str, str]] = {
    "cancel": "Cancel an operation on many flows. Flows that it has changed stay so.",
    "resume": "Continue a cancelled operation on many flows.",
}

_UUID: Final = {"type": "string", "description": "a uuid", "pattern": "^[0-9a-f-]{36}$"}
_FILTER: Final = {
    **_bulk_selection.FILTER,
    "properties": {
        **_bulk_selection.FILTER["properties"],
        "engine": {"enum": plugins.names(_engine_choice.ENGINES_NAMESPACE)},
    },
}
_SELECTION: Final[Mapping[str, Parameter]] = {
    "flows": Parameter(
        "The uuids of the flows.",
        {"type": "array", "items": _UUID, "minItems": 1, "maxItems": _bulk_selection.MAX_FLOWS},
    ),
    "filter": Parameter("Conditions of the flows.", _FILTER),
    "all": Parameter("All flows that the operation accepts.", {"enum": [True]}),
    "rate": Parameter(
        "Maximum number of flows per second.", {"type": "number", "minimum": _bulk.MIN_RATE}
    ),
    "dry_run": Parameter(
        "Change nothing; return the number of flows and some of them.", {"type": "boolean"}
    ),
    "reason": Parameter("The reason.", {"type": "string", "maxLength": _bulk.MAX_REASON_CHARS}),
}
#: Ways to select flows.
CHOICE: Final = Choice(("flows", "filter", "all"))


class BulkRequest(NamedTuple):
    """A request to carry an operation out on many flows."""

    operation: Operation
    arguments: Mapping[str, Any]
    flows: tuple[str, ...] | None
    conditions: _bulk_selection.Filter
    rate: float | None = None
    reason: str | None = None
    dry_run: bool = False

    @classmethod
    def parse(cls, operation: Operation, body: Mapping[str, Any]) -> BulkRequest:
        """Check the body of a request.

        :raises ValueError: if a value is invalid, or flows are not selected in exactly one way.
        """
        given = {name: value for name, value in body.items() if name in _SELECTION}
        for name, value in given.items():
            _SELECTION[name].check(name, value)
        CHOICE.check(f"{operation.name} of many flows", given)
        arguments = {name: value for name, value in body.items() if name not in _SELECTION}
        if operation.target in arguments:
            raise ValueError(f"use flows instead of {operation.target}")
        operation.check({**arguments, str(operation.target): ""})
        conditions = dict(given.get("filter", {}))
        if "states" in conditions:
            conditions["states"] = tuple(conditions["states"])
        if "engine" in conditions:
            conditions["engine"] = _listings.check_engine(conditions["engine"])
        flows = given.get("flows")
        return cls(
            operation,
            arguments,
            None if flows is None else tuple(flows),
            _bulk_selection.Filter(**conditions),
            given.get("rate"),
            given.get("reason"),
            given.get("dry_run", False),
        )


def parameters(operation: Operation) -> dict[str, Parameter]:
    """Return the parameters of an operation on many flows."""
    own = {name: each for name, each in operation.parameters.items() if name != operation.target}
    return {**_SELECTION, **own}


class BulkRoutes:
    """Handlers of these paths. A request needs the token in its header."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        start_routes = [
            Route(
                f"/api/v1/flows/{each.verb}",
                functools.partial(self._start, each),
                methods=["POST"],
            )
            for each in _bulk.operations().values()
        ]
        change_routes = [
            Route(
                f"/api/v1/bulks/{{uuid:uuid}}/{verb}",
                functools.partial(self._change, verb),
                methods=["POST"],
            )
            for verb in VERBS
        ]
        return [*start_routes, *change_routes]

    async def _start(self, operation: Operation, request: Request) -> Response:
        self._check(request, f"{operation.name} of many flows", operation)
        body = await _operation_routes.read_json(request)
        with _http_errors.as_http_errors():
            bulk_request = BulkRequest.parse(operation, body)
        _role_checks.check_arguments(
            self._state, request, operation.name, operation, bulk_request.arguments
        )
        with _http_errors.as_http_errors():
            rows = await run_in_threadpool(rows_of, self._state, request, bulk_request)
        if bulk_request.dry_run:
            content = {"schema": f"wbengine/{operation.schema}-many/1"}
            return _rendering.SafeJSONResponse({**content, **examples(self._state, rows)})
        bulk = await start(self._state, request, bulk_request, rows)
        headers = {"location": _urls.href(request, f"/api/v1/bulks/{bulk.uuid}")}
        return _rendering.SafeJSONResponse(_content(bulk), 201, headers)

    async def _change(self, verb: str, request: Request) -> Response:
        bulk = await change(self._state, request, verb, self._check)
        return _rendering.SafeJSONResponse(_content(bulk))

    def _check(self, request: Request, action: str, operation: Operation | None) -> None:
        problem = None if request.state.has_token else _operation_routes.NO_TOKEN
        _role_checks.check_bulk(self._state, request, action, operation, problem)


def _content(bulk: Bulk) -> dict[str, Any]:
    return {"schema": "wbengine/bulk/1", **bulk.to_dict()}


async def change(app_state: AppState, request: Request, verb: str, check: Any) -> Bulk:
    """Cancel or resume an operation.

    :param check: checks the rights for the operation: `check(request, action, operation)`.
    """
    uuid = str(request.path_params["uuid"])
    with _http_errors.as_http_errors():
        bulk = await run_in_threadpool(_bulk.find, app_state.store(request).backend, uuid)
    action = f"{verb} operation {uuid} ({bulk.operation})"
    operation = _bulk.operations().get(bulk.operation)
    check(request, action, operation)
    if operation is not None:
        backend = app_state.store(request).backend
        arguments = await run_in_threadpool(_bulk.all_arguments, backend, bulk)
        _role_checks.check_arguments(app_state, request, action, operation, arguments)
    act = functools.partial(getattr(_bulk, verb), app_state.store(request).backend, bulk.uuid)
    return await _audited_actions.perform(app_state, request, action, act)


def rows_of(app_state: AppState, http_request: Request, request: BulkRequest) -> list[FlowRow]:
    """Return the rows of the selected flows.

    :raises ValueError: if a condition is invalid.
    :raises NotFound: if a flow does not exist.
    """
    with contextlib.closing(app_state.store(http_request).backend.get_connection()) as connection:
        if request.flows is not None:
            return _bulk_selection.select_by_id(connection, request.flows)
        return _bulk_selection.select_for(
            connection, request.operation, request.conditions, request.arguments
        )


def examples(app_state: AppState, rows: list[FlowRow]) -> dict[str, Any]:
    """Return the number of flows and some of them."""
    mask = app_state.redactor.text
    return {
        "dry_run": True,
        "count": len(rows),
        "examples": [
            {
                "uuid": row.uuid,
                "name": row.name,
                "state": row.state,
                "error": row.error and mask(row.error),
            }
            for row in rows[:_MAX_EXAMPLES]
        ],
    }


async def start(
    app_state: AppState, http_request: Request, request: BulkRequest, rows: list[FlowRow]
) -> Bulk:
    """Store an operation on these flows, and log it.

    :raises HTTPException: if there are no flows.
    """
    if not rows:
        raise HTTPException(409, "No flow is selected.")
    action = f"{request.operation.name} of {len(rows)} flows"
    if request.reason:
        action += f", reason {app_state.redactor.text(request.reason)!r:.520}"
    act = functools.partial(
        _bulk.start,
        app_state.store(http_request).backend,
        request.operation.name,
        [BulkFlow(row.uuid, row.state) for row in rows],
        request.arguments,
        filter=request.conditions.to_dict(),
        reason=request.reason,
        by=_audit.sender_of(http_request),
        rate=request.rate,
    )
    return await _audited_actions.perform(app_state, http_request, action, act)
