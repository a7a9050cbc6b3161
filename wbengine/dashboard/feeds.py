"""What changes, looked at once for all who listen."""

from __future__ import annotations

import abc
import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from wbengine import exceptions

__all__ = ["FAILURES", "Feed", "Feeds", "Listener", "Source", "Turn", "rest"]

LOG: Final = logging.getLogger(__name__)

#: What may be over when it is tried again.
FAILURES: Final = (exceptions.StorageFailure, exceptions.TransportFailure)

#: Seconds until a store or a broker that failed is asked again.
AGAIN: Final = 3.0
#: Seconds after which a source is looked at although nothing of it is known to have changed.
TICK: Final = 5.0
#: Looks take one part in so many of the time, unless they take very long: then these seconds lie
#: between them.
_SHARE: Final = 3
_LONGEST: Final = 2.0
#: Seconds in which the end of the server is noticed.
_NAP: Final = 0.2
#: Turns that are kept for a slow reader.
_TURNS: Final = 32
#: Looks of a newcomer who wants to listen to what others listen to already.
_TRIES: Final = 20

_T = TypeVar("_T")


class Source(abc.ABC, Generic[_T]):
    """What can be looked at again and again."""

    #: Where another source of the kind goes on after the latest turn.
    cursor: str | None
    #: When (`time.monotonic`) it has something to say although nothing may have changed.
    due = math.inf

    @abc.abstractmethod
    def turn(self) -> _T | None:
        """What is new since the turn before; None: nothing.  Blocks."""

    def close(self) -> None:
        """Idempotent."""


class Turn(Generic[_T]):
    """What was new at one look, and how that is told: made once for all who are told alike."""

    def __init__(self, found: _T, source: Source[_T]) -> None:
        self.found = found
        self.source = source
        self.cursor = source.cursor
        self._texts: dict[Hashable, Any] = {}
        self._lock = asyncio.Lock()

    async def text(self, alike: Hashable, tell: Callable[[Turn[_T]], Any]) -> Any:
        async with self._lock:
            if alike not in self._texts:
                self._texts[alike] = await run_in_threadpool(tell, self)
            return self._texts[alike]


class Listener(Generic[_T]):
    """Hears turns, one after the other; who is too far behind hears no more of them, and goes on
    from a cursor.
    """

    def __init__(self) -> None:
        self.feed: Feed[_T] | None = None
        self._turns: asyncio.Queue[Turn[_T] | None] = asyncio.Queue()

    def hear(self, turn: Turn[_T] | None) -> None:
        """One more; None: there will be no other one."""
        if (behind := self._turns.qsize()) <= _TURNS:
            self._turns.put_nowait(turn if behind < _TURNS else None)

    async def __aiter__(self) -> AsyncIterator[Turn[_T]]:
        while (turn := await self._turns.get()) is not None:
            yield turn


class Feed(Generic[_T]):
    """A source and those who listen to it.  Lives in the event loop; only looks are in threads."""

    def __init__(self, key: Hashable, source: Source[_T]) -> None:
        self.key = key
        self.source = source
        #: Around whatever uses the source.
        self.lock = asyncio.Lock()
        self.listeners: set[Listener[_T]] = set()
        #: When it may be looked at again, and when it was; what it was marked by then.
        self.due = 0.0
        self.looked = time.monotonic()
        self.mark: str | None = ""
        self.ended = False

    async def look(self) -> bool:
        """One turn; whether there was anything new.  To be called under the lock.

        :raises NotFound: there is no such thing any more.
        :raises StorageFailure: it could not be read, nor (TransportFailure) be asked.
        """
        self.looked = time.monotonic()
        found = await run_in_threadpool(self.source.turn)
        if found is None:
            return False
        turn = Turn(found, self.source)
        for listener in self.listeners:
            listener.hear(turn)
        return True

    def end(self) -> None:
        """Nothing will be told any more."""
        self.ended = True
        for listener in self.listeners:
            listener.hear(None)
        self.close()

    def close(self) -> None:
        """Give back what an ended source holds, unless it is being looked at: then after that."""
        if self.ended and not self.lock.locked():
            self.source.close()


class Feeds(Generic[_T]):
    """Feeds of one kind, looked at together while somebody listens.

    `marks` tells, at once for many keys, by what to see whether it is worth a look.
    """

    def __init__(
        self,
        seconds: float,
        closing: threading.Event,
        say: Callable[[Exception], None],
        marks: Callable[[Collection[Any]], Mapping[Any, str]] | None = None,
    ) -> None:
        self._seconds = seconds
        self._closing = closing
        self._say = say
        self._marks = marks
        self._all: set[Feed[_T]] = set()
        #: Those that newcomers listen to as well.
        self._shared: dict[Hashable, Feed[_T]] = {}
        self._task: asyncio.Task[None] | None = None

    async def join(self, key: Hashable, source: Source[_T]) -> Listener[_T]:
        """Who listens from now on, and hears first what `source` says: it belongs to the feed, or
        is closed here.  If this fails, the caller closes it.
        """
        listener = Listener[_T]()
        await self._turn(source, listener)
        feed = self._shared.get(key)
        if feed is not None and await self._caught_up(feed, source, listener):
            source.close()
            return listener
        listener.feed = feed = Feed(key, source)
        feed.listeners.add(listener)
        self._all.add(feed)
        self._shared.setdefault(key, feed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return listener

    async def _caught_up(self, feed: Feed[_T], source: Source[_T], listener: Listener[_T]) -> bool:
        """Whether one has seen by its own `source` what the feed has, and listens to that now; not
        if too much happens.

        It has when the feed finds nothing that came between its look before and one that follows.
        """
        try:
            async with feed.lock:
                for _ in range(_TRIES):
                    if feed.ended:
                        return False
                    await self._turn(source, listener)
                    # The last who listened may have left meanwhile: then nobody looks any more.
                    if not await feed.look() and not feed.ended:
                        listener.feed = feed
                        feed.listeners.add(listener)
                        return True
            return False
        finally:
            feed.close()

    @staticmethod
    async def _turn(source: Source[_T], listener: Listener[_T]) -> None:
        found = await run_in_threadpool(source.turn)
        if found is not None:
            listener.hear(Turn(found, source))

    def leave(self, listener: Listener[_T]) -> None:
        """One listens no more."""
        feed = listener.feed
        if feed is not None:
            feed.listeners.discard(listener)
            if not feed.listeners:
                self._forget(feed)

    def _forget(self, feed: Feed[_T]) -> None:
        self._all.discard(feed)
        if self._shared.get(feed.key) is feed:
            del self._shared[feed.key]
        feed.end()

    async def _run(self) -> None:
        try:
            while self._all and not self._closing.is_set():
                began = time.monotonic()
                again = await self._round(began)
                took = time.monotonic() - began
                await rest(max(again, min(_LONGEST, (_SHARE - 1) * took)), self._closing)
        finally:
            if self._closing.is_set():
                for feed in list(self._all):
                    self._forget(feed)

    async def _round(self, now: float) -> float:
        """Look where something may have changed; seconds until the next time."""
        feeds, marks = [each for each in self._all if each.due <= now], dict[Hashable, str]()
        if self._marks is not None and feeds:
            try:
                marks = dict(await run_in_threadpool(self._marks, {each.key for each in feeds}))
            except FAILURES as error:
                self._say(error)
                return AGAIN
            feeds = [
                each for each in feeds
                if marks.get(each.key) != each.mark
                or each.looked + TICK <= now or each.source.due <= now
            ]  # fmt: skip
        await asyncio.gather(*(self._look(each, marks.get(each.key)) for each in feeds))
        return self._seconds

    async def _look(self, feed: Feed[_T], mark: str | None) -> None:
        async with feed.lock:
            if feed.ended:
                return
            try:
                await feed.look()
                feed.mark = mark
            except exceptions.NotFound:
                self._forget(feed)
            except FAILURES as error:
                self._say(error)
                feed.due = time.monotonic() + AGAIN
            except Exception:
                LOG.exception("%r cannot be looked at", feed.key)
                self._forget(feed)
        feed.close()


async def rest(seconds: float, closing: threading.Event) -> None:
    """Do nothing for so long, or until the server is about to end."""
    end = time.monotonic() + seconds
    while not closing.is_set() and (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _NAP))
