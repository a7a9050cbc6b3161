"""The dashboard as an ASGI application."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from wbengine import drawing, exceptions
from wbengine._introspection import object_names
from wbengine.dashboard import _http_errors, _oidc_settings, _rendering, _urls
from wbengine.dashboard._actions import Actions
from wbengine.dashboard._api import Api
from wbengine.dashboard._app_state import AppState
from wbengine.dashboard._audit import Audit
from wbengine.dashboard._authentication import Guard
from wbengine.dashboard._backfill_pages import BackfillPages
from wbengine.dashboard._bulk_pages import BulkPages
from wbengine.dashboard._bulk_routes import BulkRoutes
from wbengine.dashboard._credentials import Credentials
from wbengine.dashboard._fleet_pages import FleetPages
from wbengine.dashboard._flow_cache import Store
from wbengine.dashboard._flow_pages import FlowPages
from wbengine.dashboard._health import Probes
from wbengine.dashboard._job_pages import JobPages
from wbengine.dashboard._key_visitors import KeyVisitors
from wbengine.dashboard._limit_pages import LimitPages
from wbengine.dashboard._openapi import Description
from wbengine.dashboard._operation_routes import OperationRoutes
from wbengine.dashboard._pause_pages import PausePages
from wbengine.dashboard._runner import Runner
from wbengine.dashboard._schedule_pages import SchedulePages
from wbengine.dashboard._sessions import Sessions
from wbengine.dashboard._sign_in_pages import SignInPages
from wbengine.dashboard._stream import Streams
from wbengine.dashboard._submit_pages import SubmitPages
from wbengine.dashboard._visitors import Visitor
from wbengine.dashboard._worker_monitor import WorkerMonitor
from wbengine.fleet.client import Fleet
from wbengine.persistence import base as persistence
from wbengine.views import redaction

__all__ = ["create_app"]

#: Class that needs the packages of the extra `oidc`.
_SIGN_IN: Final = "wbengine.dashboard._oidc_sign_in:OidcSignIn"


def create_app(
    backend: persistence.Backend,
    *,
    fleet: Fleet | None = None,
    ledger: str | None = None,
    token: str | None = None,
    users: Mapping[str, Visitor] | None = None,
    oidc: Mapping[str, Any] | None = None,
    allow_actions: bool = False,
    show_values: bool = False,
    url_prefix: str = "",
    hosts: Collection[str] | None = None,
    runner: Runner | None = None,
    closing: threading.Event | None = None,
) -> ASGIApp:
    """Return the dashboard of a store as an ASGI application.

    Without `token`, `users` and `oidc`, every client that reaches the application has all rights:
    the application in which you mount it must authenticate clients. Requests with an access key of
    the store (`wbengine access`) always have the rights of the key.

    :param fleet: the workers to show, not opened yet; the dashboard opens and closes it.
    :param ledger: the place of the ledger (default: the broker's ledger).
    :param token: the token of a single administrator; excludes `users`.
    :param users: visitors by token (see `visitors.parse_users`).
    :param oidc: settings of the sign-in with OpenID Connect, as in the table ``[oidc]``. Tokens
        remain valid.
    :param allow_actions: show buttons that suspend, cancel, resume, retry and revert flows, and
        drain workers.
    :param show_values: show inputs and results of tasks, with secrets masked.
    :param url_prefix: the path before all pages, unless a proxy removes it. If the application is
        mounted at the same path, the path is not repeated.
    :param hosts: accepted names in the Host header (None: any). Set it if there is no token.
    :param runner: starts flows; without it, flows can only be stopped.
    :param closing: set this event before you stop a server that waits for open event streams.
    :raises ValueError: if a token is too short or not printable ASCII, `users` is empty,
        `url_prefix` is not a path, both `token` and `users` are given, or a setting of `oidc` is
        invalid.
    :raises ImportError: if a package for `oidc` is not installed.
    """
    if token is not None and users is not None:
        raise ValueError("at most one of token and users can be used")
    visitors_by_token = users if token is None else {token: Visitor()}
    prefix = _urls.check_prefix(url_prefix)
    redactor = redaction.Redactor(show_values=show_values)
    monitor = WorkerMonitor(fleet, ledger, redactor)
    settings = _oidc_settings.parse_settings(oidc) if oidc is not None else None
    provider_key = None if settings is None else settings.session_key
    sessions = Sessions(visitors_by_token, provider_key=provider_key)
    secrets = [*(visitors_by_token or ()), *([settings.client_secret] if settings else ())]
    app_state = AppState(
        all_flows=Store(backend, redactor, monitor.offered),
        monitor=monitor,
        sessions=sessions,
        credentials=Credentials(sessions, KeyVisitors(backend)),
        redactor=redactor,
        audit=Audit(redactor.with_secrets_from({"token": secrets})),
        runner=runner,
        sign_in=None if settings is None else object_names.load(_SIGN_IN)(settings),
        allow_actions=allow_actions,
        closing=closing or threading.Event(),
    )
    guarded = Guard(_routed_app(app_state), app_state, hosts)
    return _urls.Prefixed(guarded, prefix) if prefix else guarded


def _routed_app(app_state: AppState) -> Starlette:
    parts: tuple[Any, ...] = (
        FlowPages(app_state),
        FleetPages(app_state),
        BackfillPages(app_state),
        SchedulePages(app_state),
        PausePages(app_state),
        JobPages(app_state),
        LimitPages(app_state),
        BulkPages(app_state),
        SubmitPages(app_state),
        Streams(app_state),
        Api(app_state),
        BulkRoutes(app_state),
        OperationRoutes(app_state),
        Description(app_state),
        Probes(app_state),
        Actions(app_state),
        SignInPages(app_state),
    )
    routes = [route for part in parts for route in part.routes()]
    on_error = functools.partial(_error_response, app_state)
    return Starlette(
        routes=[
            *routes,
            Route("/static/graph.css", _graph_style),
            Mount("/static", StaticFiles(directory=_rendering.STATIC)),
        ],
        exception_handlers={HTTPException: on_error, Exception: on_error},
        lifespan=functools.partial(_lifespan, app_state),
    )


async def _error_response(app_state: AppState, request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):  # The guard logs this error.
        return _http_errors.page(request, app_state, 500)
    plain = error.detail == HTTPStatus(error.status_code).phrase
    cause = error.__cause__
    kind = type(cause).__name__ if isinstance(cause, exceptions.WbengineException) else None
    detail = None if plain else error.detail
    response = _http_errors.page(request, app_state, error.status_code, detail, kind)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes of a path. Starlette names those of the first one."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    matching = (each for each in routes if each.matches(request.scope)[0] is not Match.NONE)
    return {method for each in matching for method in each.methods or ()}


async def _graph_style(request: Request) -> Response:
    return PlainTextResponse(drawing.STYLESHEET, media_type="text/css")


@contextlib.asynccontextmanager
async def _lifespan(app_state: AppState, app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await run_in_threadpool(app_state.all_flows.close)
        await run_in_threadpool(app_state.monitor.close)
