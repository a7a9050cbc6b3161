"""What changes, told as it happens: server-sent events, which go on where they broke off."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from wbengine import exceptions, states
from wbengine.dashboard import http_errors, listings
from wbengine.dashboard.app_state import AppState
from wbengine.drawing import styles
from wbengine.views import fleet, watcher

__all__ = ["Streams", "digest", "doing"]

LOG: Final = logging.getLogger(__name__)

#: Seconds between two looks at a flow, and at a list.
TURN: Final = 0.4
SLOW: Final = 1.0
#: Seconds until a store or a broker that failed is asked again.
AGAIN: Final = 3.0
#: Seconds in which a stream notices that the server ends.
_NAP: Final = 0.2
#: So many browsers (and scripts) are told at a time.
MOST: Final = 200
#: Seconds after which a connection that has nothing to say says that it lives.
PING: Final = 15
#: Seconds that a stream has to end by itself when the server ends; less than the server has.
ENDING: Final = 1.5

_FAILURES: Final = (exceptions.StorageFailure, exceptions.TransportFailure)
_ENDED: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})


def digest(told: Any) -> str:
    """A mark of what a list shows: it changes when that does."""
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _nothing() -> None:
    return None


class Streams:
    """Streams of changes.  Each looks for itself, in threads; nobody waits for a slow reader."""

    def __init__(self, app_state: AppState) -> None:
        self._state = app_state
        self._open = 0

    def routes(self) -> list[Route]:
        return [
            Route("/flows/{uuid:uuid}/stream", self.flow),
            Route("/api/v1/flows/{uuid:uuid}/events/stream", self.events),
            Route("/stream/flows", self.flows),
            Route("/stream/workers", self.workers),
        ]

    async def flow(self, request: Request) -> Response:
        """Turns of one flow, for its page: atoms that changed, and whether it has ended."""
        return await self._of_flow(request, lambda events, cursor: [_turn(events, cursor)])

    async def events(self, request: Request) -> Response:
        """The events of one flow, each as `flow watch --json` tells it."""
        return await self._of_flow(request, _each)

    async def flows(self, request: Request) -> Response:
        """That the list of flows has changed."""
        with http_errors.refused():
            wanted = listings.Wanted.of(request.query_params)
        app_state = self._state

        def look() -> Any:
            page = app_state.store.reading(lambda each: wanted.read(each, app_state.redactor))
            return [row.to_dict() for row in page.flows]

        return self._answer(self._changes(request, look))

    async def workers(self, request: Request) -> Response:
        """That workers came, went, or do something else."""
        monitor = self._state.monitor
        return self._answer(self._changes(request, lambda: [doing(w) for w in monitor.workers()]))

    async def _of_flow(
        self,
        request: Request,
        tell: Callable[[list[watcher.Event], str | None], Iterable[ServerSentEvent]],
    ) -> Response:
        uuid, cursor = str(request.path_params["uuid"]), _cursor(request)
        with http_errors.refused():
            watch, first = await run_in_threadpool(self._begin, uuid, cursor)
        return self._answer(self._turns(watch, first, tell), watch.close)

    def _begin(
        self, uuid: str, cursor: str | None
    ) -> tuple[watcher.FlowWatcher, list[watcher.Event]]:
        watch = self._state.store.watch(uuid, cursor)
        try:
            return watch, watch.turn()
        except BaseException:
            watch.close()
            raise

    async def _turns(
        self,
        watch: watcher.FlowWatcher,
        events: list[watcher.Event],
        tell: Callable[[list[watcher.Event], str | None], Iterable[ServerSentEvent]],
    ) -> AsyncIterator[ServerSentEvent]:
        while not self._state.closing.is_set():
            if events:
                for told in tell(events, watch.cursor):
                    yield told
            await self._rest(TURN)
            try:
                events = await run_in_threadpool(watch.turn)
            except exceptions.NotFound:  # destroyed since
                return
            except exceptions.StorageFailure as error:
                self._log(error)
                events = []
                await self._rest(AGAIN)

    async def _changes(
        self, request: Request, look: Callable[[], Any]
    ) -> AsyncIterator[ServerSentEvent]:
        known = _cursor(request)
        while not self._state.closing.is_set():
            try:
                seen = digest(await run_in_threadpool(look))
            except (*_FAILURES, exceptions.NotFound) as error:
                self._log(error)
                await self._rest(AGAIN)
                continue
            if seen != known:
                known = seen
                yield _event({"atoms": [], "changed": True}, seen)
            await self._rest(SLOW)

    def _answer(
        self, told: AsyncIterator[ServerSentEvent], close: Callable[[], None] = _nothing
    ) -> Response:
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

    async def _rest(self, seconds: float) -> None:
        """Do nothing for so long, or until the server is about to end."""
        end = time.monotonic() + seconds
        while not self._state.closing.is_set() and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _NAP))

    def _log(self, error: Exception) -> None:
        LOG.warning("a stream waits: %s", self._state.redactor.text(str(error)))


class _Counted(EventSourceResponse):
    """A stream that counts from the moment in which there was room for it."""

    def __init__(
        self, streams: Streams, told: AsyncIterator[ServerSentEvent], close: Callable[[], None]
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


def _turn(events: list[watcher.Event], cursor: str | None) -> ServerSentEvent:
    latest = {event.uuid: event for event in events if event.kind == "atom"}
    flow = [event.state for event in events if event.kind == "flow"]
    told = {
        "atoms": [_atom(event) for event in latest.values()],
        "changed": True,
        "state": flow[-1] if flow else None,
        "ended": bool(flow) and flow[-1] in _ENDED,
    }
    return _event(told, cursor)


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


def _each(events: list[watcher.Event], cursor: str | None) -> Iterable[ServerSentEvent]:
    """The last one alone is where to go on: what came at once is told again, or not at all."""
    for number, event in enumerate(events, 1):
        yield _event(event.to_dict(), cursor if number == len(events) else None, event.kind)


def _event(told: Any, id: str | None, kind: str = "turn") -> ServerSentEvent:
    data = json.dumps(told, separators=(",", ":"))
    return ServerSentEvent(data=data, event=kind, id=id)


def doing(worker: fleet.WorkerView) -> list[Any]:
    """What a list tells of a worker that does not change with each sign of life."""
    return [worker.name, worker.state, [work.request for work in worker.current]]
