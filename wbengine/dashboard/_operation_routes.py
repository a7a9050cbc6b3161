"""The operations of the table as paths of the API: `POST /api/v1/flows/{flow}/cancel`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine.dashboard import _audited_actions, _rendering, _role_checks, _urls
from wbengine.dashboard._app_state import AppState
from wbengine.operations import _operation
from wbengine.operations._operation import Operation

__all__ = [
    "IDEMPOTENCY_KEY",
    "MAX_BODY_BYTES",
    "NO_TOKEN",
    "OperationRoutes",
    "path_of",
    "read_json",
]

MAX_BODY_BYTES: Final = 1024 * 1024

NO_TOKEN: Final = "This path needs the token in the header Authorization: Bearer."

#: A header that sets `unique`, so that a client can repeat a submission whose response was lost.
IDEMPOTENCY_KEY: Final = "idempotency-key"
_IDEMPOTENT_FOR: Final = "24h"


class OperationRoutes:
    """Handlers of operations. A request needs the token in its header: cookies do not count."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route(path_of(operation), functools.partial(self._handle, operation), methods=["POST"])
            for operation in _operation.table().values()
        ]

    async def _handle(self, operation: Operation, request: Request) -> Response:
        action = operation.name
        problem = None if request.state.has_token else NO_TOKEN
        _role_checks.check_allowed(self._state, request, action, operation.role, problem)
        arguments = await _arguments(request, operation)
        _role_checks.check_arguments(self._state, request, action, operation, arguments)
        action = _described(operation, arguments)
        scope = self._state.scope(request)
        act = functools.partial(operation.perform, scope, arguments)
        result = await _audited_actions.perform(self._state, request, action, act)
        headers = None
        if operation.creates:
            headers = {"location": _urls.href(request, f"/api/v1/flows/{result['uuid']}")}
        content = {"schema": f"wbengine/{operation.schema}/1", **result}
        return _rendering.SafeJSONResponse(content, 201 if operation.creates else 200, headers)


def _described(operation: Operation, arguments: Mapping[str, Any]) -> str:
    """Return the operation with what it changes, for the audit log.

    Without a target, these are the required texts: the name of a limit, the pattern of tasks.
    """
    target, required = operation.target, sorted(operation.required)
    names = required if target is None else [target]
    values = [arguments[name] for name in names if isinstance(arguments.get(name), str)]
    return " ".join([operation.name, *(f"{value!r:.120}" for value in values)])


def path_of(operation: Operation) -> str:
    """Return the path of an operation as a template, such as `/api/v1/flows/{flow}/cancel`."""
    subject = operation.subject
    parts = ["/api/v1", subject if subject.endswith("s") else f"{subject}s"]
    if operation.target is not None:
        parts.append(f"{{{operation.target}}}")
    if not operation.creates:
        parts.append(operation.verb)
    return "/".join(parts)


async def _arguments(request: Request, operation: Operation) -> dict[str, Any]:
    """Return the arguments in the body, the path and the headers.

    :raises HTTPException: if the body is not a JSON object, is too long, or arrives too late.
    """
    arguments = await read_json(request)
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is not None and "unique" in operation.parameters and "unique" not in arguments:
        arguments = {"unique_for": _IDEMPOTENT_FOR, **arguments, "unique": key}
    for name, value in request.path_params.items():
        if name in arguments:
            raise HTTPException(400, f"{name} must not be in the body: it is in the path")
        arguments[name] = value
    return arguments


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body; an empty one if there is no body.

    :raises HTTPException: if it is not a JSON object, is too long, or arrives too late.
    """
    return _parse(request, await _audited_actions.read_body(request, "body", MAX_BODY_BYTES))


def _parse(request: Request, body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    if _audited_actions.content_type(request) != "application/json":
        raise HTTPException(415, "The content type must be application/json.")
    try:
        arguments = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The body must be JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return arguments


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
