"""What changes, told as it happens: server-sent events, which go on where they broke off."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from wbengine import exceptions, states
from wbengine.dashboard import feeds, flow_head, http_errors, listings, rendering, urls
from wbengine.dashboard.app_state import AppState
from wbengine.drawing import styles
from wbengine.views import fleet, listing, watcher

__all__ = ["Streams", "digest", "doing"]

LOG: Final = logging.getLogger(__name__)

#: Seconds between two looks at the flows and lists that somebody looks at, and at the workers.
TURN: Final = 0.25
SLOW: Final = 1.0
#: Seconds between two heads of one flow.
HEAD: Final = 0.5
#: So many browsers (and scripts) are told at a time.
MOST: Final = 200
#: Seconds after which a connection that has nothing to say says that it lives.
PING: Final = 15
#: Seconds that a stream has to end by itself when the server ends; less than the server has.
ENDING: Final = 1.5

_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})

_Events = list[watcher.Event]
#: A page of a list, and the one that was there before it; None: nobody knows.
_Pages = tuple[listing.ListingView | None, listing.ListingView]


def digest(told: Any) -> str:
    """A mark of what a list shows: it changes when that does."""
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Flow:
    """What happens to a flow; now and then, that nothing does."""

    def __init__(self, watch: watcher.FlowWatcher) -> None:
        self._watch = watch
        self.due = 0.0
        #: When its head was made last, and what it was.
        self.made = -math.inf
        self.head: Mapping[str, Any] | None = None

    @property
    def cursor(self) -> str | None:
        return self._watch.cursor

    def turn(self) -> _Events | None:
        events, now = self._watch.turn(), time.monotonic()
        if not events and now < self.due:
            return None
        self.due = now + feeds.TICK
        return events

    def weight(self, found: _Events) -> int:
        return len(found)

    def close(self) -> None:
        self._watch.close()


class _Listing:
    """A page of the list of flows."""

    due = math.inf

    def __init__(self, read: Callable[[], listing.ListingView], cursor: str | None) -> None:
        self._read = read
        self.cursor = cursor
        self._page: listing.ListingView | None = None

    def turn(self) -> _Pages | None:
        page = self._read()
        before, self._page = self._page, page
        if (mark := digest([row.to_dict() for row in page.flows])) == self.cursor:
            return None
        self.cursor = mark
        return before, page

    def weight(self, found: _Pages) -> int:
        return len(found[1].flows)

    def close(self) -> None:
        pass


class _Workers:
    """What workers do."""

    due = math.inf

    def __init__(self, read: Callable[[], list[fleet.WorkerView]], cursor: str | None) -> None:
        self._read = read
        self.cursor = cursor

    def turn(self) -> bool | None:
        before, self.cursor = self.cursor, digest([doing(worker) for worker in self._read()])
        return True if self.cursor != before else None

    def weight(self, found: bool) -> int:
        return 1

    def close(self) -> None:
        pass


class Streams:
    """Streams of changes: each thing is looked at once, in threads, for all who listen to it.

    Nobody waits for a slow reader; one who is far behind goes on from its cursor.
    """

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state
        self._open = 0
        closing = app_state.closing
        self._flows: feeds.Feeds[_Events] = feeds.Feeds(TURN, closing, self._log, self._marks)
        self._lists: feeds.Feeds[_Pages] = feeds.Feeds(TURN, closing, self._log)
        self._workers: feeds.Feeds[bool] = feeds.Feeds(SLOW, closing, self._log)

    def routes(self) -> list[Route]:
        return [
            Route("/flows/{uuid:uuid}/stream", self.flow),
            Route("/api/v1/flows/{uuid:uuid}/events/stream", self.events),
            Route("/stream/flows", self.flows),
            Route("/stream/workers", self.workers),
        ]

    async def flow(self, request: Request) -> Response:
        """Turns of one flow, for its page: atoms that changed, its head, whether it has ended."""
        root = str(request.scope.get("root_path", ""))
        return await self._of_flow(request, root, functools.partial(self._turn, request))

    async def events(self, request: Request) -> Response:
        """The events of one flow, each as `flow watch --json` tells it."""
        return await self._of_flow(request, _each, _each)

    async def flows(self, request: Request) -> Response:
        """Rows of the list of flows that have changed."""
        with http_errors.refused():
            wanted = listings.Wanted.of(request.query_params)
        app_state, root = self._state, str(request.scope.get("root_path", ""))

        def read() -> listing.ListingView:
            return app_state.store.reading(lambda each: wanted.read(each, app_state.redactor))

        tell = functools.partial(_rows, request)
        source = _Listing(read, _cursor(request))
        return await self._stream(self._lists, wanted, source, root, tell)

    async def workers(self, request: Request) -> Response:
        """That workers came, went, or do something else."""
        source = _Workers(self._state.monitor.workers, _cursor(request))
        return await self._stream(self._workers, "", source, "", _changed)

    async def _of_flow(
        self, request: Request, alike: Any, tell: Callable[[Any, feeds.Turn[_Events]], bytes]
    ) -> Response:
        uuid, cursor = str(request.path_params["uuid"]), _cursor(request)
        with http_errors.refused():
            watch = await run_in_threadpool(self._state.store.watch, uuid, cursor)
        return await self._stream(self._flows, uuid, _Flow(watch), alike, tell)

    async def _stream(
        self,
        kind: feeds.Feeds[Any],
        key: Any,
        source: feeds.Source[Any],
        alike: Any,
        tell: Callable[[Any, feeds.Turn[Any]], bytes],
    ) -> Response:
        """`tell` says it of a source; those who are `alike` are told the same."""
        with contextlib.ExitStack() as failed:
            failed.callback(source.close)
            with http_errors.refused():
                first = await run_in_threadpool(source.turn)
                feed, number, turns = await kind.join(key, source, first)
            failed.pop_all()

        async def told() -> AsyncIterator[bytes]:
            for past in turns:
                if text := await past.told(alike, functools.partial(tell, source)):
                    yield text
            then = functools.partial(tell, feed.source)
            for count in itertools.count(number):
                if (turn := await feed.after(count)) is None:
                    return
                if text := await turn.told(alike, then):
                    yield text

        return self._answer(told(), lambda: kind.leave(feed))

    def _marks(self, uuids: Iterable[str]) -> Mapping[str, str]:
        return self._state.store.reading(lambda each: each.marks(list(uuids)))

    def _turn(self, request: Request, source: _Flow, turn: feeds.Turn[_Events]) -> bytes:
        events, head = turn.found, self._head(request, source)
        if not events and head is None:
            return b""
        latest = {event.uuid: event for event in events if event.kind == "atom"}
        flow = [event.state for event in events if event.kind == "flow"]
        told = {
            "atoms": [_atom(event) for event in latest.values()],
            "changed": bool(events),
            "state": flow[-1] if flow else None,
            "ended": bool(flow) and flow[-1] in _ENDED,
            "head": head,
        }
        return _event(told, turn.cursor)

    def _head(self, request: Request, source: _Flow) -> Mapping[str, Any] | None:
        """The head of the flow's page, where it is another one than before."""
        now = time.monotonic()
        if now < source.made + HEAD:
            source.due = min(source.due, source.made + HEAD)
            return None
        source.made = now
        try:
            head, again = flow_head.news(self._state, request)
        except (*feeds.FAILURES, exceptions.NotFound) as error:
            self._log(error)
            return None
        if again is not None:
            source.due = min(source.due, now + again)
        if head == source.head:
            return None
        source.head = head
        return head

    def _answer(self, told: AsyncIterator[bytes], close: Callable[[], None]) -> Response:
        """`close` is called in any case, also when nobody wants to hear what is told."""
        if self._open >= MOST:
            close()
            raise HTTPException(503, f"{MOST} streams are open, and no more are served.")
        return _Counted(self, told, close)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """One more is open, for the length of a `with` block."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def _log(self, error: Exception) -> None:
        LOG.warning("a stream waits: %s", self._state.redactor.text(str(error)))


class _Counted(EventSourceResponse):
    """A stream that counts from the moment in which there was room for it."""

    def __init__(
        self, streams: Streams, told: AsyncIterator[bytes], close: Callable[[], None]
    ) -> None:
        # Its own watch for the server's end would cut off what ends by itself.
        super().__init__(told, ping=PING, shutdown_grace_period=ENDING)
        self._streams = streams
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._streams.counted():
                await super().__call__(scope, receive, send)
        finally:
            self._close()


def _cursor(request: Request) -> str | None:
    """Where to go on: a browser that lost the connection knows better than its address."""
    return request.headers.get("last-event-id") or request.query_params.get("cursor") or None


def _atom(event: watcher.Event) -> dict[str, Any]:
    return {
        "uuid": event.uuid,
        "name": event.name,
        "state": event.state,
        "icon": styles.icon(event.state),
        "executions": event.executions,
        "worker": event.worker,
        "progress": event.progress,
    }


def _each(source: _Flow, turn: feeds.Turn[_Events]) -> bytes:
    """The last one alone is where to go on: what came at once is told again, or not at all."""
    last = len(turn.found)
    return b"".join(
        _event(event.to_dict(), turn.cursor if number == last else None, event.kind)
        for number, event in enumerate(turn.found, 1)
    )


def _rows(request: Request, source: _Listing, turn: feeds.Turn[_Pages]) -> bytes:
    """The rows that changed, as they are shown now, and their order where that did, too."""
    before, page = turn.found
    if before is None or not (before.flows and page.flows):
        return _changed(source, turn)
    known = {row.uuid: row for row in before.flows}
    words: dict[str, Any] = {"href": functools.partial(urls.href, request)}
    told: dict[str, Any] = {"atoms": [], "changed": False}
    told["rows"] = {
        row.uuid: rendering.render("_row.html", {**words, "row": row})
        for row in page.flows
        if known.get(row.uuid) != row
    }
    order = [row.uuid for row in page.flows]
    if order != list(known):
        told["order"] = order
    if page.after != before.after:
        wanted = listings.Wanted.of(request.query_params)
        told["foot"] = rendering.render("_foot.html", {**words, "page": page, "wanted": wanted})
    return _event(told, turn.cursor)


def _changed(source: Any, turn: feeds.Turn[Any]) -> bytes:
    return _event({"atoms": [], "changed": True}, turn.cursor)


def _event(told: Any, id: str | None, kind: str = "turn") -> bytes:
    data = json.dumps(told, separators=(",", ":"))
    return ServerSentEvent(data=data, event=kind, id=id).encode()


def doing(worker: fleet.WorkerView) -> list[Any]:
    """What a list tells of a worker that does not change with each sign of life."""
    return [worker.name, worker.state, [work.request for work in worker.current]]
