"""The pages of flows: the list of all, and what is known of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import drawing, exceptions, states
from wbengine.dashboard import flow_actions, flow_head, http_errors, listings, stream, tree, urls
from wbengine.dashboard.app_state import AppState
from wbengine.views import flow as flows
from wbengine.views import listing, timeline

__all__ = ["FlowPages"]

#: What shows more atoms is read again more rarely: states are patched into it anyway.
LARGE: Final = 400
#: Events on a page.
EVENTS: Final = 500
#: Lines that a task logged on its page.
LINES: Final = 1000
#: Seconds until a browser asks again for a flow that is being read.
AGAIN: Final = 2

#: What was done, as the address says after an action; anything else is not shown.
_TOLD: Final[Mapping[str, str]] = {
    **{name: each.done for name, each in flow_actions.ACTIONS.items()},
    "signal": "The flow was given the signal.",
}


class FlowPages:
    """Reads what a page shows in a thread of the server's pool: no page waits for another one."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        one = "/flows/{uuid:uuid}"
        return [
            Route("/", self.index),
            Route(one, self.tasks),
            Route(f"{one}/graph", self.graph),
            Route(f"{one}/timeline", self.timeline),
            Route(f"{one}/events", self.events),
            Route(f"{one}/failures", self.failures),
            Route(f"{one}/atoms/{{atom:uuid}}", self.atom),
        ]

    def index(self, request: Request) -> Response:
        with http_errors.refused():
            wanted = listings.Wanted.of(request)
            page = self._state.store.reading(lambda each: wanted.read(each, self._state.redactor))
        words = {
            "here": "/",
            "mark": stream.digest([row.to_dict() for row in page.flows]),
            "page": page,
            "periods": listings.PERIODS,
            "states": states.FLOW_STATES,
            "wanted": wanted,
        }
        part = request.query_params.get("part")
        return self._state.render(request, "_rows.html" if part else "flows.html", words)

    def tasks(self, request: Request) -> Response:
        def words(view: flows.FlowView) -> dict[str, Any]:
            under, start = (http_errors.whole(request, name) for name in ("under", "start"))
            query = request.query_params
            wanted = tree.Selection(
                query.get("state", ""), query.get("name", "").strip()[:200], query.get("sort", "")
            )
            shared = {"sorts": tree.SORTS, "under": 0 if wanted else under, "wanted": wanted}
            if wanted:
                return {"table": tree.selected(view, wanted, start), **shared}
            return {"table": tree.table(view, under, start), **shared}

        return self._page(request, "tasks", words)

    def graph(self, request: Request) -> Response:
        def words(view: flows.FlowView) -> dict[str, Any]:
            under = http_errors.whole(request, "under")
            nodes = view.outline.nodes
            opened, closed = (
                frozenset(n for n in http_errors.wholes(request, name) if n < len(nodes))
                for name in ("open", "close")
            )

            def toggle(node: int, is_open: bool) -> str:
                address = urls.href(
                    request,
                    f"/flows/{view.uuid}/graph",
                    under=under,
                    open=sorted(opened | {node} if is_open else opened - {node}),
                    close=sorted(closed - {node} if is_open else closed | {node}),
                )
                return f"{address}#node-{node}"

            picture = drawing.html(
                view.outline,
                view,
                root=under,
                link=lambda atom: self._atom_page(request, view, atom.uuid),
                folding=drawing.Folding(opened, closed, toggle),
            )
            return {"picture": picture, "under": under}

        return self._page(request, "graph", words)

    def timeline(self, request: Request) -> Response:
        def words(view: flows.FlowView) -> dict[str, Any]:
            found = timeline.timeline(view)
            if not found.lanes:
                return {"chart": None}
            chart = drawing.chart(found, link=lambda bar: self._atom_page(request, view, bar.uuid))
            return {"chart": chart}

        return self._page(request, "timeline", words)

    def events(self, request: Request) -> Response:
        def words(view: flows.FlowView) -> dict[str, Any]:
            after = request.query_params.get("after") or None
            found = self._state.store.events(view.uuid, EVENTS, after, latest_first=True)
            return {"page": found, "after": after}

        return self._page(request, "events", words)

    def failures(self, request: Request) -> Response:
        return self._page(request, "failures", lambda view: {})

    def atom(self, request: Request) -> Response:
        wanted = str(request.path_params["atom"])

        def words(view: flows.FlowView) -> dict[str, Any]:
            found = view.atom(wanted)
            if found is None:
                raise exceptions.NotFound(f"there is no task {wanted} in this flow")
            store = self._state.store
            lines = store.task_logs(view.uuid, wanted, found.name, LINES)
            shows = found.result is not None and self._state.redactor.show_values
            returned = store.returned(view.uuid, wanted) if shows else None
            return {
                "atom": found,
                "is_cut": len(lines) == LINES,
                "lines": lines,
                "returned": returned,
            }

        return self._page(request, "atom", words)

    def _page(
        self, request: Request, tab: str, words: Callable[[flows.FlowView], Mapping[str, Any]]
    ) -> Response:
        """A page of one flow; `?part=head` and `?part=body` are what changes while it runs."""
        with http_errors.refused():
            found = self._state.store.latest(str(request.path_params["uuid"]))
            part = request.query_params.get("part")
            if isinstance(found, listing.FlowSummary):
                return self._summary(request, found, part)
            view = found.view
            content = {} if part == "head" else words(view)
        head = flow_head.words(self._state, view)
        done = None if head["failed"] else _TOLD.get(request.query_params.get("done", ""))
        context = {
            **head,
            "here": "/",
            "is_last": view.finished and found.again is None,
            "pace": "refresh-slow" if view.total <= LARGE else "refresh-rarely",
            "part": part,
            "signals": () if view.state in states.FLOW_ENDED else view.outline.signals,
            "tab": tab,
            "notice": done,
            "again": {
                name: request.query_params.getlist(name)
                for name in ("under", "start", "after", "state", "name", "sort", "open", "close")
            },
            **content,
        }
        name = {"head": "_head.html", "body": f"_{tab}.html"}.get(part or "", "flow.html")
        headers = {}
        if part and found.again is not None:  # a page would be loaded again by this, scripts or not
            headers["refresh"] = str(max(1, math.ceil(found.again)))
        return self._state.render(request, name, context, headers=headers)

    def _summary(self, request: Request, view: listing.FlowSummary, part: str | None) -> Response:
        """What is shown of a huge flow until it was read: the browser asks again by itself."""
        if part:
            raise HTTPException(503, "The flow is being read.")
        words = {"here": "/", "row": view.row, "view": view}
        headers = {"refresh": str(AGAIN)}
        return self._state.render(request, "summary.html", words, headers=headers)

    def _atom_page(self, request: Request, view: flows.FlowView, uuid: str | None) -> str:
        return urls.href(request, f"/flows/{view.uuid}/atoms/{uuid}") if uuid else ""
