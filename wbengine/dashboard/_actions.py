"""Actions of the pages: they need `allow_actions` and a role, and each is logged."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from wbengine import signals
from wbengine.dashboard import (
    _audit,
    _audited_actions,
    _backfill_pages,
    _bulk_pages,
    _bulk_routes,
    _flow_actions,
    _flow_pages,
    _http_errors,
    _listings,
    _operation_forms,
    _pause_pages,
    _role_checks,
    _roles,
    _urls,
)
from wbengine.dashboard._app_state import AppState
from wbengine.dashboard._runner import FailedCommand, Runner
from wbengine.operations import _operation

__all__ = ["Actions"]


class Actions:
    """Handlers of forms, which only pages of this dashboard may post. Work runs in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/flows/{uuid:uuid}/signal", self.signal, methods=["POST"]),
            Route("/flows/{uuid:uuid}/{action:str}", self.flow, methods=["POST"]),
            Route("/workers/{action:str}", self.worker, methods=["POST"]),
            Route("/queues/{action:str}", self.queue, methods=["POST"]),
            Route("/requests/{action:str}", self.dead_letter, methods=["POST"]),
            Route("/schedules/backfill", self.backfill, methods=["POST"]),
            Route("/schedules/{action:str}", self.schedule, methods=["POST"]),
            Route("/bulks", self.start_bulk, methods=["POST"]),
            Route("/bulks/{uuid:uuid}/{action:str}", self.change_bulk, methods=["POST"]),
            Route("/pauses/pause", self.pause, methods=["POST"]),
            Route("/pauses/resume", self.resume, methods=["POST"]),
            Route("/jobs/pause", self.pause_jobs, methods=["POST"]),
            Route("/jobs/resume", self.resume_jobs, methods=["POST"]),
            Route("/limits/set", self.set_limit, methods=["POST"]),
            Route("/limits/unset", self.unset_limit, methods=["POST"]),
        ]

    async def flow(self, request: Request) -> Response:
        """Perform an operation of the page on a flow."""
        uuid, name = str(request.path_params["uuid"]), request.path_params["action"]
        action = _flow_actions.actions().get(name)
        if action is None:
            raise HTTPException(404)
        form = await self._check(request, f"{name} flow {uuid}", action.role)
        _role_checks.check_arguments(
            self._state, request, f"{name} flow {uuid}", action, _edits(form)
        )
        act = functools.partial(self._act, action, uuid, request, form)
        return await self._do(request, f"{name} flow {uuid}", act, f"/flows/{uuid}", name)

    async def signal(self, request: Request) -> Response:
        """Send a signal to a flow."""
        uuid = str(request.path_params["uuid"])
        form = await self._check(request, f"signal flow {uuid}", _roles.OPERATOR)
        name, text = form.get("signal", ""), form.get("value", "").strip()

        def act() -> str | None:
            try:
                value = json.loads(text) if text else None
            except (ValueError, RecursionError) as error:
                raise HTTPException(400, f"The value must be JSON: {error}") from error
            # Read now, because the wait may end when the signal arrives.
            awaited = self._state.store(request).read(lambda each: each.awaited_signals(uuid))
            self._perform(request, "flow signal", flow=uuid, signal=name, value=value)
            is_awaited = signals.not_awaited(name, awaited) is None
            return None if is_awaited else _flow_pages.NOT_AWAITED

        return await self._do(
            request, f"signal flow {uuid} {name!r}", act, f"/flows/{uuid}", "signal"
        )

    async def worker(self, request: Request) -> Response:
        return await self._operate(request, "worker", "/workers", self._state.monitor.full_name)

    async def queue(self, request: Request) -> Response:
        return await self._operate(request, "queue", "/queues", self._state.monitor.full_queue_name)

    async def dead_letter(self, request: Request) -> Response:
        return await self._operate(request, "request", "/queues/dead")

    async def schedule(self, request: Request) -> Response:
        return await self._operate(request, "schedule", "/schedules")

    async def backfill(self, request: Request) -> Response:
        """Submit flows for past times of a schedule."""
        role = _backfill_pages.operation().role
        form = await self._check(request, "backfill schedule", role)
        schedule = form.get("schedule", "")
        act = functools.partial(_backfill_pages.submit, self._state, request, schedule, form)
        return await self._do(
            request, f"backfill schedule {schedule!r}", act, "/schedules", "backfill"
        )

    async def start_bulk(self, request: Request) -> Response:
        """Store an operation on all flows of a filter."""
        operation = _bulk_pages.operation_of(request.query_params.get("operation", ""))
        name = f"{operation.name} of many flows"
        form = await self._check(request, name, operation.role)
        _role_checks.check_bulk(self._state, request, name, operation, None)
        with _http_errors.as_http_errors():
            flow_filter = _listings.FlowFilter.of(request)
            bulk_request = _bulk_pages.request_of(operation, flow_filter, form)
            rows = await run_in_threadpool(_bulk_routes.rows_of, self._state, request, bulk_request)
        if form.get("selection", "") != _bulk_pages.selection_of(operation, rows):
            raise HTTPException(
                409, f"The list has changed: it has {len(rows):,} flows now. Confirm them again."
            )
        bulk = await _bulk_routes.start(self._state, request, bulk_request, rows)
        return RedirectResponse(_urls.href(request, f"/bulks/{bulk.uuid}", done="start"), 303)

    async def change_bulk(self, request: Request) -> Response:
        """Cancel or resume an operation on many flows."""
        verb = request.path_params["action"]
        if verb not in _bulk_routes.VERBS:
            raise HTTPException(404)
        await self._check(request, f"{verb} operation", _roles.OPERATOR)

        def check(request: Request, action: str, operation: _operation.Operation | None) -> None:
            _role_checks.check_bulk(self._state, request, action, operation, None)

        bulk = await _bulk_routes.change(self._state, request, verb, check)
        return RedirectResponse(_urls.href(request, f"/bulks/{bulk.uuid}", done=verb), 303)

    async def pause(self, request: Request) -> Response:
        """Pause a task type in all flows of the store."""
        form = await self._check(request, "pause tasks", _roles.OPERATOR)
        pattern, reason = form.get("pattern", "").strip(), form.get("reason", "").strip()
        pause_length = form.get("for", "")

        def act() -> None:
            seconds = _pause_pages.length(pause_length)
            optional = {"reason": reason or None, "seconds": seconds}
            given = {key: value for key, value in optional.items() if value is not None}
            self._perform(request, "tasks pause", pattern=pattern, **given)

        action = f"pause tasks {pattern!r:.220}"
        if pause_length:
            action += f" for {pause_length!r:.40}"
        if reason:
            action += f", reason {self._state.redactor.text(reason)!r:.520}"
        return await self._do(request, action, act, "/pauses", "pause")

    async def resume(self, request: Request) -> Response:
        """Resume a paused task type."""
        form = await self._check(request, "resume tasks", _roles.OPERATOR)
        pattern = form.get("pattern", "")
        act = functools.partial(self._perform, request, "tasks resume", pattern=pattern)
        return await self._do(request, f"resume tasks {pattern!r:.220}", act, "/pauses", "resume")

    async def pause_jobs(self, request: Request) -> Response:
        """Let conductors take no more flows of a queue."""
        form = await self._check(request, "pause a queue of flows", _roles.OPERATOR)
        name, reason = form.get("name", ""), form.get("reason", "").strip() or None
        act = functools.partial(self._perform, request, "jobs pause", name=name, reason=reason)
        return await self._do(request, f"pause queue of flows {name!r:.80}", act, "/jobs", "pause")

    async def resume_jobs(self, request: Request) -> Response:
        """End the pause of a queue of flows."""
        form = await self._check(request, "resume a queue of flows", _roles.OPERATOR)
        name = form.get("name", "")
        act = functools.partial(self._perform, request, "jobs resume", name=name)
        return await self._do(
            request, f"resume queue of flows {name!r:.80}", act, "/jobs", "resume"
        )

    async def set_limit(self, request: Request) -> Response:
        """Change a limit in all engines that share it."""
        form = await self._check(request, "set limit", _roles.OPERATOR)
        name, reason = form.get("name", "").strip(), form.get("reason", "").strip()
        operation = _operation.table()["limits set"]

        def act() -> None:
            arguments = _operation_forms.arguments_of(operation, form)
            self._perform(request, operation.name, **arguments)

        values = " ".join(filter(None, (form.get("rate", "").strip(), _at_once(form))))
        action = f"set limit {name!r:.220} to {values!r:.80}"
        if reason:
            action += f", reason {self._state.redactor.text(reason)!r:.520}"
        return await self._do(request, action, act, "/limits", "set")

    async def unset_limit(self, request: Request) -> Response:
        """Remove the change of a limit."""
        form = await self._check(request, "unset limit", _roles.OPERATOR)
        name = form.get("name", "")
        act = functools.partial(self._perform, request, "limits unset", name=name)
        return await self._do(request, f"unset limit {name!r:.220}", act, "/limits", "unset")

    def _act(
        self,
        action: _operation.Operation,
        uuid: str,
        request: Request,
        form: Mapping[str, str],
    ) -> None:
        view = self._state.store(request).flow(uuid)
        allowed = _flow_actions.of_flow(view, self._state.runner is not None)
        others = _flow_actions.others_of_flow(view)
        if action not in [*allowed, *others]:
            names = ", ".join(each.verb for each in allowed) or "none"
            raise HTTPException(
                409,
                f"Action {action.verb!r} is not available in state {view.state}; available:"
                f" {names}.",
            )
        edits = _edits(form)
        if edits and not view.is_submitted:
            raise HTTPException(409, "Only a submitted flow can be retried with other values here.")
        if (
            action.verb in _flow_actions.RUNS
            and not view.is_submitted
            and self._state.runner is not None
        ):
            self._run(self._state.runner, action.verb, uuid, request)
            return
        given = {**edits, **_operation_forms.arguments_of(action, form)}
        self._perform(request, action.name, flow=uuid, **given)

    async def _operate(
        self,
        request: Request,
        subject: str,
        page: str,
        full_name: Callable[[str], str] = lambda shown: shown,
    ) -> Response:
        """Perform an operation of a page on a worker, a queue or the like.

        :param full_name: returns the name of what is displayed with a name.
        """
        verb = request.path_params["action"]
        action = _operation_forms.of_subject(subject).get(verb)
        if action is None:
            raise HTTPException(404)
        form = await self._check(request, f"{verb} {subject}", action.role)
        shown = form.get(subject, "")
        if not shown:
            raise HTTPException(400, f"The field {subject!r} is required.")

        def act() -> None:
            given = _operation_forms.arguments_of(action, form)
            self._perform(request, action.name, **{subject: full_name(shown)}, **given)

        return await self._do(request, f"{verb} {subject} {shown!r}", act, page, verb)

    def _perform(self, request: Request, name: str, /, **arguments: object) -> None:
        """Perform an operation of the table."""
        scope = self._state.scope(request)
        _operation.table()[name].perform(scope, arguments)

    def _run(self, runner: Runner, name: str, uuid: str, request: Request) -> None:
        first_redactor = self._state.store(request).redactor(uuid)

        def mask(text: str) -> str:
            try:
                return (
                    self._state.store(request).redactor(uuid).text(text)
                )  # Includes secrets in results of this run.
            except Exception:  # The command may have failed because the store is unreadable.
                return first_redactor.text(text)

        def failed_late(failed: FailedCommand) -> None:
            reason = f"exit code {failed.code}: {failed.output}"
            self._state.audit.failed(request, f"{name} flow {uuid}", reason)

        reason = f"requested by {_audit.sender_of(request)}"
        runner.start(name, uuid, mask, failed_late, reason=reason)

    async def _check(self, request: Request, action: str, role: str) -> dict[str, str]:
        """Check a form and return its fields.

        :raises HTTPException: if the visitor lacks the role, or the form is invalid or expired.
        """
        form = await _audited_actions.read_form(request)
        _role_checks.check_form(self._state, request, form, action, role)
        return form

    async def _do(
        self, request: Request, action: str, act: Callable[[], str | None], page: str, notice: str
    ) -> Response:
        """Perform an action, and redirect to a page. `act` may return another notice."""
        other_notice = await _audited_actions.perform(self._state, request, action, act)
        return RedirectResponse(_urls.href(request, page, done=other_notice or notice), 303)


def _at_once(form: Mapping[str, str]) -> str:
    concurrency = form.get("concurrency", "").strip()
    return f"{concurrency} at once" if concurrency else ""


def _edits(form: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the `inputs` and `results` of the form that retries a flow with other values.

    :raises HTTPException: if a value is not JSON.
    """
    values: dict[str, dict[str, Any]] = {"input": {}, "result": {}}
    for field, text in form.items():
        kind, separator, name = field.partition(":")
        if kind in values and separator and text.strip():
            try:
                values[kind][name] = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise HTTPException(
                    400, f"The value of {kind} {name!r} must be JSON: {error}"
                ) from error
    return {f"{kind}s": given for kind, given in values.items() if given}
