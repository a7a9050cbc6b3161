"""What is kept of flows, read for pages: at the cost of what changed since the last page."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from wbengine.dashboard import cache
from wbengine.persistence import base as persistence
from wbengine.views import flow as flows
from wbengine.views import history, listing, logs, redaction, watcher

__all__ = ["Store"]

#: Views are kept at hand for so many flows, with so many atoms together.
FLOWS: Final = 32
ATOMS: Final = 250_000

#: Of a flow of more atoms a summary is shown until its view is made.
HUGE: Final = 5_000

_T = TypeVar("_T")


class Store:
    """Reads a store.  Thread-safe, and blocks: it is for threads, not for the event loop.

    The latest view of flows that somebody looks at is kept at hand, and is brought up to date by
    what changed; forgetting it would lose nothing but time.
    """

    def __init__(
        self,
        backend: persistence.Backend,
        redactor: redaction.Redactor,
        offered: cache.Offered = lambda: None,
    ) -> None:
        self.backend = backend
        self._redactor = redactor
        self._offered = offered
        self._lock = threading.Lock()
        self._known: OrderedDict[str, cache.ViewCache] = OrderedDict()

    def reading(self, read: Callable[[persistence.Connection], _T]) -> _T:
        """What `read` finds, with a connection of its own."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            return read(connection)

    def check(self) -> None:
        """:raises StorageFailure: it cannot be reached, or not be read."""
        self.reading(lambda connection: listing.page(connection, limit=1, redactor=self._redactor))

    def flow(self, uuid: str) -> flows.FlowView:
        """A flow as it is now.

        :raises NotFound: it is not kept.
        """
        return self._asked(uuid, cache.ViewCache.fresh)

    def latest(self, uuid: str) -> cache.Latest | listing.FlowSummary:
        """A flow as it is now; a huge one as it was a moment ago, or a summary of it until it
        was read.  What is newer is begun to be read.

        :raises NotFound: it is not kept.
        """
        return self._asked(uuid, lambda kept: self._latest(uuid, kept))

    def _latest(self, uuid: str, kept: cache.ViewCache) -> cache.Latest | listing.FlowSummary:
        if kept.is_made:
            return kept.latest()
        if self.reading(lambda each: listing.size(each, uuid)) <= HUGE:
            return cache.Latest(kept.fresh())
        kept.begin()
        return self.reading(lambda each: listing.summary(each, uuid, self._redactor))

    def cursor(self, uuid: str) -> str:
        """Where a watch goes on from what is kept now; `events` has all until then.

        :raises NotFound: it is not kept.
        """
        return self._asked(uuid, cache.ViewCache.look)[1]

    def redactor(self, uuid: str) -> redaction.Redactor:
        """What knows the secrets of a flow, as it is now.

        :raises NotFound: it is not kept.
        """
        return self._asked(uuid, cache.ViewCache.look)[0]

    def events(
        self, uuid: str, limit: int, after: str | None = None, *, latest_first: bool = False
    ) -> history.EventPage:
        """A page of what has happened to a flow so far, as `history.page`.

        :raises NotFound: it is not kept.
        """
        return self._asked(uuid, lambda kept: kept.events(limit, after, latest_first))

    def returned(self, uuid: str, atom: str) -> Any:
        """What an atom of a flow returned, as far as it may be shown; None also if nothing did.

        :raises NotFound: the flow, or the atom, is not kept.
        """
        record = self.reading(lambda each: each.get_atom_details(atom))
        return self.redactor(uuid).value(record.last_results, record.name)

    def task_logs(self, uuid: str, task_uuid: str, name: str, limit: int) -> list[logs.LogLine]:
        """The latest lines of one task of a flow.

        :raises NotFound: the flow is not kept.
        """
        redactor = self.redactor(uuid)
        return self.reading(
            lambda each: logs.of_task(each, uuid, task_uuid, name, redactor=redactor, limit=limit)
        )

    def logs(self, uuid: str, task: str | None, limit: int) -> list[logs.LogLine]:
        """The latest lines that the tasks of a flow logged, or one of them.

        :raises NotFound: the flow is not kept, or has no such task.
        """
        return self.reading(
            lambda each: logs.read(each, uuid, task, redactor=self._redactor, limit=limit)
        )

    def watch(self, uuid: str, cursor: str | None = None) -> watcher.FlowWatcher:
        """What happens to a flow, from a moment on.

        :raises NotFound: it is not kept.
        """
        redactor = self._redactor
        if cursor is not None:  # who sees a part only must know the secrets of the whole
            redactor = self.redactor(uuid)
        return watcher.FlowWatcher(
            self.backend, uuid, redactor=redactor, cursor=cursor, knows_secrets=cursor is not None
        )

    def _asked(self, uuid: str, ask: Callable[[cache.ViewCache], _T]) -> _T:
        with self._lock:
            kept = self._known.get(uuid)
            if kept is None:
                connection = self.backend.get_connection()
                found = flows.FlowRecords(connection, uuid, self._redactor)
                kept = self._known[uuid] = cache.ViewCache(found, self._offered)
            self._known.move_to_end(uuid)
        try:
            answer = ask(kept)
        except ValueError:  # what was asked makes no sense
            raise
        except BaseException:
            self._forget(uuid)
            raise
        self._make_room()
        return answer

    def close(self) -> None:
        """Forget what is at hand."""
        for uuid in list(self._known):
            self._forget(uuid)

    def _forget(self, uuid: str) -> None:
        with self._lock:
            kept = self._known.pop(uuid, None)
        if kept is not None:
            kept.close()

    def _make_room(self) -> None:
        with self._lock:
            sizes = {uuid: kept.size for uuid, kept in self._known.items()}
        while len(sizes) > 1 and (len(sizes) > FLOWS or sum(sizes.values()) > ATOMS):
            oldest = next(iter(sizes))
            del sizes[oldest]
            self._forget(oldest)
