"""What changes, told as it happens: server-sent events, which go on where they broke off."""

from __future__ import annotations

import contextlib
import functools
import hashlib
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


def digest(shown: Any) -> str:
    """A mark of what a list shows: it changes when that does."""
    text = json.dumps(shown, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Flow(feeds.Source[_Events]):
    """What happens to a flow; now and then, that nothing does."""

    def __init__(self, watch: watcher.FlowWatcher) -> None:
        self._watch = watch
        self.cursor = watch.cursor
        self.due = 0.0
        #: When its head was made last, and what it was.
        self.made = -math.inf
        self.head: Mapping[str, Any] | None = None

    def turn(self) -> _Events | None:
        events, now = self._watch.turn(), time.monotonic()
        self.cursor = self._watch.cursor
        if not events and now < self.due:
            return None
        self.due = now + feeds.TICK
        return events

    def close(self) -> None:
        self._watch.close()


class _Listing(feeds.Source[_Pages]):
    """A page of the list of flows."""

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


class _Workers(feeds.Source[bool]):
    """What workers do."""

    def __init__(self, read: Callable[[], list[fleet.WorkerView]], cursor: str | None) -> None:
        self._read = read
        self.cursor = cursor

    def turn(self) -> bool | None:
        before, self.cursor = self.cursor, digest([doing(worker) for worker in self._read()])
        return True if self.cursor != before else None


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
            wanted = listings.Wanted.of(request)
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
        self, request: Request, alike: Any, tell: Callable[[feeds.Turn[_Events]], bytes]
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
        tell: Callable[[feeds.Turn[Any]], bytes],
    ) -> Response:
        """`tell` says what a turn brought; those who are `alike` are told the same."""
        with contextlib.ExitStack() as failed:
            failed.callback(source.close)
            with http_errors.refused():
                listener = await kind.join(key, source)
            failed.pop_all()

        async def messages() -> AsyncIterator[bytes]:
            async for turn in listener:
                if text := await turn.text(alike, tell):
                    yield text

        return self._answer(messages(), lambda: kind.leave(listener))

    def _marks(self, uuids: Iterable[str]) -> Mapping[str, str]:
        return self._state.store.reading(lambda each: each.marks(list(uuids)))

    def _turn(self, request: Request, turn: feeds.Turn[_Events]) -> bytes:
        assert isinstance(turn.source, _Flow)
        events, head = turn.found, self._head(request, turn.source)
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
        return _event(content, turn.cursor)

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

    def _answer(self, messages: AsyncIterator[bytes], close: Callable[[], None]) -> Response:
        """`close` is called in any case, also when nobody wants to hear what is told."""
        if self._open >= MOST:
            close()
            raise HTTPException(503, f"{MOST} streams are open, and no more are served.")
        return _Counted(messages, self._counted(close))

    @contextlib.contextmanager
    def _counted(self, close: Callable[[], None]) -> Iterator[None]:
        """One more is open, for the length of a `with` block."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            close()

    def _log(self, error: Exception) -> None:
        LOG.warning("a stream waits: %s", self._state.redactor.text(str(error)))


class _Counted(EventSourceResponse):
    """A stream that is served inside of a `with` block."""

    def __init__(
        self, messages: AsyncIterator[bytes], around: contextlib.AbstractContextManager[None]
    ) -> None:
        # Its own watch for the server's end would cut off what ends by itself.
        super().__init__(messages, ping=PING, shutdown_grace_period=ENDING)
        self._around = around

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._around:
            await super().__call__(scope, receive, send)


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


def _each(turn: feeds.Turn[_Events]) -> bytes:
    """The last one alone is where to go on: what came at once is told again, or not at all."""
    last = len(turn.found)
    return b"".join(
        _event(event.to_dict(), turn.cursor if number == last else None, event.kind)
        for number, event in enumerate(turn.found, 1)
    )


def _rows(request: Request, turn: feeds.Turn[_Pages]) -> bytes:
    """The rows that changed, as they are shown now, and their order where that did, too."""
    before, page = turn.found
    if before is None or not (before.flows and page.flows):
        return _changed(turn)
    known = {row.uuid: row for row in before.flows}
    words: dict[str, Any] = {"href": functools.partial(urls.href, request)}
    content: dict[str, Any] = {"atoms": [], "changed": False}
    content["rows"] = {
        row.uuid: rendering.render("_row.html", {**words, "row": row})
        for row in page.flows
        if known.get(row.uuid) != row
    }
    order = [row.uuid for row in page.flows]
    if order != list(known):
        content["order"] = order
    if page.after != before.after:
        wanted = listings.Wanted.of(request)
        content["foot"] = rendering.render("_foot.html", {**words, "page": page, "wanted": wanted})
    return _event(content, turn.cursor)


def _changed(turn: feeds.Turn[Any]) -> bytes:
    return _event({"atoms": [], "changed": True}, turn.cursor)


def _event(content: Any, id: str | None, kind: str = "turn") -> bytes:
    data = json.dumps(content, separators=(",", ":"))
    return ServerSentEvent(data=data, event=kind, id=id).encode()


def doing(worker: fleet.WorkerView) -> list[Any]:
    """What a list tells of a worker that does not change with each sign of life."""
    return [worker.name, worker.state, [work.request for work in worker.current]]
