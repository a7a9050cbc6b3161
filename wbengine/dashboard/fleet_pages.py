"""The pages of the fleet: workers, queues, and the rows of the ledger."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import exceptions
from wbengine.dashboard import http_errors, stream
from wbengine.dashboard.app_state import AppState
from wbengine.views import ledgers, queues

__all__ = ["FleetPages", "ledger_rows"]

#: Rows of the ledger on a page.
ROWS: Final = 100


class FleetPages:
    """What is shown of workers and of what waits for them."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [Route("/workers", self.workers), Route("/queues", self.queues)]

    def workers(self, request: Request) -> Response:
        monitor = self._state.monitor
        words: dict[str, Any] = {"here": "/workers", "workers": [], "problem": None, "mark": None}
        words["is_known"] = monitor.is_known
        if monitor.is_known:
            try:
                words["workers"] = monitor.workers()
                words["mark"] = stream.digest([stream.doing(each) for each in words["workers"]])
            except exceptions.TransportFailure as error:
                words["problem"] = self._state.redactor.text(str(error))
        part = request.query_params.get("part")
        if request.query_params.get("done") == "drain":
            words["notice"] = "The worker was told to drain."
        return self._state.render(request, "_workers.html" if part else "workers.html", words)

    def queues(self, request: Request) -> Response:
        monitor = self._state.monitor
        words: dict[str, Any] = {"here": "/queues", "queues": [], "problem": None, "rows": None}
        words |= {"is_known": monitor.is_known, "row_problem": None, "tells_all": True}
        words["row_states"], words["row_state"] = ledgers.STATES, request.query_params.get("state")
        if monitor.is_known:
            try:
                words["tells_all"] = queues.tells_all(monitor.opened())
                words["queues"] = monitor.queues()
            except exceptions.TransportFailure as error:
                words["problem"] = self._state.redactor.text(str(error))
            else:
                try:
                    words["rows"] = ledger_rows(request, self._state)
                except HTTPException as error:
                    if error.status_code == 400:
                        raise
                    words["row_problem"] = self._state.redactor.text(error.detail)
        part = request.query_params.get("part")
        return self._state.render(request, "_queues.html" if part else "queues.html", words)


def ledger_rows(request: Request, app_state: AppState) -> ledgers.RowPage | None:
    """A page of rows; None: there is no ledger.

    :raises HTTPException: it cannot be read, or what is asked for means nothing.
    """
    query = request.query_params
    with http_errors.refused():
        return app_state.monitor.rows(ROWS, query.get("after") or None, query.get("state") or None)
