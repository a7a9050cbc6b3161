"""The page that submits a new flow: a form with one field for each of its inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from wbengine.dashboard import (
    _audited_actions,
    _http_errors,
    _input_fields,
    _operation_routes,
    _role_checks,
    _urls,
)
from wbengine.dashboard._app_state import AppState
from wbengine.dashboard._input_fields import Field
from wbengine.engines import _allowed, _input_schemas
from wbengine.engines._input_types import InvalidInputs
from wbengine.operations import _allowed_flows, _operation
from wbengine.operations._operation import Operation

__all__ = ["NOTICE", "SubmitPages", "operation"]

NOTICE: Final = "The flow is submitted. A conductor (wbengine serve) runs it."

#: Options of the submission that the form has.
_OPTIONS: Final = ("name", "priority", "queue", "undo_until")


#: Texts about values by the group and the name of their field.
_Faults = dict[tuple[str, str], Sequence[str]]


def operation() -> Operation:
    return _operation.table()["flow submit"]


class SubmitPages:
    """Handlers of the page. Code of users runs in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/submit", self.show, methods=["GET"]),
            Route("/submit", self.submit, methods=["POST"]),
        ]

    def show(self, request: Request) -> Response:
        """Show a form for the factory, and with a factory, that of its inputs."""
        role = operation().role
        _role_checks.check_allowed(self._state, request, operation().name, role, None)
        factory = request.query_params.get("factory", "").strip()
        if not factory:
            return self._render(request, factory, None, {})
        try:
            fields = _fields_of(factory)
        except HTTPException as error:
            return self._render(request, factory, None, {}, error)
        return self._render(request, factory, fields, {})

    async def submit(self, request: Request) -> Response:
        """Submit the flow, or show the form with the faults of its fields."""
        form = await _audited_actions.read_form(request, _operation_routes.MAX_BODY_BYTES)
        factory = form.get("factory", "").strip()
        action = f"submit flow {factory!r:.220}"
        _role_checks.check_form(self._state, request, form, action, operation().role)
        try:
            fields = await run_in_threadpool(_fields_of, factory)
        except HTTPException as error:
            self._state.audit.failed(request, action, error.detail)
            return await self._render_later(request, factory, None, form, error)
        values, faults = _values_of(fields, form)
        if faults:
            self._state.audit.failed(request, action, "invalid fields")
            shown = _filled(fields, form, faults)
            return await self._render_later(request, factory, shown, form)
        options = {name: text for name in _OPTIONS if (text := form.get(name, "").strip())}
        arguments = {**options, **values, "factory": factory}
        act = functools.partial(operation().perform, self._state.scope(request), arguments)
        try:
            result = await _audited_actions.perform(self._state, request, action, act)
        except HTTPException as error:
            if error.status_code >= 500:
                raise
            cause = error.__cause__
            if isinstance(cause, InvalidInputs):
                faults = {(cause.path, name): each for name, each in cause.faults.items()}
            shown = _filled(fields, form, faults)
            problem = None if any(each.faults for each in shown) else error
            return await self._render_later(request, factory, shown, form, problem)
        url = _urls.href(request, f"/flows/{result['uuid']}", done=operation().verb)
        return RedirectResponse(url, 303)

    async def _render_later(self, *arguments: Any) -> Response:
        return await run_in_threadpool(self._render, *arguments)

    def _render(
        self,
        request: Request,
        factory: str,
        fields: Sequence[Field] | None,
        form: Mapping[str, str],
        error: HTTPException | None = None,
    ) -> Response:
        """Render the page.

        :param fields: the fields of the flow; None: no flow is selected, or it cannot be created.
        :param error: an error that does not belong to a field.
        """
        mask = self._state.redactor.text
        parameters = operation().parameters
        is_valid = error is None and not any(each.faults for each in fields or ())
        context: dict[str, Any] = {
            "here": "/",
            "factory": factory,
            "allowed": _allowed.of_process().names,
            "fields": fields,
            "options": {name: (parameters[name], form.get(name, "")) for name in _OPTIONS},
            "defaults": operation().defaults,
            "problem": None if error is None else mask(error.detail),
            "mask": mask,
        }
        status = 200 if is_valid else 400 if error is None else error.status_code
        return self._state.render(request, "submit.html", context, status=status)


def _fields_of(factory: str) -> list[Field]:
    """Return the fields for the arguments of a factory and the inputs of its flow.

    :raises HTTPException: if the factory is not allowed or raises an error.
    """
    with _http_errors.as_http_errors(), _allowed_flows.loading(factory):
        schemas = _input_schemas.of_factory(factory)
    arguments, inputs = schemas.arguments, schemas.inputs
    fields = [] if arguments is None else _input_fields.fields_of(arguments, "arguments")
    if inputs is None:
        return [*fields, _input_fields.any_object("inputs")]
    return [*fields, *_input_fields.fields_of(inputs, "inputs")]


def _values_of(fields: Sequence[Field], form: Mapping[str, str]) -> tuple[dict[str, Any], _Faults]:
    """Return the inputs and arguments in a form, and the faults of its fields."""
    values: dict[str, Any] = {}
    faults: _Faults = {}
    for field in fields:
        try:
            value = _input_fields.value_of(field, form.get(field.key))
        except _input_fields.FieldError as error:
            faults[field.group, field.name] = [f"{field.path}: {error}"]
            continue
        if value is not _input_fields.ABSENT:
            group = values.setdefault(field.group, {}) if field.group else values
            group[field.name] = value
    return values, faults


def _filled(fields: Sequence[Field], form: Mapping[str, str], faults: _Faults) -> list[Field]:
    return [
        each.filled(form.get(each.key), faults.get((each.group, each.name), ())) for each in fields
    ]
