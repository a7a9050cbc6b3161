"""What changes, looked at once for all who listen."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool

from wbengine import exceptions

__all__ = ["FAILURES", "Feed", "Feeds", "Source", "Turn", "rest"]

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
#: Turns that are kept for slow readers, and what these may hold together.
_TURNS: Final = 64
_HELD: Final = 5_000
#: Looks of a newcomer who wants to listen to what others listen to already.
_TRIES: Final = 20

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Source(Protocol[_T_co]):
    """What can be looked at again and again."""

    @property
    def cursor(self) -> str | None:
        """Where another source of the kind goes on after the latest turn."""

    @property
    def due(self) -> float:
        """When (`time.monotonic`) it has something to say although nothing may have changed."""

    def turn(self) -> _T_co | None:
        """What is new since the turn before; None: nothing.  Blocks."""

    def weight(self, found: Any) -> int:
        """How much a turn holds."""

    def close(self) -> None:
        """Idempotent."""


class Turn(Generic[_T]):
    """What was new at one look, and how that is told: made once for all who are told alike."""

    def __init__(self, found: _T, cursor: str | None) -> None:
        self.found = found
        self.cursor = cursor
        self._told: dict[Hashable, Any] = {}
        self._lock = asyncio.Lock()

    async def told(self, alike: Hashable, tell: Callable[[Turn[_T]], Any]) -> Any:
        async with self._lock:
            if alike not in self._told:
                self._told[alike] = await run_in_threadpool(tell, self)
            return self._told[alike]


class Feed(Generic[_T]):
    """A source and those who listen to it.  Lives in the event loop; only looks are in threads."""

    def __init__(self, key: Hashable, source: Source[_T]) -> None:
        self.key = key
        self.source = source
        #: Around whatever uses the source.
        self.lock = asyncio.Lock()
        self.listeners = 0
        #: When it may be looked at again, and when it was; what it was marked by then.
        self.due = 0.0
        self.looked = time.monotonic()
        self.mark: str | None = ""
        #: How many turns there were.
        self.count = 0
        self.ended = False
        self._closed = False
        self._turns: deque[Turn[_T]] = deque(maxlen=_TURNS)
        self._news = asyncio.Event()

    async def look(self) -> None:
        """One turn.  To be called under the lock.

        :raises NotFound: there is no such thing any more.
        :raises StorageFailure: it could not be read, nor (TransportFailure) be asked.
        """
        self.looked = time.monotonic()
        found = await run_in_threadpool(self.source.turn)
        if found is not None and not self.ended:
            self._turns.append(Turn(found, self.source.cursor))
            self.count += 1
            while len(self._turns) > 1 and self._weight() > _HELD:
                self._turns.popleft()
            self._wake()

    def _weight(self) -> int:
        return sum(self.source.weight(turn.found) for turn in self._turns)

    async def after(self, number: int) -> Turn[_T] | None:
        """The turn of this number, as soon as there is one; None: there is none any more, or who
        asks is too far behind, and goes on from a cursor.
        """
        while number >= self.count and not self.ended:
            await self._news.wait()
        at = number - self.count
        return self._turns[at] if -len(self._turns) <= at < 0 else None

    def end(self) -> None:
        """Nothing will be told any more."""
        self.ended = True
        self._wake()
        self.close()

    def close(self) -> None:
        """Give back what an ended source holds, unless it is being looked at: then after that."""
        if self.ended and not self._closed and not self.lock.locked():
            self._closed = True
            self.source.close()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


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

    async def join(
        self, key: Hashable, source: Source[_T], first: _T | None
    ) -> tuple[Feed[_T], int, list[Turn[_T]]]:
        """What to listen to from now on, the number of the turn that comes next, and those before.

        `source` had its `first` turn, and is closed by the feed, or here.
        """
        turns = [] if first is None else [Turn(first, source.cursor)]
        feed = self._shared.get(key)
        if feed is not None:
            feed.listeners += 1
            try:
                number = await self._caught_up(feed, source, turns)
            except BaseException:
                self.leave(feed)
                source.close()
                raise
            if number is not None:
                source.close()
                return feed, number, turns
            self.leave(feed)
        feed = Feed(key, source)
        feed.listeners = 1
        self._all.add(feed)
        self._shared.setdefault(key, feed)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return feed, 0, turns

    @staticmethod
    async def _caught_up(feed: Feed[_T], source: Source[_T], turns: list[Turn[_T]]) -> int | None:
        """The number of the next turn once the source has seen what the feed has; None: too much
        happens.

        It has when the feed finds nothing that came between its look before and one that follows.
        """
        async with feed.lock:
            for _ in range(_TRIES):
                if feed.ended:
                    return None
                found = await run_in_threadpool(source.turn)
                if found is not None:
                    turns.append(Turn(found, source.cursor))
                before = feed.count
                await feed.look()
                if feed.count == before:
                    return before
        return None

    def leave(self, feed: Feed[_T]) -> None:
        """One listens no more."""
        feed.listeners -= 1
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
