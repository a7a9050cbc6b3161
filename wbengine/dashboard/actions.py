"""What can be done from a page: only if it was allowed, and each time with a line in the log."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from wbengine import operations
from wbengine.dashboard import audit, flow_actions, http_errors, schedule_pages, urls, visitors
from wbengine.dashboard.app_state import AppState
from wbengine.dashboard.runner import Failed, Runner

__all__ = ["Actions"]

#: Bytes of a form; nothing of ours is as long.
_LONGEST: Final = 16_384
#: Seconds in which a form has to be here: anybody may begin to send one.
PATIENCE: Final = 10.0


class Actions:
    """POST only, from forms of ours only.  What blocks is done in a thread."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.login_page),
            Route("/login", self.login, methods=["POST"]),
            Route("/flows/{uuid:uuid}/signal", self.signal, methods=["POST"]),
            Route("/flows/{uuid:uuid}/{action:str}", self.flow, methods=["POST"]),
            Route("/workers/drain", self.drain, methods=["POST"]),
            Route("/schedules/{action:str}", self.schedule, methods=["POST"]),
        ]

    def login_page(self, request: Request) -> Response:
        return http_errors.asking(request, self._state)

    async def login(self, request: Request) -> Response:
        """A token becomes a cookie."""
        form = await _form(request)
        token = form.get("token", "")
        visitor = self._state.sessions.accepts(token)
        if visitor is None or visitor.role == visitors.PROXY:
            self._state.audit.refused(request, "login")
            return http_errors.page(request, self._state, 401, "This is not the token.")
        return self._state.admit(request, token, urls.href(request, "/"))

    async def flow(self, request: Request) -> Response:
        """Suspend, resume, retry, revert or cancel one."""
        uuid, name = str(request.path_params["uuid"]), request.path_params["action"]
        action = flow_actions.ACTIONS.get(name)
        if action is None:
            raise HTTPException(404)
        await self._check(request, f"{name} flow {uuid}", visitors.OPERATOR)
        act = functools.partial(self._act, action, uuid, request)
        return await self._do(request, f"{name} flow {uuid}", act, f"/flows/{uuid}", name)

    async def signal(self, request: Request) -> Response:
        """Give one what a task of it waits for."""
        uuid = str(request.path_params["uuid"])
        form = await self._check(request, f"signal flow {uuid}", visitors.OPERATOR)
        name, text = form.get("signal", ""), form.get("value", "").strip()

        def act() -> None:
            try:
                value = json.loads(text) if text else None
            except (ValueError, RecursionError) as error:
                raise HTTPException(400, f"The value is no JSON: {error}") from error
            operations.signal(self._state.store.backend, uuid, name, value)

        return await self._do(
            request, f"signal flow {uuid} {name!r}", act, f"/flows/{uuid}", "signal"
        )

    async def drain(self, request: Request) -> Response:
        """Tell a worker to take nothing new, and to end."""
        form = await self._check(request, "drain worker", visitors.ADMIN)
        worker = form.get("worker", "")
        if not worker:
            raise HTTPException(400, "The form does not say which worker.")
        act = functools.partial(self._state.monitor.drain, worker)
        return await self._do(request, f"drain worker {worker!r}", act, "/workers", "drain")

    async def schedule(self, request: Request) -> Response:
        """Pause, resume or run one."""
        name = request.path_params["action"]
        if name not in schedule_pages.ACTIONS:
            raise HTTPException(404)
        form = await self._check(request, f"{name} schedule", visitors.OPERATOR)
        schedule = form.get("schedule", "")

        def act() -> None:
            kept = schedule_pages.schedules(self._state)
            if kept is None:
                raise HTTPException(404, "The store keeps no schedules.")
            getattr(kept, name)(schedule)

        return await self._do(request, f"{name} schedule {schedule!r}", act, "/schedules", name)

    def _act(self, action: flow_actions.Action, uuid: str, request: Request) -> None:
        view = self._state.store.flow(uuid)
        allowed = flow_actions.of_flow(view, self._state.runner is not None)
        if action not in allowed:
            words = " or ".join(each.name for each in allowed) or "nothing"
            raise HTTPException(
                409,
                f"The flow is {view.state}: it cannot be told to {action.name} ({words} can be).",
            )
        by = f"dashboard ({audit.asker(request)})"
        if action.runs and self._state.runner is not None:
            self._run(self._state.runner, action.name, uuid, request)
        elif action.name == "suspend":
            operations.suspend(self._state.store.backend, uuid, by=by)
        else:
            operations.cancel(self._state.store.backend, uuid, by=by)

    def _run(self, runner: Runner, name: str, uuid: str, request: Request) -> None:
        known = self._state.store.redactor(uuid)

        def mask(text: str) -> str:
            try:
                return self._state.store.redactor(uuid).text(
                    text
                )  # knows what the run came to, too
            except Exception:  # that may be why it failed
                return known.text(text)

        def failed_late(failed: Failed) -> None:
            why = f"exit code {failed.code}: {failed.said}"
            self._state.audit.failed(request, f"{name} flow {uuid}", why)

        runner.start(name, uuid, mask, failed_late)

    async def _check(self, request: Request, what: str, role: str) -> dict[str, str]:
        """The form, if somebody of this role sent it.

        :raises HTTPException: it may not; nothing was done.
        """
        form = await _form(request)
        sessions, visitor = self._state.sessions, visitors.of_request(request)
        why = None
        if not self._state.allow_actions:
            why = "The dashboard is read-only: it was not started with --allow-actions."
        elif not sessions.knows_form(request.cookies.get(sessions.cookie), form.get("form_token")):
            why = "This form is not one of ours, or it is too old: load the page again."
        elif visitor is None or not visitor.may(role):
            why = f"This takes the role {role}, and yours is {visitor.role if visitor else 'none'}."
        if why is not None:
            self._state.audit.refused(request, what, why)
            raise HTTPException(403, why)
        return form

    async def _do(
        self, request: Request, what: str, act: Callable[[], None], page: str, done: str
    ) -> Response:
        """Act; it is told on the `page` that this leads to."""
        try:
            with http_errors.refused():
                await run_in_threadpool(act)
        except HTTPException as error:
            self._state.audit.failed(request, what, error.detail)
            raise
        except Exception as error:  # the guard logs the rest
            self._state.audit.failed(request, what, type(error).__name__)
            raise
        self._state.audit.done(request, what)
        return RedirectResponse(urls.href(request, page, done=done), 303)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, each once.

    :raises HTTPException: it is none, or too long.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is expected.")
    try:
        body = await asyncio.wait_for(_body(request), PATIENCE)
    except asyncio.TimeoutError as error:
        raise HTTPException(408, "The form did not come to its end.") from error
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            raise HTTPException(413, "The form is too long.")
    return bytes(body)
