"""The dashboard as an ASGI application, wired."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from wbengine import drawing
from wbengine.dashboard import http_errors, rendering, urls
from wbengine.dashboard.actions import Actions
from wbengine.dashboard.api import Api
from wbengine.dashboard.app_state import AppState
from wbengine.dashboard.audit import Audit
from wbengine.dashboard.fleet_pages import FleetPages
from wbengine.dashboard.flow_pages import FlowPages
from wbengine.dashboard.guard import Guard
from wbengine.dashboard.probes import Probes
from wbengine.dashboard.reading import Store
from wbengine.dashboard.runner import Runner
from wbengine.dashboard.schedule_pages import SchedulePages
from wbengine.dashboard.sessions import Sessions
from wbengine.dashboard.stream import Streams
from wbengine.dashboard.visitors import Visitor
from wbengine.dashboard.worker_monitor import WorkerMonitor
from wbengine.persistence import base as persistence
from wbengine.views import redaction
from wbengine.views.fleet import Fleet

__all__ = ["create_app"]


def create_app(
    backend: persistence.Backend,
    *,
    fleet: Fleet | None = None,
    ledger: str | None = None,
    token: str | None = None,
    users: Mapping[str, Visitor] | None = None,
    allow_actions: bool = False,
    show_values: bool = False,
    url_prefix: str = "",
    hosts: Collection[str] | None = None,
    runner: Runner | None = None,
    closing: threading.Event | None = None,
) -> ASGIApp:
    """Make the dashboard of a store, to be served or mounted.

    Without a `token` or `users` everybody who gets here may look: whoever mounts it has to ask.
    `hosts` are the names under which it may be reached (None: all); without a token there should be
    some.

    :param fleet: the workers to show, not opened yet; the dashboard opens and closes it.
    :param ledger: the place of their ledger (None: that of the broker).
    :param users: who comes in, by tokens (see `visitors.parse_users`), instead of the one `token`.
    :param allow_actions: flows may be suspended, cancelled and so on, and workers drained.
    :param show_values: what tasks were given and returned is shown, with secrets masked.
    :param url_prefix: the path before all pages, where nothing in front takes it away; it counts
        once where the dashboard is also mounted there.
    :param runner: starts flows again; without one they can only be stopped.
    :param closing: to be set when the server is about to end, for it waits for open streams.
    :raises ValueError: a token can be guessed, the prefix is no path, or there is a token beside
        users.
    """
    if token is not None and users is not None:
        raise ValueError("token= and users= say the same: leave out one of them")
    known = users if token is None else {token: Visitor()}
    prefix = urls.check_prefix(url_prefix)
    redactor = redaction.Redactor(show_values=show_values)
    monitor = WorkerMonitor(fleet, ledger, redactor)
    app_state = AppState(
        store=Store(backend, redactor, monitor.offered),
        monitor=monitor,
        sessions=Sessions(known),
        redactor=redactor,
        audit=Audit(redactor.with_secrets_from({"token": list(known or ())})),
        runner=runner,
        allow_actions=allow_actions,
        closing=closing or threading.Event(),
    )
    guarded = Guard(_inside(app_state), app_state, hosts)
    return urls.Prefixed(guarded, prefix) if prefix else guarded


def _inside(app_state: AppState) -> Starlette:
    parts: tuple[Any, ...] = (
        FlowPages(app_state),
        FleetPages(app_state),
        SchedulePages(app_state),
        Streams(app_state),
        Api(app_state),
        Probes(app_state),
        Actions(app_state),
    )
    routes = [route for part in parts for route in part.routes()]
    said = functools.partial(_said, app_state)
    return Starlette(
        routes=[
            *routes,
            Route("/static/graph.css", _graph_style),
            Mount("/static", StaticFiles(directory=rendering.STATIC)),
        ],
        exception_handlers={HTTPException: said, Exception: said},
        lifespan=functools.partial(_closing, app_state),
    )


async def _said(app_state: AppState, request: Request, error: Exception) -> Response:
    """What is said of a page that cannot be shown."""
    if not isinstance(error, HTTPException):  # the guard logs it
        return http_errors.page(request, app_state, 500)
    plain = error.detail == HTTPStatus(error.status_code).phrase
    return http_errors.page(request, app_state, error.status_code, None if plain else error.detail)


async def _graph_style(request: Request) -> Response:
    """The colours of a graph are those of every other drawing of ours."""
    return PlainTextResponse(drawing.STYLESHEET, media_type="text/css")


@contextlib.asynccontextmanager
async def _closing(app_state: AppState, app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await run_in_threadpool(app_state.store.close)
        await run_in_threadpool(app_state.monitor.close)
