"""Cached reads of flows. A read costs only the changes since the previous one."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine.dashboard import _cache
from wbengine.persistence import base as persistence
from wbengine.persistence._restricted import RestrictedBackend
from wbengine.types import codec
from wbengine.views import _event_history, _flow_list, _step_detail, redaction, watcher
from wbengine.views import _logs as logs
from wbengine.views import flow_status as flows
from wbengine.views._atoms import FailureView
from wbengine.views._logs import LogLine

__all__ = ["Store"]

MAX_CACHED_FLOWS: Final = 32
MAX_CACHED_ATOMS: Final = 250_000

#: Number of atoms above which a flow is shown as a summary until its first view is built.
SUMMARY_ATOMS: Final = 5_000

_T = TypeVar("_T")


class Store:
    """Cached reads of a store. Thread-safe. All methods block: call them in threads.

    The latest view of each displayed flow is cached and updated.
    """

    def __init__(
        self,
        backend: persistence.Backend,
        redactor: redaction.Redactor,
        offered: _cache.Offered = lambda: None,
    ) -> None:
        self.backend = self._whole = backend
        self._redactor = redactor
        self._offered = offered
        self._lock = threading.Lock()
        self._views: OrderedDict[str, _cache.ViewCache] = OrderedDict()

    def restricted(self, tags: Mapping[str, str], queues: tuple[str, ...] = ()) -> Store:
        """Return this store with only the flows that have all of these tags, in these queues.

        It shares the cached views. Its `backend` is restricted, too.
        """
        if not (tags or queues):
            return self
        store = copy.copy(self)
        store.backend = RestrictedBackend(self._whole, tags, queues)
        return store

    def read(self, read: Callable[[persistence.Connection], _T]) -> _T:
        with contextlib.closing(self.backend.get_connection()) as connection:
            return read(connection)

    def check(self) -> None:
        """Read one flow of the list.

        :raises StorageFailure: if the store cannot be reached or read.
        """
        self.read(lambda connection: _flow_list.page(connection, limit=1, redactor=self._redactor))

    def flow(self, uuid: str) -> flows.FlowView:
        """Return the current view of a flow.

        :raises NotFound: if the flow does not exist.
        """
        return self._read_view(uuid, _cache.ViewCache.current)

    def latest(self, uuid: str) -> _cache.Latest | _flow_list.FlowSummary:
        """Return the latest view of a flow without waiting for a costly one.

        The view of a large flow may be some seconds old. Before its first view is built, a summary
        is returned. A thread builds the current view.

        :raises NotFound: if the flow does not exist.
        """
        return self._read_view(uuid, lambda cached: self._latest(uuid, cached))

    def _latest(
        self, uuid: str, cached: _cache.ViewCache
    ) -> _cache.Latest | _flow_list.FlowSummary:
        if cached.is_built:
            return cached.latest()
        if self.read(lambda each: _flow_list.size(each, uuid)) <= SUMMARY_ATOMS:
            return _cache.Latest(cached.current())
        cached.start_build()
        return self.read(lambda each: _flow_list.summary(each, uuid, self._redactor))

    def cursor(self, uuid: str) -> str:
        """Return the cursor after the present records. `events` returns all events before it.

        :raises NotFound: if the flow does not exist.
        """
        return self._read_view(uuid, _cache.ViewCache.read_changes)[1]

    def redactor(self, uuid: str) -> redaction.Redactor:
        """Return a redactor with all secrets of the flow.

        :raises NotFound: if the flow does not exist.
        """
        return self._read_view(uuid, _cache.ViewCache.read_changes)[0]

    def events(
        self, uuid: str, limit: int, after: str | None = None, *, latest_first: bool = False
    ) -> _event_history.EventPage:
        """Return a page of the events of a flow, like `event_history.page`.

        :raises NotFound: if the flow does not exist.
        """
        return self._read_view(uuid, lambda cached: cached.events(limit, after, latest_first))

    def step(self, view: flows.FlowView, uuid: str) -> _step_detail.StepDetail | None:
        """Return a step of a workflow; None if the flow has no such step."""
        return self._read_view(view.uuid, lambda cached: cached.step(uuid, view))

    def returned(self, uuid: str, atom: str) -> Any:
        """Return the redacted result of an atom; None if it has none.

        :raises NotFound: if the flow or the atom does not exist.
        """
        record = self.read(lambda each: each.get_atom_details(atom))
        return self.redactor(uuid).value(record.last_results, record.name)

    def values(
        self, uuid: str, task: str | None, limit: int, after: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return the redacted results of tasks, in the order of the flow, and the last uuid.

        :param task: the name or uuid of one task.
        :param after: uuid of the last task of the previous page.
        :returns: the results, and the uuid with which the next page continues, or None.
        :raises NotFound: if the flow does not exist or has no such task.
        :raises ValueError: if `after` is not the uuid of a task.
        """
        view, redactor = self.flow(uuid), self.redactor(uuid)
        atoms = [atom for atom in view.atoms if task in (None, atom.name, atom.uuid)]
        if task is not None and not atoms:
            raise exceptions.NotFound(f"this flow has no task {task!r:.80}")
        if after is not None:
            places = [number for number, atom in enumerate(atoms) if atom.uuid == after]
            if not places:
                raise ValueError(f"after must be the uuid of a task of the flow, got {after!r:.80}")
            atoms = atoms[places[0] + 1 :]
        stored = [(atom.uuid, atom) for atom in atoms if atom.uuid is not None]

        def read(connection: persistence.Connection) -> list[dict[str, Any]]:
            with codec.unknown_classes_as_text():
                records = [connection.get_atom_details(each) for each, _ in stored[:limit]]
            return [
                {
                    "uuid": each,
                    "name": atom.name,
                    "state": atom.state,
                    "value": redactor.value(record.last_results, record.name),
                }
                for (each, atom), record in zip(stored, records, strict=False)
            ]

        return self.read(read), stored[limit - 1][0] if len(stored) > limit else None

    def logs(self, uuid: str, task: str | None, limit: int) -> list[LogLine]:
        """Return the latest log lines of a flow, or of one task or step.

        :param task: see `logs.sources_of`.
        :raises NotFound: if the flow does not exist or has no such task.
        """
        redactor = self.redactor(uuid)
        sources = self._read_view(uuid, lambda cached: cached.log_sources(task))
        return self.read(
            lambda each: logs.read_sources(each, uuid, sources, redactor=redactor, limit=limit)
        )

    def logs_of_failures(
        self, uuid: str, failures: Sequence[FailureView], limit: int
    ) -> list[list[LogLine]]:
        """Return for each failure the latest log lines of the attempt that failed.

        :raises NotFound: if the flow does not exist.
        """
        redactor = self.redactor(uuid)

        def read(connection: persistence.Connection, failure: FailureView) -> list[LogLine]:
            source = failure.step or failure.uuid
            if source is None:
                return []
            sources = logs.Sources({source: failure.step_name or failure.atom or ""}, {source})
            attempt = failure.step_attempt or failure.attempt
            return logs.read_sources(
                connection, uuid, sources, attempt, failure.item, redactor=redactor, limit=limit
            )

        return self.read(lambda connection: [read(connection, each) for each in failures])

    def watch(self, uuid: str, cursor: str | None = None) -> watcher.FlowWatcher:
        """Return a watcher that starts at `cursor`, or at the beginning.

        :raises NotFound: if the flow does not exist.
        """
        redactor = self._redactor
        # With a cursor, the watcher does not read all records, but needs all secrets.
        if cursor is not None:
            redactor = self.redactor(uuid)
        return watcher.FlowWatcher(
            self.backend, uuid, redactor=redactor, cursor=cursor, knows_secrets=cursor is not None
        )

    def _read_view(self, uuid: str, read: Callable[[_cache.ViewCache], _T]) -> _T:
        if self.backend is not self._whole:  # All visitors share the cache.
            self.read(lambda connection: connection.get_flow_details(uuid, lazy=True))
        with self._lock:
            cached = self._views.get(uuid)
            if cached is None:
                connection = self._whole.get_connection()
                records = flows.FlowRecords(connection, uuid, self._redactor)
                cached = self._views[uuid] = _cache.ViewCache(records, self._offered)
            self._views.move_to_end(uuid)
        try:
            result = read(cached)
        except ValueError:  # The arguments are wrong; the cache is intact.
            raise
        except BaseException:
            self._evict(uuid)
            raise
        self._evict_oldest()
        return result

    def close(self) -> None:
        for uuid in list(self._views):
            self._evict(uuid)

    def _evict(self, uuid: str) -> None:
        with self._lock:
            cached = self._views.pop(uuid, None)
        if cached is not None:
            cached.close()

    def _evict_oldest(self) -> None:
        with self._lock:
            sizes = {uuid: cached.size for uuid, cached in self._views.items()}
        while len(sizes) > 1 and (
            len(sizes) > MAX_CACHED_FLOWS or sum(sizes.values()) > MAX_CACHED_ATOMS
        ):
            oldest = next(iter(sizes))
            del sizes[oldest]
            self._evict(oldest)
