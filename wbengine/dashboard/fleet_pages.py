"""The pages of the fleet: workers, queues, and the rows of the ledger."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import exceptions
from wbengine.dashboard import refusing, stream
from wbengine.dashboard.desk import Desk
from wbengine.views import ledgers

__all__ = ["FleetPages", "ledger_rows"]

#: Rows of the ledger on a page.
ROWS: Final = 100


class FleetPages:
    """What is shown of workers and of what waits for them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def routes(self) -> list[Route]:
        return [Route("/workers", self.workers), Route("/queues", self.queues)]

    def workers(self, request: Request) -> Response:
        crew = self._desk.crew
        words: dict[str, Any] = {"here": "/workers", "workers": [], "problem": None, "mark": None}
        words["is_known"] = crew.is_known
        if crew.is_known:
            try:
                words["workers"] = crew.workers()
                words["mark"] = stream.digest([stream.doing(each) for each in words["workers"]])
            except exceptions.TransportFailure as error:
                words["problem"] = self._desk.redactor.text(str(error))
        part = request.query_params.get("part")
        done = request.query_params.get("done")
        if done == "drain":
            words["told"] = {"kind": "good", "text": "The worker was told to drain."}
        return self._desk.render(request, "_workers.html" if part else "workers.html", words)

    def queues(self, request: Request) -> Response:
        crew = self._desk.crew
        words: dict[str, Any] = {"here": "/queues", "queues": [], "problem": None, "rows": None}
        words |= {"is_known": crew.is_known, "row_problem": None, "tells_all": True}
        words["row_states"], words["row_state"] = ledgers.STATES, request.query_params.get("state")
        if crew.is_known:
            try:
                words["tells_all"] = crew.tells_all_queues()
                words["queues"] = crew.queues()
            except exceptions.TransportFailure as error:
                words["problem"] = self._desk.redactor.text(str(error))
            else:
                try:
                    words["rows"] = ledger_rows(request, self._desk)
                except HTTPException as error:
                    if error.status_code == 400:
                        raise
                    words["row_problem"] = self._desk.redactor.text(error.detail)
        part = request.query_params.get("part")
        return self._desk.render(request, "_queues.html" if part else "queues.html", words)


def ledger_rows(request: Request, desk: Desk) -> ledgers.RowPage | None:
    """A page of rows; None: there is no ledger.

    :raises HTTPException: it cannot be read, or what is asked for means nothing.
    """
    query = request.query_params
    with refusing.refused():
        return desk.crew.rows(ROWS, query.get("after") or None, query.get("state") or None)
