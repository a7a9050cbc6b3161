"""Paths of the API that read: the data of the pages as JSON. Each response names its schema."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wbengine import exceptions, states
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine._limits import usage
from wbengine.dashboard import (
    _bulk_views,
    _http_errors,
    _job_pages,
    _limit_pages,
    _listings,
    _pause_pages,
    _rendering,
    _schedule_pages,
)
from wbengine.dashboard._app_state import AppState
from wbengine.engines import _input_schemas
from wbengine.fleet import _requests
from wbengine.fleet._message_queues import QueueView
from wbengine.fleet.client import WorkerView
from wbengine.jobs import _places
from wbengine.jobs._queues import JobQueue
from wbengine.operations import _allowed_flows, _flow_results
from wbengine.persistence import base as persistence
from wbengine.views import _event_history, _json_values, _open_work, _shown_states

__all__ = ["READS", "Api", "Read"]

_MAX_LINES: Final = 5000
_MAX_NAMES: Final = 1000
#: Fair keys of a queue.
_DEFAULT_KEYS: Final = 100
#: Results of tasks in a page.
_DEFAULT_VALUES: Final = 100
_MAX_VALUES: Final = 500
#: Flows of each limit.
_MAX_LIMIT_FLOWS: Final = 100
#: Maximum time for which a response waits for the end of a flow, and seconds between two polls: the
#: first pause and the longest.
MAX_WAIT_SECONDS: Final = 60
_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Read:
    """A path that reads.

    :ivar path: after `/api/v1/`; a flow is `{uuid:uuid}`.
    :ivar schema: name of the schema of the response.
    :ivar parameters: description and JSON schema of each query parameter.
    :ivar result: JSON schemas of the main values in the response, by name.
    """

    path: str
    schema: str
    summary: str
    parameters: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    result: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": ["integer", "null"]}
_WAIT: Final = (
    "Answer when the flow has ended, but after this number of seconds at the latest.",
    {"type": "number", "minimum": 0, "maximum": MAX_WAIT_SECONDS, "default": 0},
)
_AFTER: Final = ("The `after` of the previous page.", _TEXT)
_NAME_PART: Final = {**_TEXT, "maxLength": object_names.MAX_NAME_LENGTH}
_QUEUE_FILTER: Final = {
    "type": "string",
    "pattern": f"^({_places.QUEUE_PATTERN[1:-1]})?$",
    "maxLength": 64,
}
#: Cursors of flows and of events.
_AFTER_FLOW: Final = (
    _AFTER[0],
    {
        "type": "string",
        "pattern": r'^(\[(0|[1-9][0-9]*)([.][0-9]+)?, (0|[1-9][0-9]*|"[0-9a-f-]{36}")\])?$',
    },
)
_AFTER_EVENT: Final = (
    _AFTER[0],
    {"type": "string", "pattern": r"^(([0-9]+([.][0-9]+)?|inf)_-?[0-9]+_[0-9]+)?$"},
)


def _limit(default: int, maximum: int) -> tuple[str, Mapping[str, Any]]:
    schema = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return "The size of a page.", schema


_VALUES: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"uuid": _TEXT, "name": _TEXT, "state": _TEXT, "value": {}},
        "required": ["uuid", "name", "state", "value"],
    },
}
_NUMBER_OR_NULL: Final = {"type": ["number", "null"]}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_LIMIT: Final = {
    "name": _TEXT,
    "rate": {**_TEXT_OR_NULL, "description": "The rate in force."},
    "concurrency": {**_NUMBER_OR_NULL, "description": "The concurrency in force."},
    "defined": {
        "type": ["object", "null"],
        "description": "Rate and concurrency of the code, if a flow uses the limit.",
        "properties": {"rate": _TEXT_OR_NULL, "concurrency": _NUMBER_OR_NULL},
    },
    "used": {
        **_NUMBER_OR_NULL,
        "description": "Units of the last period, if tasks of the limit have costs.",
    },
    "next_permit": {
        **_NUMBER_OR_NULL,
        "description": "Seconds until the next permit of the rate, unless tasks must end first.",
    },
    "changes": {
        "type": "array",
        "items": {"type": "object"},
        "description": "The changes by operators that apply, that of the key first.",
    },
    "held": {"type": "integer"},
    "waiting": {"type": "integer"},
    "parked": {
        "type": "integer",
        "description": "Number of parked flows that wait for a permit, besides `flows`.",
    },
    "flow_count": {"type": "integer"},
    "flows": {"type": "array", "items": {"type": "object"}},
}
_PAGE_OF_NAMES: Final = {"limit": _limit(_MAX_NAMES, _MAX_NAMES), "after": _AFTER}

#: The paths by the name of their handler in `Api`.
READS: Final[Mapping[str, Read]] = {
    "flows": Read(
        "flows",
        "flows",
        "List flows, the latest first.",
        {
            "name": ("A part of the name, in upper or lower case.", _NAME_PART),
            "find": (
                "A part of the name, the beginning of an id, or a tag: `KEY=VALUE`, `KEY>100`.",
                {**_TEXT, "maxLength": _listings.MAX_FIND_CHARS},
            ),
            "state": (
                "The displayed states.",
                {"type": "array", "items": {"enum": list(_shown_states.LISTED)}},
            ),
            "engine": (
                "The kind of the engine that ran the flow last.",
                {"enum": ["", *_listings.engine_kinds()]},
            ),
            "queue": ("The queue to which the flow was submitted.", _QUEUE_FILTER),
            "since": ("The age of the flow.", {"enum": ["", *_listings.PERIODS]}),
            "limit": _limit(_listings.DEFAULT_LIMIT, _listings.MAX_LIMIT),
            "after": _AFTER_FLOW,
        },
    ),
    "flow": Read(
        "flows/{uuid:uuid}",
        "flow",
        "Show a flow with its tasks.",
        {
            "atoms": ("`0`: without the tasks.", {"enum": ["0", "1"]}),
            "wait": _WAIT,
        },
        {
            "uuid": _TEXT,
            "name": _TEXT,
            "state": {"enum": [*states.FLOW_STATES]},
            "shown_state": {"enum": [*_shown_states.LISTED]},
            "wish": {
                "type": ["string", "null"],
                "description": "A text about the command that no engine has carried out yet.",
            },
            "tags": {
                "type": "object",
                "description": "The tags by key. Times are ISO 8601 texts in UTC.",
                "additionalProperties": {"type": ["string", "number", "boolean"]},
            },
            "published": {"type": "object", "description": "The published values by name."},
        },
    ),
    "result": Read(
        "flows/{uuid:uuid}/result",
        "flow-result",
        "Return the values of a flow that has ended, or its error.",
        {"wait": _WAIT},
        {
            "uuid": _TEXT,
            "state": {"enum": [*states.FLOW_STATES]},
            "has_ended": {"type": "boolean"},
            "values": {
                "type": ["object", "null"],
                "description": "The values by name, with masked secrets, of a flow that succeeded.",
            },
            "error": {
                "type": ["object", "null"],
                "description": "The class and the text of the error, without success.",
                "properties": {"type": _TEXT, "message": _TEXT},
                "required": ["type", "message"],
            },
        },
    ),
    "events": Read(
        "flows/{uuid:uuid}/events",
        "events",
        "List the events of a flow, the oldest first.",
        {"limit": _limit(_event_history.DEFAULT_LIMIT, _MAX_LINES), "after": _AFTER_EVENT},
    ),
    "logs": Read(
        "flows/{uuid:uuid}/logs",
        "flow-logs",
        "List the latest log lines of the tasks and steps of a flow.",
        {
            "task": ("The name or uuid of one task or step.", _TEXT),
            "limit": _limit(_event_history.DEFAULT_LIMIT, _MAX_LINES),
        },
    ),
    "values": Read(
        "flows/{uuid:uuid}/values",
        "flow-values",
        "List the inputs of a flow and the results of its tasks, with masked secrets.",
        {
            "task": ("The name or uuid of one task.", _TEXT),
            "limit": _limit(_DEFAULT_VALUES, _MAX_VALUES),
            "after": _AFTER,
        },
        {
            "uuid": _TEXT,
            "inputs": {"type": "object", "description": "The inputs by name."},
            "values": _VALUES,
            "after": {"type": ["string", "null"]},
        },
    ),
    "export": Read(
        "flows/{uuid:uuid}/export",
        "flow-report",
        "Export a flow with its tasks, events, log lines and, with --show-values, values.",
        {"limit": _limit(_event_history.DEFAULT_LIMIT, _MAX_LINES)},
        {
            "uuid": _TEXT,
            "flow": {"type": "object"},
            "events": {"type": "array", "items": {"type": "object"}},
            "events_after": {
                "type": ["string", "null"],
                "description": "The `after` of the next page of events, if there are more.",
            },
            "logs": {"type": "array", "items": {"type": "object"}},
            "values": {
                **_VALUES,
                "type": ["array", "null"],
                "description": "Masked results of at most 500 tasks, if the visitor may read them.",
            },
            "values_after": {"type": ["string", "null"]},
        },
    ),
    "inputs": Read(
        "inputs",
        "flow-inputs",
        "Show the JSON schema of the inputs of an allowed flow, and of its factory.",
        {
            "factory": (
                "The flow, the workflow, or the function that builds a flow: `MODULE:NAME`.",
                {**_TEXT, "minLength": 1},
            )
        },
        {
            "factory": _TEXT,
            "inputs": {
                "type": ["object", "null"],
                "description": "The JSON schema of an object by name, unless the factory must be"
                " called with arguments.",
            },
            "arguments": {
                "type": ["object", "null"],
                "description": "The JSON schema of the arguments of the factory by name, if it has"
                " parameters.",
            },
        },
    ),
    "status": Read(
        "status",
        "status",
        "Show the load of the workers, and the work that waits for conductors.",
        result={
            "broker_error": {
                "type": ["string", "null"],
                "description": "Why the broker is unavailable, and the load is unknown.",
            },
            "workers": _COUNT,
            "slots": _COUNT,
            "running": _COUNT,
            "waiting": {**_COUNT, "description": "The number of waiting requests."},
            "conductors": {"type": "object", "description": "The work that waits for conductors."},
        },
    ),
    "limits": Read(
        "limits",
        "limits",
        "List the limits in use or changed by name, with some of the flows that use them.",
        _PAGE_OF_NAMES,
        {"limits": {"type": "array", "items": {"type": "object", "properties": _LIMIT}}},
    ),
    "jobs": Read(
        "jobs",
        "jobs",
        "List the queues of submitted flows by name.",
        _PAGE_OF_NAMES,
        {"jobs": {"type": "array", "items": {"type": "object"}}},
    ),
    "job_keys": Read(
        "jobs/{queue}/keys",
        "job-keys",
        "List the fair keys of the flows in a queue, those with most waiting flows first.",
        {"limit": _limit(_DEFAULT_KEYS, _MAX_NAMES)},
        {"queue": _TEXT, "keys": {"type": "array", "items": {"type": "object"}}},
    ),
    "workers": Read("workers", "workers", "List the workers by name.", _PAGE_OF_NAMES),
    "queues": Read("queues", "queues", "List the queues of requests by name.", _PAGE_OF_NAMES),
    "requests": Read(
        "requests",
        "requests",
        "List the requests in the ledger, or the dead letters.",
        {
            "state": (
                "The state. `dead`: the dead letters; by default, all requests in the ledger.",
                {"enum": list(_requests.STATES)},
            ),
            "worker": ("The beginning of the name of the worker.", _TEXT),
            "task": ("The name of the task. That of a request is known while it runs.", _TEXT),
            "flow": ("The uuid of the flow, which is known of dead letters.", _TEXT),
            "older_than": ("The minimum age in seconds.", {"type": "number", "minimum": 0}),
            "limit": _limit(_requests.DEFAULT_LIMIT, _requests.MAX_LIMIT),
            "after": _AFTER,
        },
        {
            "ledger": {"type": "boolean", "description": "Whether there is a ledger."},
            "requests": {"type": "array", "items": {"type": "object"}},
            "after": {"type": ["string", "null"]},
        },
    ),
    "schedules": Read(
        "schedules",
        "schedules",
        "List the schedules by name.",
        {
            "limit": _limit(_schedule_pages.DEFAULT_LIMIT, _schedule_pages.MAX_LIMIT),
            "after": _AFTER,
        },
    ),
    "pauses": Read("pauses", "pauses", "List the pauses of task types in force."),
    "bulks": Read(
        "bulks",
        "bulks",
        "List the operations on many flows, the latest first.",
        result={
            "bulks": {"type": "array", "items": {"type": "object", "properties": _bulk_views.BULK}}
        },
    ),
    "bulk": Read(
        "bulks/{uuid:uuid}",
        "bulk",
        "Show an operation on many flows, with the reasons of skipped flows.",
        result={
            **_bulk_views.BULK,
            "reasons": _bulk_views.REASONS,
            "refused": _bulk_views.REFUSED,
        },
    ),
}


class Api:
    """Handlers of the API. They block, and run in threads."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state

    def routes(self) -> list[Route]:
        return [
            Route(f"/api/v1/{each.path}", functools.partial(self._answer, each, name))
            for name, each in READS.items()
        ]

    async def _answer(self, read: Read, name: str, request: Request) -> Response:
        with _http_errors.as_http_errors():
            if "wait" in read.parameters:
                await self._await_end(request)
            content = await run_in_threadpool(getattr(self, name), request)
        response = _rendering.SafeJSONResponse({"schema": f"wbengine/{read.schema}/1", **content})
        tag = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
        if tag in re.split(r"\s*,\s*", request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers={"etag": tag})
        response.headers["etag"] = tag
        return response

    async def _await_end(self, request: Request) -> None:
        """Wait until a flow has ended, for the requested time."""
        text = request.query_params.get("wait", "0")
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= MAX_WAIT_SECONDS:
            raise ValueError(
                f"wait must be a number of seconds from 0 to {MAX_WAIT_SECONDS}, got {text!r:.40}"
            )
        until, pause = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS
        while (left := until - time.monotonic()) > 0 and not self._state.closing.is_set():
            if await run_in_threadpool(self._has_ended, request):
                return
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _has_ended(self, request: Request) -> bool:
        """Return whether a flow has ended, and is not to run again."""
        uuid = _uuid(request)

        def read(connection: persistence.Connection) -> bool:
            is_requested = bool(connection.commands([uuid]))
            state = connection.get_flow_details(uuid, lazy=True).state
            return state in states.FLOW_ENDED and not is_requested

        return self._state.store(request).read(read)

    def flows(self, request: Request) -> dict[str, Any]:
        flow_filter = _listings.FlowFilter.of(request)
        store, redactor = self._state.store(request), self._state.redactor
        page = store.read(lambda connection: flow_filter.read(connection, redactor))
        return page.to_dict()

    def flow(self, request: Request) -> dict[str, Any]:
        """Return a flow with its atoms, or without them for `?atoms=0`."""
        with_atoms = request.query_params.get("atoms", "1") not in ("0", "false", "no")
        return self._state.store(request).flow(_uuid(request)).to_dict(atoms=with_atoms)

    def result(self, request: Request) -> dict[str, Any]:
        """Return the values of a flow. Only a dashboard that shows values returns them.

        :raises HTTPException: if this one does not.
        """
        self._check_shows_values()
        uuid = _uuid(request)
        ended = self._state.store(request).read(lambda each: _flow_results.read(each, uuid))
        mask = self._state.store(request).redactor(uuid).text
        error = ended.error and {"type": ended.error.type, "message": mask(ended.error.message)}
        return {
            "uuid": uuid,
            "state": ended.state,
            "has_ended": ended.has_ended,
            "values": _json_values.to_json(ended.values, mask, repr),
            "error": error,
        }

    def _check_shows_values(self) -> None:
        if not self._state.redactor.show_values:
            raise HTTPException(403, "Results are returned only with --show-values.")

    def values(self, request: Request) -> dict[str, Any]:
        """Return inputs and results of a flow. Only a dashboard that shows values returns them.

        :raises HTTPException: if this one does not.
        """
        self._check_shows_values()
        uuid, store = _uuid(request), self._state.store(request)
        limit = _http_errors.limit(request, _DEFAULT_VALUES, _MAX_VALUES)
        task, after = (request.query_params.get(name) or None for name in ("task", "after"))
        values, next_after = store.values(uuid, task, limit, after)
        inputs = store.flow(uuid).values
        return {"uuid": uuid, "inputs": inputs, "values": values, "after": next_after}

    def export(self, request: Request) -> dict[str, Any]:
        """Return what pages show of a flow, with values if this dashboard shows them."""
        uuid, store = _uuid(request), self._state.store(request)
        limit = _http_errors.limit(request, _event_history.DEFAULT_LIMIT, _MAX_LINES)
        page = store.events(uuid, limit)
        values = values_after = None
        if self._state.redactor.show_values:
            values, values_after = store.values(uuid, None, _MAX_VALUES)
        return {
            "uuid": uuid,
            "flow": store.flow(uuid).to_dict(),
            "events": page.to_dict()["events"],
            "events_after": page.after,
            "logs": [line.to_dict() for line in store.logs(uuid, None, limit)],
            "values": values,
            "values_after": values_after,
        }

    def inputs(self, request: Request) -> dict[str, Any]:
        """Return the schema of the inputs of a factory that the server allows."""
        factory = request.query_params.get("factory", "")
        if not factory:
            raise HTTPException(400, "The parameter factory is required: MODULE:NAME.")
        with _allowed_flows.loading(factory):
            schemas = _input_schemas.of_factory(factory)
        return {"factory": factory, **schemas._asdict()}

    def status(self, request: Request) -> dict[str, Any]:
        work = self._state.store(request).read(_open_work.read)
        return {**self._state.monitor.summary(), "conductors": work.to_dict()}

    def limits(self, request: Request) -> dict[str, Any]:
        page = _page(request, "limits", _limit_pages.limits(request, self._state))
        for limit in page["limits"]:
            flows = limit["flows"]
            limit |= {name: sum(flow[name] for flow in flows) for name in ("held", "waiting")}
            limit["waiting"] += limit["parked"]
            limit |= {
                "flow_count": len(flows) + limit["parked"], "flows": flows[:_MAX_LIMIT_FLOWS],
            }  # fmt: skip
        return page

    def jobs(self, request: Request) -> dict[str, Any]:
        return _page(request, "jobs", _job_pages.queues(request, self._state))

    def job_keys(self, request: Request) -> dict[str, Any]:
        queue = str(request.path_params["queue"])
        names = [each.name for each in _job_pages.queues(request, self._state)]
        if queue not in names:
            near = object_names.hint(queue, names)
            raise exceptions.NotFound(f"there is no queue of flows {queue!r:.80}{near}")
        limit = _http_errors.limit(request, _DEFAULT_KEYS, _MAX_NAMES)
        keys = _job_pages.keys(self._state, queue, limit)
        return {"queue": queue, "keys": [key.to_dict() for key in keys]}

    def events(self, request: Request) -> dict[str, Any]:
        """Return a page of events, oldest first. Start a stream of later events at `cursor`."""
        query, store = request.query_params, self._state.store(request)
        limit = _http_errors.int_parameter(request, "limit", _event_history.DEFAULT_LIMIT)
        cursor = store.cursor(_uuid(request))
        page = store.events(_uuid(request), limit, query.get("after") or None)
        return {**page.to_dict(), "cursor": cursor}

    def logs(self, request: Request) -> dict[str, Any]:
        """Return the latest log lines of a flow, or of one task (`?task=`)."""
        task = request.query_params.get("task") or None
        limit = _http_errors.int_parameter(request, "limit", _event_history.DEFAULT_LIMIT)
        store = self._state.store(request)
        lines = store.logs(_uuid(request), task, min(max(1, limit), _MAX_LINES))
        return {"lines": [line.to_dict() for line in lines]}

    def workers(self, request: Request) -> dict[str, Any]:
        return _page(request, "workers", self._state.monitor.workers())

    def queues(self, request: Request) -> dict[str, Any]:
        return _page(request, "queues", self._state.monitor.queues())

    def schedules(self, request: Request) -> dict[str, Any]:
        entries, after = _schedule_pages.page(request, self._state)
        rows = [entry.to_dict() for entry in entries]
        for row in rows:
            row["trouble"] = row["trouble"] and self._state.redactor.text(row["trouble"])
        return {"schedules": rows, "after": after}

    def pauses(self, request: Request) -> dict[str, Any]:
        """Return the pauses of task types in force."""
        return {"pauses": [pause.to_dict() for pause in _pause_pages.pauses(request, self._state)]}

    def bulks(self, request: Request) -> dict[str, Any]:
        """Return the latest operations on many flows."""
        return {"bulks": [bulk.to_dict() for bulk in _bulk_views.latest(self._state, request)]}

    def bulk(self, request: Request) -> dict[str, Any]:
        """Return an operation on many flows, with the reasons of skipped flows."""
        return _bulk_views.one(self._state, request).to_dict()

    def requests(self, request: Request) -> dict[str, Any]:
        query = request.query_params
        chosen = _requests.Filter(
            query.get("state") or None,
            query.get("worker", ""),
            query.get("task", ""),
            query.get("flow", ""),
            named_options.number("older_than", query.get("older_than") or 0.0),
        )
        limit = _http_errors.limit(request, _requests.DEFAULT_LIMIT, _requests.MAX_LIMIT)
        page = self._state.monitor.requests(chosen, limit, query.get("after") or None)
        if page is None:
            return {"ledger": False, "requests": [], "after": None}
        listed = [each.to_dict() for each in page.requests]
        return {"ledger": True, "requests": listed, "after": page.after}


def _page(
    request: Request,
    name: str,
    views: Iterable[WorkerView | QueueView | usage.LimitUsage | JobQueue],
) -> dict[str, Any]:
    """Return the requested page of views, by name."""
    limit = _http_errors.limit(request, _MAX_NAMES, _MAX_NAMES)
    after = request.query_params.get("after", "")
    rest = sorted((view for view in views if view.name > after), key=lambda view: view.name)
    return {
        name: [view.to_dict() for view in rest[:limit]],
        "after": rest[limit - 1].name if len(rest) > limit else None,
    }


def _uuid(request: Request) -> str:
    return str(request.path_params["uuid"])
