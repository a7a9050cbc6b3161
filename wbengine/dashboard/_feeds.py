"""Sources of changes, each polled once for all of its listeners."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from wbengine import exceptions

__all__ = ["FAILURES", "Feed", "Feeds", "Listener", "Source", "Update", "pause"]

LOG: Final = logging.getLogger(__name__)

#: Exceptions that may be temporary.
FAILURES: Final = (exceptions.StorageFailure, exceptions.TransportFailure)

#: Delay until a source that failed is polled again.
RETRY_SECONDS: Final = 3.0
#: Maximum interval between two polls of a source whose mark does not change.
IDLE_POLL_SECONDS: Final = 5.0
#: Inverse of the maximum fraction of time for polls.
_POLL_SHARE: Final = 3
_MAX_PAUSE_SECONDS: Final = 2.0
#: Maximum delay until the end of the server is detected.
_CLOSING_CHECK_SECONDS: Final = 0.2
#: Maximum number of updates that wait for a slow listener.
_MAX_QUEUED: Final = 32
#: Maximum number of updates that are stored for new listeners with the same cursor.
_MAX_BACKLOG: Final = 16
#: Maximum number of cursors with such updates.
_MAX_BACKLOGS: Final = 16
#: Maximum number of sources that are read at a time, to leave threads and CPU time for pages.
_MAX_READERS: Final = 4

_T = TypeVar("_T")


class Source(abc.ABC, Generic[_T]):
    """A source of changes that is polled for all of its listeners.

    The methods block. They are called from any thread, one call at a time.
    """

    #: The position after the latest poll, from which another source of this kind can continue.
    cursor: str | None
    #: Time (`time.monotonic`) from which a poll may return changes although no mark changed.
    due = math.inf

    @abc.abstractmethod
    def poll(self) -> _T | None:
        """Return the changes since the previous poll, or None."""

    @abc.abstractmethod
    def join(self, cursor: str | None) -> tuple[_T | None, _T | None]:
        """Poll. Return the changes since the previous poll, and those since `cursor`."""

    def close(self) -> None:
        """Release resources. Idempotent."""


class Update(Generic[_T]):
    """The result of one poll. Its text is rendered once for each variant.

    `is_first`: whether it is the first update of a listener.
    """

    def __init__(self, content: _T, source: Source[_T], *, is_first: bool = False) -> None:
        self.content = content
        self.source = source
        self.cursor = source.cursor
        self.is_first = is_first
        self._texts: dict[Hashable, Any] = {}
        self._lock = asyncio.Lock()

    async def text(self, variant: Hashable, render: Callable[[Update[_T]], Any]) -> Any:
        """Return the text; `render` runs in a thread, once for each `variant`."""
        async with self._lock:
            if variant not in self._texts:
                self._texts[variant] = await run_in_threadpool(render, self)
            return self._texts[variant]


class Listener(Generic[_T]):
    """Iterator over the updates of a feed, in order.

    It ends with the feed, or when too many updates wait. The client then reconnects with its
    cursor.
    """

    def __init__(self, feed: Feed[_T], updates: Iterable[Update[_T]]) -> None:
        self.feed = feed
        self._queue: asyncio.Queue[Update[_T] | None] = asyncio.Queue()
        for update in updates:
            self.put(update)

    def put(self, update: Update[_T] | None) -> None:
        """Add an update; None ends the iteration."""
        if (waiting := self._queue.qsize()) <= _MAX_QUEUED:
            self._queue.put_nowait(update if waiting < _MAX_QUEUED else None)

    async def __aiter__(self) -> AsyncIterator[Update[_T]]:
        while (update := await self._queue.get()) is not None:
            yield update


class Feed(Generic[_T]):
    """A source and its listeners. Used in the event loop; the source is used in threads."""

    def __init__(self, key: Hashable, begin: Callable[[], Source[_T]]) -> None:
        self.key = key
        self._begin = begin
        self._source: Source[_T] | None = None
        #: Held while the source is used.
        self.lock = asyncio.Lock()
        self.listeners: set[Listener[_T]] = set()
        # For each cursor of a listener, all updates since. Further listeners with that cursor
        # need no poll.
        self._backlogs: OrderedDict[str | None, list[Update[_T]]] = OrderedDict()
        #: Time of the next permitted poll, time of the last poll, and the mark at that time.
        self.due = 0.0
        self.polled = time.monotonic()
        self.mark: str | None = ""
        self.ended = False

    def is_due(self, now: float) -> bool:
        """Return whether to poll although the mark has not changed."""
        if self.polled + IDLE_POLL_SECONDS <= now:
            return True
        return self._source is not None and self._source.due <= now

    async def poll(self) -> None:
        """Poll once, and pass the result to the listeners. The caller holds the lock.

        :raises Exception: see `Feeds.join`.
        """
        self.polled = time.monotonic()
        if self._source is not None:
            self._publish(await run_in_threadpool(self._source.poll))

    def has_backlog(self, cursor: str | None) -> bool:
        """Return whether `admit` needs no poll for a listener with this cursor."""
        return cursor in self._backlogs

    async def admit(self, cursor: str | None) -> Listener[_T]:
        """Return a new listener, which receives all updates since `cursor`.

        The caller holds the lock.

        :raises Exception: see `poll`.
        """
        if cursor not in self._backlogs:
            new_content, missed = await run_in_threadpool(self._join, cursor)
            self._publish(new_content)
            self._backlogs[cursor] = []
            if missed is not None:
                assert self._source is not None
                self._backlogs[cursor] = [Update(missed, self._source, is_first=True)]
            if len(self._backlogs) > _MAX_BACKLOGS:
                self._backlogs.popitem(last=False)
        listener = Listener(self, self._backlogs[cursor])
        if self.ended:  # The server ends.
            listener.put(None)
        self.listeners.add(listener)
        return listener

    def _join(self, cursor: str | None) -> tuple[_T | None, _T | None]:
        if self._source is not None:
            return self._source.join(cursor)
        self._source = self._begin()
        return None, self._source.poll()

    def _publish(self, content: _T | None) -> None:
        if content is None:
            return
        assert self._source is not None
        update = Update(content, self._source)
        for listener in self.listeners:
            listener.put(update)
        for cursor, updates in list(self._backlogs.items()):
            updates.append(update)
            if len(updates) > _MAX_BACKLOG:
                del self._backlogs[cursor]

    def end(self) -> None:
        """End all listeners, and close the source."""
        self.ended = True
        for listener in self.listeners:
            listener.put(None)
        self.close()

    def close(self) -> None:
        """Close the source of an ended feed, unless it is in use: then its user calls this."""
        if self.ended and self._source is not None and not self.lock.locked():
            self._source.close()
            self._source = None


class Feeds(Generic[_T]):
    """Feeds of one kind, polled together while they have listeners.

    `marks` returns a mark for each of many keys, in one call. The mark changes when a poll would
    return an update.
    """

    def __init__(
        self,
        seconds: float,
        closing: threading.Event,
        on_failure: Callable[[Exception], None],
        marks: Callable[[Collection[Any]], Mapping[Any, str]] | None = None,
    ) -> None:
        self._seconds = seconds
        self._closing = closing
        self._on_failure = on_failure
        self._marks = marks
        self._feeds: dict[Hashable, Feed[_T]] = {}
        self._readers = asyncio.Semaphore(_MAX_READERS)
        self._task: asyncio.Task[None] | None = None

    async def join(
        self, key: Hashable, cursor: str | None, begin: Callable[[], Source[_T]]
    ) -> Listener[_T]:
        """Return a new listener of the feed of `key`, which receives all updates since `cursor`.

        Listeners of a key share its source. The first listener opens the source with `begin`, in a
        thread.

        :raises NotFound: if the subject does not exist.
        :raises StorageFailure: if the store cannot be read.
        :raises TransportFailure: if the broker cannot be reached.
        """
        # If the caller is cancelled, the poll continues: other listeners need its result.
        admission = asyncio.create_task(self._admit(key, cursor, begin))
        try:
            return await asyncio.shield(admission)
        except asyncio.CancelledError:
            admission.add_done_callback(self._remove_admitted)
            raise

    async def _admit(
        self, key: Hashable, cursor: str | None, begin: Callable[[], Source[_T]]
    ) -> Listener[_T]:
        listener = None
        while listener is None:
            feed = self._feeds.get(key)
            if feed is None:
                feed = self._feeds[key] = Feed(key, begin)
            async with contextlib.AsyncExitStack() as reading:
                if not feed.has_backlog(cursor):
                    await reading.enter_async_context(self._readers)
                reading.callback(self._release, feed)
                async with feed.lock:
                    # An ended feed lost its last listener during the wait for the lock.
                    if not feed.ended:
                        listener = await feed.admit(cursor)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return listener

    def _remove_admitted(self, admission: asyncio.Task[Listener[_T]]) -> None:
        if not admission.cancelled() and admission.exception() is None:
            self.leave(admission.result())

    def leave(self, listener: Listener[_T]) -> None:
        listener.feed.listeners.discard(listener)
        self._release(listener.feed)

    def _release(self, feed: Feed[_T]) -> None:
        """Remove a feed without listeners, unless it is in use."""
        if not feed.listeners and not feed.lock.locked():
            self._remove(feed)
        feed.close()

    def _remove(self, feed: Feed[_T]) -> None:
        if self._feeds.get(feed.key) is feed:
            del self._feeds[feed.key]
        feed.end()

    async def _run(self) -> None:
        try:
            while self._feeds and not self._closing.is_set():
                began = time.monotonic()
                delay = await self._poll_all(began)
                took = time.monotonic() - began
                delay = max(delay, min(_MAX_PAUSE_SECONDS, (_POLL_SHARE - 1) * took))
                await pause(delay, self._closing)
        finally:
            if self._closing.is_set():
                for feed in list(self._feeds.values()):
                    self._remove(feed)

    async def _poll_all(self, now: float) -> float:
        """Poll the feeds that may have changed. Return the delay until the next iteration."""
        # Skip locked feeds: they are being polled for a new listener.
        free = (feed for feed in self._feeds.values() if not feed.lock.locked())
        feeds, marks = [feed for feed in free if feed.due <= now], dict[Hashable, str]()
        if self._marks is not None and feeds:
            try:
                marks = dict(await run_in_threadpool(self._marks, {feed.key for feed in feeds}))
            except FAILURES as error:
                self._on_failure(error)
                return RETRY_SECONDS
            feeds = [
                feed for feed in feeds
                if marks.get(feed.key) != feed.mark or feed.is_due(now)
            ]  # fmt: skip
        await asyncio.gather(*(self._poll(feed, marks.get(feed.key)) for feed in feeds))
        return self._seconds

    async def _poll(self, feed: Feed[_T], mark: str | None) -> None:
        async with self._readers, feed.lock:
            if feed.ended:
                return
            try:
                await feed.poll()
                feed.mark = mark
            except exceptions.NotFound:
                self._remove(feed)
            except FAILURES as error:
                self._on_failure(error)
                feed.due = time.monotonic() + RETRY_SECONDS
            except Exception:
                LOG.exception("cannot poll feed %r", feed.key)
                self._remove(feed)
        self._release(feed)


async def pause(seconds: float, closing: threading.Event) -> None:
    end = time.monotonic() + seconds
    while not closing.is_set() and (remaining := end - time.monotonic()) > 0:
        await asyncio.sleep(min(remaining, _CLOSING_CHECK_SECONDS))
