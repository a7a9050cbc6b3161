"""The list of flows and the pages of one flow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import drawing, exceptions, states
from wbengine.dashboard import (
    _atom_table,
    _bulk_pages,
    _flow_actions,
    _flow_head,
    _http_errors,
    _listings,
    _operation_forms,
    _stream,
    _submit_pages,
    _urls,
)
from wbengine.dashboard._app_state import AppState
from wbengine.drawing import _step_rows
from wbengine.jobs import _places
from wbengine.persistence import _edits, base
from wbengine.types import codec
from wbengine.views import _atoms, _flow_list, _formatting, _shown_states
from wbengine.views import _timeline as timeline
from wbengine.views import flow_status as flows

__all__ = ["FlowPages"]

#: Number of atoms above which a page is reloaded rarely. Its states are updated in any case.
RARE_REFRESH_ATOMS: Final = 400
MAX_EVENTS: Final = 500
MAX_LINES: Final = 1000
#: Maximum number of failures on their page, of failures with log lines, and of lines of each.
MAX_FAILURES: Final = 100
MAX_FAILURES_WITH_LINES: Final = 20
MAX_LINES_OF_FAILURE: Final = 20
SUMMARY_REFRESH_SECONDS: Final = 2
_MAX_TASK_CHARS: Final = 300

#: Parameters in the address of a page that its parts receive, too.
_PARAMETERS: Final = (
    "under", "start", "after", "state", "name", "sort", "open", "close", "task"
)  # fmt: skip

#: Value of the URL parameter `done` after a signal for which nothing waited.
NOT_AWAITED: Final = "signal-not-awaited"

_NOT_AWAITED_NOTICE: Final = (
    "The signal was sent to the flow. Nothing waits for a signal of this name now."
)


class FlowPages:
    """Handlers of the pages. Starlette calls them in threads, so no page waits for another."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        prefix = "/flows/{uuid:uuid}"
        return [
            Route("/", self.index),
            Route(prefix, self.tasks),
            Route(f"{prefix}/graph", self.graph),
            Route(f"{prefix}/timeline", self.timeline),
            Route(f"{prefix}/events", self.events),
            Route(f"{prefix}/logs", self.logs),
            Route(f"{prefix}/failures", self.failures),
            Route(f"{prefix}/retry", self.retry),
            Route(f"{prefix}/atoms/{{atom:uuid}}", self.atom),
        ]

    def index(self, request: Request) -> Response:
        with _http_errors.as_http_errors():
            flow_filter = _listings.FlowFilter.of(request)
            store, redactor = self._state.store(request), self._state.redactor
            page = store.read(lambda connection: flow_filter.read(connection, redactor))
        context = {
            "here": "/",
            "mark": _stream.digest([row.to_dict() for row in page.flows]),
            "page": page,
            "engines": _listings.engine_kinds(),
            "max_find": _listings.MAX_FIND_CHARS,
            "periods": _listings.PERIODS,
            "queue_pattern": _places.QUEUE_PATTERN[1:-1],
            "states": _shown_states.LISTED,
            "flow_filter": flow_filter,
            "operations": _bulk_pages.offered(self._state, request),
            "filters": _bulk_pages.fields_of_filter(flow_filter),
            "submit": _submit_pages.operation(),
        }
        part = request.query_params.get("part")
        return self._state.render(request, "_rows.html" if part else "flows.html", context)

    def tasks(self, request: Request) -> Response:
        def build_context(view: flows.FlowView) -> dict[str, Any]:
            under = _http_errors.int_parameter(request, "under")
            start = _http_errors.int_parameter(request, "start")
            query = request.query_params
            name = _listings.check_name(query.get("name", ""))
            selection = _atom_table.Selection(query.get("state", ""), name, query.get("sort", ""))
            shared = {
                "sorts": _atom_table.SORT_LABELS,
                "under": 0 if selection else under,
                "selection": selection,
            }
            if selection:
                return {"table": _atom_table.selected(view, selection, start), **shared}
            return {"table": _atom_table.table(view, under, start), **shared}

        return self._page(request, "tasks", build_context)

    def graph(self, request: Request) -> Response:
        def build_context(view: flows.FlowView) -> dict[str, Any]:
            under = _http_errors.int_parameter(request, "under")
            nodes = view.outline.nodes
            opened, closed = (
                frozenset(n for n in _http_errors.int_parameters(request, name) if n < len(nodes))
                for name in ("open", "close")
            )

            def toggle(node: int, is_open: bool) -> str:
                address = _urls.href(
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
                link=lambda atom: self._atom_page(request, view.uuid, atom.uuid),
                folding=drawing.Folding(opened, closed, toggle),
            )
            return {"picture": picture, "under": under}

        return self._page(request, "graph", build_context)

    def timeline(self, request: Request) -> Response:
        def build_context(view: flows.FlowView) -> dict[str, Any]:
            bars = timeline.timeline(view)
            if not bars.lanes:
                return {"chart": None}
            chart = drawing.chart(
                bars, link=lambda bar: self._atom_page(request, view.uuid, bar.uuid)
            )
            return {"chart": chart}

        return self._page(request, "timeline", build_context)

    def events(self, request: Request) -> Response:
        def build_context(view: flows.FlowView) -> dict[str, Any]:
            after = request.query_params.get("after") or None
            store = self._state.store(request)
            page = store.events(view.uuid, MAX_EVENTS, after, latest_first=True)
            return {"page": page, "after": after}

        return self._page(request, "events", build_context)

    def logs(self, request: Request) -> Response:
        def build_context(view: flows.FlowView) -> dict[str, Any]:
            task = request.query_params.get("task", "").strip()[:_MAX_TASK_CHARS]
            lines = self._state.store(request).logs(view.uuid, task or None, MAX_LINES)
            return {"lines": lines, "is_cut": len(lines) == MAX_LINES, "task": task}

        return self._page(request, "logs", build_context)

    def failures(self, request: Request) -> Response:
        def build_context(view: flows.FlowView) -> dict[str, Any]:
            shown = view.failures[:MAX_FAILURES]
            lines = self._state.store(request).logs_of_failures(
                view.uuid, shown[:MAX_FAILURES_WITH_LINES], MAX_LINES_OF_FAILURE
            )
            return {"failures": list(itertools.zip_longest(shown, lines, fillvalue=()))}

        return self._page(request, "failures", build_context)

    def retry(self, request: Request) -> Response:
        """Show the form that retries a submitted flow with other inputs and results."""

        def build_context(view: flows.FlowView) -> dict[str, Any]:
            def read(connection: base.Connection) -> tuple[list[str], list[str]]:
                with codec.unknown_classes_as_text():
                    detail = connection.get_flow_details(view.uuid)
                inputs = _edits.replaceable_inputs(detail, view.outline.used_inputs)
                return list(inputs), _edits.replaceable_results(detail)

            inputs, results = self._state.store(request).read(read)
            return {"inputs": inputs, "results": results}

        return self._page(request, "retry", build_context)

    def atom(self, request: Request) -> Response:
        atom_uuid = str(request.path_params["atom"])

        def build_context(view: flows.FlowView) -> dict[str, Any]:
            atom, store = view.atom(atom_uuid), self._state.store(request)
            step = store.step(view, atom_uuid) if atom is None else None
            atom = atom if step is None else step.atom
            if atom is None:
                raise exceptions.NotFound(f"this flow has no task or step {atom_uuid}")
            lines = store.logs(view.uuid, atom_uuid, MAX_LINES)
            shows = atom.result is not None and self._state.redactor.show_values
            returned = store.returned(view.uuid, atom_uuid) if shows else None
            return {
                "atom": atom,
                "step": step,
                "labels": _labels(atom),
                "is_cut": len(lines) == MAX_LINES,
                "lines": lines,
                "returned": returned,
                "step_rows": () if atom.steps is None else _step_rows.rows(atom.steps),
            }

        return self._page(request, "atom", build_context)

    def _page(
        self,
        request: Request,
        tab: str,
        build_context: Callable[[flows.FlowView], Mapping[str, Any]],
    ) -> Response:
        """Render a page of a flow, or with `?part=head` or `?part=body` the part that changes."""
        with _http_errors.as_http_errors():
            latest = self._state.store(request).latest(str(request.path_params["uuid"]))
            part = request.query_params.get("part")
            if isinstance(latest, _flow_list.FlowSummary):
                return self._summary(request, latest, part)
            view = latest.view
            content = {} if part == "head" else build_context(view)
        head = _flow_head.context_of(self._state, view)
        notice = None if head["failed"] else _notice(request.query_params.get("done", ""))
        ended = view.state in states.FLOW_ENDED
        if notice is not None and notice == _NOT_AWAITED_NOTICE:
            store = self._state.store(request)
            with _http_errors.as_http_errors():
                awaited = store.read(lambda each: each.awaited_signals(view.uuid))
            text = store.redactor(view.uuid).text(", ".join(awaited))
            notice += f" Awaited signals: {text or 'none'}."
        context = {
            **head,
            "here": "/",
            "is_last": view.finished and latest.refresh_seconds is None,
            "pace": "refresh-slow" if view.total <= RARE_REFRESH_ATOMS else "refresh-rarely",
            "part": part,
            "accepts_any_signal": not ended and view.outline.accepts_any_signal,
            "signals": () if ended else _awaited_signals(view),
            "tab": tab,
            "notice": notice,
            "others": _flow_actions.others_of_flow(view),
            "parameters": {name: request.query_params.getlist(name) for name in _PARAMETERS},
            **content,
        }
        name = {"head": "_head.html", "body": f"_{tab}.html"}.get(part or "", "flow.html")
        headers = {}
        # Only for a part: browsers would reload a whole page even if scripts update it.
        if part and latest.refresh_seconds is not None:
            headers["refresh"] = str(max(1, math.ceil(latest.refresh_seconds)))
        return self._state.render(request, name, context, headers=headers)

    def _summary(
        self, request: Request, view: _flow_list.FlowSummary, part: str | None
    ) -> Response:
        """Render the summary of a large flow. The browser reloads it until the flow is loaded."""
        if part:
            raise HTTPException(503, "The flow is being loaded.")
        context = {"here": "/", "row": view.row, "view": view}
        headers = {"refresh": str(SUMMARY_REFRESH_SECONDS)}
        return self._state.render(request, "summary.html", context, headers=headers)

    def _atom_page(self, request: Request, flow_uuid: str, uuid: str | None) -> str:
        return _urls.href(request, f"/flows/{flow_uuid}/atoms/{uuid}") if uuid else ""


def _notice(done: str) -> str | None:
    """Return the notice for a value of the URL parameter `done`."""
    if done == NOT_AWAITED:
        return _NOT_AWAITED_NOTICE
    if done == _submit_pages.operation().verb:
        return _submit_pages.NOTICE
    return _operation_forms.notice(_flow_actions.actions(), done)


def _labels(atom: _atoms.AtomView) -> Mapping[int, str]:
    """Return texts for the attempts of an atom by their number, if there are several.

    The lines of a workflow are those of its steps, which have other attempts.
    """
    if atom.steps is not None or len(atom.attempts) < 2:
        return {}
    words = {"execute": "execution", "revert": "reversion"}
    return {
        each.attempt: f"{words.get(each.action, each.action)} {_formatting.nth(each)}"
        for each in atom.attempts
    }


def _awaited_signals(view: flows.FlowView) -> list[str]:
    """Return the signals that the form offers: of tasks, and those that workflows await."""
    waits = (wait.signal for wait in view.waits_for if wait.signal)
    return list(dict.fromkeys([*view.outline.signals, *waits]))
