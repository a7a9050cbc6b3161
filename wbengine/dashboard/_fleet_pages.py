"""The pages of workers, queues and the ledger."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import exceptions
from wbengine.dashboard import _http_errors, _operation_forms, _stream
from wbengine.dashboard._app_state import AppState
from wbengine.engines.worker_based._messages import worker_life
from wbengine.fleet import _ledgers, _requests
from wbengine.fleet import _message_queues as queues
from wbengine.fleet.client import WorkerView
from wbengine.operations._operation import Operation

__all__ = ["FleetPages", "ledger_rows"]

MAX_ROWS: Final = 100


class FleetPages:
    """Handlers of the pages. They block, so Starlette calls them in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route("/workers", self.workers),
            Route("/queues", self.queues),
            Route("/queues/dead", self.dead_letters),
        ]

    def workers(self, request: Request) -> Response:
        monitor = self._state.monitor
        context: dict[str, Any] = {"here": "/workers", "workers": [], "problem": None, "mark": None}
        context["has_broker"] = monitor.has_broker
        if monitor.has_broker:
            try:
                context["workers"] = monitor.workers()
                context["mark"] = _stream.digest(
                    [_stream.activity_of(worker) for worker in context["workers"]]
                )
            except exceptions.TransportFailure as error:
                context["problem"] = self._state.redactor.text(str(error))
        part = request.query_params.get("part")
        context["operations_of"] = of_worker
        context["notice"] = _notice(request, "worker")
        return self._state.render(request, "_workers.html" if part else "workers.html", context)

    def queues(self, request: Request) -> Response:
        monitor = self._state.monitor
        context: dict[str, Any] = {"here": "/queues", "queues": [], "problem": None, "rows": None}
        context |= {"backlog": None, "folded": None}
        context |= {"has_broker": monitor.has_broker, "row_problem": None, "tells_all": True}
        with contextlib.suppress(exceptions.StorageFailure):
            backlog = self._state.store(request).read(lambda connection: connection.backlog())
            context["backlog"] = queues.describe_backlog(backlog)
        context["row_states"], context["row_state"] = (
            _ledgers.STATES,
            request.query_params.get("state"),
        )
        if monitor.has_broker:
            try:
                context["tells_all"] = queues.can_list(monitor.open_fleet())
                context["queues"], context["folded"] = queues.fold(monitor.queues())
            except exceptions.TransportFailure as error:
                context["problem"] = self._state.redactor.text(str(error))
            else:
                try:
                    context["rows"] = ledger_rows(request, self._state)
                except HTTPException as error:
                    if error.status_code == 400:
                        raise
                    context["row_problem"] = self._state.redactor.text(error.detail)
        context["operations"] = [*_operation_forms.of_subject("queue").values()]
        context["notice"] = _notice(request, "queue")
        part = request.query_params.get("part")
        return self._state.render(request, "_queues.html" if part else "queues.html", context)

    def dead_letters(self, request: Request) -> Response:
        """Show the dead letters. Brokers return them only to a consumer, so this is not polled."""
        page, problem = None, None
        dead = _requests.Filter(_requests.DEAD)
        if self._state.monitor.has_broker:
            try:
                page = self._state.monitor.requests(dead, _requests.MAX_LIMIT, None)
            except exceptions.TransportFailure as error:
                problem = self._state.redactor.text(str(error))
        context = {
            "here": "/queues",
            "has_broker": self._state.monitor.has_broker,
            "problem": problem,
            "requests": () if page is None else page.requests,
            "operations": [*_operation_forms.of_subject("request").values()],
            "notice": _notice(request, "request"),
        }
        return self._state.render(request, "dead_letters.html", context)


def _notice(request: Request, subject: str) -> str | None:
    """Return the notice after an operation on such an object."""
    operations = _operation_forms.of_subject(subject)
    return _operation_forms.notice(operations, request.query_params.get("done", ""))


def of_worker(worker: WorkerView) -> list[Operation]:
    """Return the operations for the state of a worker."""
    unavailable = "suspend" if worker.state == worker_life.SUSPENDED else "resume"
    operations = _operation_forms.of_subject("worker")
    return [each for verb, each in operations.items() if verb != unavailable]


def ledger_rows(request: Request, app_state: AppState) -> _ledgers.RowPage | None:
    """Return a page of ledger rows, or None without a ledger.

    :raises HTTPException: if the ledger cannot be read, or the cursor or state is not valid.
    """
    query = request.query_params
    with _http_errors.as_http_errors():
        return app_state.monitor.rows(
            MAX_ROWS, query.get("after") or None, query.get("state") or None
        )
