"""Server-sent events of changes. A client that reconnects continues at its cursor."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from wbengine import exceptions, states
from wbengine.dashboard import (
    _feeds,
    _flow_head,
    _http_errors,
    _listings,
    _rendering,
    _urls,
    _visitors,
)
from wbengine.dashboard._app_state import AppState
from wbengine.drawing import _styles
from wbengine.fleet import client as fleets
from wbengine.views import _flow_list, watcher

__all__ = ["Streams", "digest", "activity_of"]

LOG: Final = logging.getLogger(__name__)

#: Interval between two polls of the displayed flows and lists, and of the workers.
POLL_SECONDS: Final = 0.25
WORKERS_POLL_SECONDS: Final = 1.0
#: Minimum interval between two heads of one flow.
HEAD_SECONDS: Final = 0.5
#: Maximum number of repeated polls to bring a new listener and the others to the same cursor.
_MAX_TRIES: Final = 20
#: Interval between two pings on a connection without events.
PING_SECONDS: Final = 15
#: Time for a stream to end when the server ends, less than the grace period of the server.
ENDING_SECONDS: Final = 1.5

_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})

_Events = list[watcher.Event]
#: A page of a list, and the previous one (None: unknown).
_Pages = tuple[_flow_list.ListingView | None, _flow_list.ListingView]


def digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Flow(_feeds.Source[_Events]):
    """Events of a flow. An empty list means that the head of the page may have changed.

    :raises NotFound: if the flow does not exist.
    """

    def __init__(
        self, watch: Callable[[str | None], watcher.FlowWatcher], cursor: str | None
    ) -> None:
        self._begin_watch = watch
        self._watch = watch(cursor)
        self.cursor = self._watch.cursor
        # Events that were read for a new listener and not returned yet: a later poll may fail.
        self._pending: _Events = []
        self.due = 0.0
        #: The time of the latest head, and the head.
        self.head_made_at = -math.inf
        self.head: Mapping[str, Any] | None = None

    def poll(self) -> _Events | None:
        events, now = [*self._pending, *self._watch.poll()], time.monotonic()
        self._pending, self.cursor = [], self._watch.cursor
        if not events and now < self.due:
            return None
        self.due = now + _feeds.IDLE_POLL_SECONDS
        return events

    def join(self, cursor: str | None) -> tuple[_Events | None, _Events]:
        """Return the new events for the current listeners, and the events for the new listener.

        Both end at the same cursor, unless the flow changed between the two polls in each of
        `_MAX_TRIES` repetitions. Then the new listener receives some events twice.
        """
        with self._begin_watch(cursor) as newcomer:
            missed = newcomer.poll()
            for _ in range(_MAX_TRIES):
                self._pending += self._watch.poll()
                if self._watch.cursor == newcomer.cursor:
                    break
                missed += newcomer.poll()
        new_content, self._pending, self.cursor = self._pending, [], self._watch.cursor
        return new_content or None, missed

    def close(self) -> None:
        self._watch.close()


class _Listing(_feeds.Source[_Pages]):
    def __init__(self, read: Callable[[], _flow_list.ListingView], cursor: str | None) -> None:
        self._read = read
        self.cursor = cursor
        self._page: _flow_list.ListingView | None = None

    def poll(self) -> _Pages | None:
        page = self._read()
        before, self._page = self._page, page
        if (mark := digest([row.to_dict() for row in page.flows])) == self.cursor:
            return None
        self.cursor = mark
        return before, page

    def join(self, cursor: str | None) -> tuple[_Pages | None, _Pages | None]:
        new_content = self.poll()
        assert self._page is not None
        return new_content, None if cursor == self.cursor else (None, self._page)


class _Workers(_feeds.Source[bool]):
    """Whether the list of workers, their states or their requests have changed."""

    def __init__(self, read: Callable[[], list[fleets.WorkerView]], cursor: str | None) -> None:
        self._read = read
        self.cursor = cursor

    def poll(self) -> bool | None:
        before, self.cursor = self.cursor, digest([activity_of(worker) for worker in self._read()])
        return True if self.cursor != before else None

    def join(self, cursor: str | None) -> tuple[bool | None, bool | None]:
        return self.poll(), None if cursor == self.cursor else True


class Streams:
    """Handlers of event streams.

    All streams of one flow or list share the polls, which run in a thread, and the text of each
    update. A slow client does not delay others: if it is too slow, it continues from its cursor.
    """

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state
        closing, on_failure = app_state.closing, self._on_failure
        self._flows: _feeds.Feeds[_Events] = _feeds.Feeds(
            POLL_SECONDS, closing, on_failure, self._marks
        )
        self._lists: _feeds.Feeds[_Pages] = _feeds.Feeds(POLL_SECONDS, closing, on_failure)
        self._workers: _feeds.Feeds[bool] = _feeds.Feeds(WORKERS_POLL_SECONDS, closing, on_failure)

    def routes(self) -> list[Route]:
        return [
            Route("/flows/{uuid:uuid}/stream", self.flow),
            Route("/api/v1/flows/{uuid:uuid}/events/stream", self.events),
            Route("/stream/flows", self.flows),
            Route("/stream/workers", self.workers),
        ]

    async def flow(self, request: Request) -> Response:
        """Stream the changes of one flow for its page: atoms, head, and whether it has ended."""
        root = str(request.scope.get("root_path", ""))
        return await self._of_flow(request, root, functools.partial(self._encode_changes, request))

    async def events(self, request: Request) -> Response:
        """Stream the events of one flow, in the format of `flow watch --json`."""
        return await self._of_flow(request, _encode_events, _encode_events)

    async def flows(self, request: Request) -> Response:
        """Stream the rows of the list of flows that changed."""
        with _http_errors.as_http_errors():
            flow_filter = _listings.FlowFilter.of(request)
        root, redactor = str(request.scope.get("root_path", "")), self._state.redactor
        store = self._state.store(request)

        def read() -> _flow_list.ListingView:
            return store.read(lambda each: flow_filter.read(each, redactor))

        begin, render = functools.partial(_Listing, read), functools.partial(_encode_rows, request)
        return await self._stream(request, self._lists, flow_filter, begin, root, render)

    async def workers(self, request: Request) -> Response:
        """Stream a notice whenever the list of workers changes."""
        begin = functools.partial(_Workers, self._state.monitor.workers)
        return await self._stream(request, self._workers, "", begin, "", _encode_change)

    async def _of_flow(
        self, request: Request, variant: Any, render: Callable[[_feeds.Update[_Events]], bytes]
    ) -> Response:
        uuid = str(request.path_params["uuid"])
        watch = functools.partial(self._state.store(request).watch, uuid)
        begin = functools.partial(_Flow, watch)
        return await self._stream(request, self._flows, uuid, begin, variant, render)

    async def _stream(
        self,
        request: Request,
        kind: _feeds.Feeds[Any],
        key: Any,
        begin: Callable[[str | None], _feeds.Source[Any]],
        variant: Any,
        render: Callable[[_feeds.Update[Any]], bytes],
    ) -> Response:
        cursor = _cursor(request)
        # Visitors share a feed only if they have access to the same flows.
        key = _visitors.restriction_of(request), key
        with _http_errors.as_http_errors():
            listener = await kind.join(key, cursor, functools.partial(begin, cursor))

        async def messages() -> AsyncIterator[bytes]:
            async for update in listener:
                if text := await update.text(variant, render):
                    yield text

        return _Stream(messages(), functools.partial(kind.leave, listener))

    def _marks(self, keys: Iterable[tuple[Any, str]]) -> Mapping[tuple[Any, str], str]:
        """Return the marks of feeds, whose sources check the restriction in each poll."""
        uuids = {key: key[1] for key in keys}
        marks = self._state.all_flows.read(lambda each: each.marks(set(uuids.values())))
        return {key: marks[uuid] for key, uuid in uuids.items() if uuid in marks}

    def _encode_changes(self, request: Request, update: _feeds.Update[_Events]) -> bytes:
        assert isinstance(update.source, _Flow)
        events, head = update.content, self._head(request, update.source, update.is_first)
        if not events and head is None:
            return b""
        latest = {event.uuid: event for event in events if event.kind == "atom"}
        flow = [event.state for event in events if event.kind == "flow"]
        content = {
            "atoms": [_atom(event) for event in latest.values()],
            "changed": bool(events),
            "state": flow[-1] if flow else None,
            "ended": bool(flow) and flow[-1] in _ENDED,
            "head": head,
        }
        return _event(content, update.cursor)

    def _head(self, request: Request, source: _Flow, is_first: bool) -> Mapping[str, Any] | None:
        """Return the head of the flow's page if it changed or the listener is new."""
        now = time.monotonic()
        if now < source.head_made_at + HEAD_SECONDS and not is_first:
            source.due = min(source.due, source.head_made_at + HEAD_SECONDS)
            return None
        source.head_made_at = now
        try:
            head, delay = _flow_head.read_head(self._state, request)
        except (*_feeds.FAILURES, exceptions.NotFound) as error:
            self._on_failure(error)
            return None
        if delay is not None:
            source.due = min(source.due, now + delay)
        if is_first:
            source.head = None  # The other listeners have not received this head.
            source.due = min(source.due, now + HEAD_SECONDS)
            return head
        if head == source.head:
            return None
        source.head = head
        return head

    def _on_failure(self, error: Exception) -> None:
        LOG.warning(
            "cannot read the data of an event stream: %s", self._state.redactor.text(str(error))
        )


class _Stream(EventSourceResponse):
    """A response that always calls `close` when it ends, also if the client does not read it."""

    def __init__(self, messages: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        # Streams end when the server ends, within the grace period.
        super().__init__(messages, ping=PING_SECONDS, shutdown_grace_period=ENDING_SECONDS)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _cursor(request: Request) -> str | None:
    """Return the cursor. After a reconnection, the header is newer than the one in the URL."""
    return request.headers.get("last-event-id") or request.query_params.get("cursor") or None


def _atom(event: watcher.Event) -> dict[str, Any]:
    return {
        "uuid": event.uuid,
        "name": event.name,
        "state": event.state,
        "icon": _styles.icon(event.state),
        "executions": event.executions,
        "worker": event.worker,
        "progress": event.progress,
    }


def _encode_events(update: _feeds.Update[_Events]) -> bytes:
    """Put the cursor into the last event: after a reconnection, a client gets all events again."""
    last = len(update.content)
    return b"".join(
        _event(event.to_dict(), update.cursor if number == last else None, event.kind)
        for number, event in enumerate(update.content, 1)
    )


def _encode_rows(request: Request, update: _feeds.Update[_Pages]) -> bytes:
    before, page = update.content
    if before is None or not (before.flows and page.flows):
        return _encode_change(update)
    previous_rows = {row.uuid: row for row in before.flows}
    context: dict[str, Any] = {"href": functools.partial(_urls.href, request)}
    content: dict[str, Any] = {"atoms": [], "changed": False}
    content["rows"] = {
        row.uuid: _rendering.render("_row.html", {**context, "row": row})
        for row in page.flows
        if previous_rows.get(row.uuid) != row
    }
    order = [row.uuid for row in page.flows]
    if order != list(previous_rows):
        content["order"] = order
    if page.after != before.after:
        flow_filter = _listings.FlowFilter.of(request)
        content["foot"] = _rendering.render(
            "_foot.html", {**context, "page": page, "flow_filter": flow_filter}
        )
    return _event(content, update.cursor)


def _encode_change(update: _feeds.Update[Any]) -> bytes:
    return _event({"atoms": [], "changed": True}, update.cursor)


def _event(content: Any, id: str | None, kind: str = "turn") -> bytes:
    data = json.dumps(content, separators=(",", ":"))
    return ServerSentEvent(data=data, event=kind, id=id).encode()


def activity_of(worker: fleets.WorkerView) -> list[Any]:
    """Return the listed values of a worker, without those that change with each heartbeat."""
    return [worker.name, worker.state, [work.request for work in worker.current]]
