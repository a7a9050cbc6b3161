"""The cached view of one flow. Costly views are built in a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

from wbengine.persistence import models
from wbengine.views import _event_history, _logs, _step_detail, redaction
from wbengine.views import flow_status as flows
from wbengine.views.flow_status import FlowRecords, on_workers

__all__ = ["ViewCache", "Latest", "Offered"]

#: Build time in seconds above which a view is costly. `latest` does not wait for a costly view.
COSTLY_SECONDS: Final = 0.25
#: Minimum age of a costly view before it is built again, as a multiple of its build time.
REBUILD_FACTOR: Final = 3.0

#: Held while a costly view is built, so that processor and memory are used for one at a time.
_COSTLY_BUILD_LOCK: Final = threading.Lock()

#: Returns the names of the tasks that workers offer, or None if unknown. Must not block.
Offered = Callable[[], Collection[str] | None]

#: Records at a poll, for comparison. The cursor does not cover the flow's own row.
_RecordsState = tuple[str, int, dict[str, Any]]


class Latest(NamedTuple):
    """A view, and the seconds until a newer one is available (None: the view is up to date)."""

    view: flows.FlowView
    refresh_seconds: float | None = None


class ViewCache:
    """The view of one flow. Thread-safe; methods that block are marked."""

    def __init__(self, records: FlowRecords, offered: Offered) -> None:
        self._records = records
        self._offered = offered
        # Held while a view is built.
        self._build_lock = threading.Lock()
        # Held while the records are read or changed, but not while a view is built from them.
        self._lock = threading.Lock()
        self._is_building = False
        self._view: flows.FlowView | None = None
        # The records from which the view was built.
        self._built_from: _RecordsState | None = None
        self._cost = self._built_at = 0.0
        self._builder: threading.Thread | None = None
        self._build_error: Exception | None = None
        self._is_closed = False

    @property
    def size(self) -> int:
        """Number of records."""
        return 0 if self._records.detail is None else len(self._records.detail)

    @property
    def is_built(self) -> bool:
        return self._view is not None

    def current(self) -> flows.FlowView:
        """Return the current view. Blocks.

        :raises NotFound: if the flow was deleted.
        """
        try:
            with self._build_lock:
                return self._build()
        finally:
            if self._is_closed:
                self.close()

    def _build(self) -> flows.FlowView:
        began = time.monotonic()
        with self._lock:
            records_state, view = self._read_state(), self._view
            is_costly = self._cost > COSTLY_SECONDS
            if (
                view is not None
                and is_costly
                and records_state == self._built_from
                and self._seconds_until_rebuild(began) > 0
            ):
                return view  # Only durations have changed.
            self._is_building = True
        try:
            detail = self._records.detail
            offered = self._offered() if detail is not None and on_workers(detail) else None
            view = self._records.view(offered=offered)
            with self._lock:
                self._view, self._built_from = view, records_state
                self._built_at = time.monotonic()
                self._cost = self._built_at - began
            return view
        finally:
            self._is_building = False

    def _read_state(self) -> _RecordsState:
        changes = self._records.read_changes()
        return changes.cursor, changes.flow.epoch, changes.flow.to_dict()

    def latest(self) -> Latest:
        """Return the current view, or the previous one if a view of this flow is costly.

        The first call blocks until the view is built. Later calls of a costly view only read
        changes.

        :raises NotFound: if the flow was deleted.
        :raises Exception: see `start_build`.
        """
        with self._lock:
            view, cost = self._view, self._cost
            is_costly = view is not None and cost > COSTLY_SECONDS
            is_outdated = is_costly and (
                self._is_building or self._read_state() != self._built_from
            )
        if view is None or not is_costly:
            return Latest(self.current())
        seconds = self._seconds_until_rebuild(time.monotonic())
        if seconds <= 0:
            self.start_build()
            seconds = cost
        return Latest(view, seconds if is_outdated else None)

    def _seconds_until_rebuild(self, now: float) -> float:
        return self._built_at + REBUILD_FACTOR * self._cost - now

    def start_build(self) -> None:
        """Start a thread that builds the view, unless one runs.

        :raises Exception: the error of the previous build, once.
        """
        failed, self._build_error = self._build_error, None
        if failed is not None:
            raise failed
        if self._builder is None or not self._builder.is_alive():
            self._builder = threading.Thread(
                target=self._build_in_thread, name="wbengine-view", daemon=True
            )
            self._builder.start()

    def _build_in_thread(self) -> None:
        try:
            with _COSTLY_BUILD_LOCK:
                self.current()
        except Exception as error:  # The next call of `start_build` raises it.
            self._build_error = error

    def read_changes(self) -> tuple[redaction.Redactor, str]:
        """Read changes. Return a redactor with all secrets, and the cursor. Blocks.

        :raises NotFound: if the flow was deleted.
        """
        with self._build_lock, self._lock:
            changes = self._records.read_changes()
            return self._records.redactor, changes.cursor

    @contextlib.contextmanager
    def _latest_records(self) -> Iterator[models.FlowDetail]:
        """Hold the records as of the latest read. Blocks."""
        if self._records.detail is None:
            self.read_changes()
        with self._lock:
            detail = self._records.detail
            assert detail is not None  # `read_changes` reads it.
            yield detail

    def step(self, uuid: str, view: flows.FlowView) -> _step_detail.StepDetail | None:
        """Return a step of a workflow; None if the flow has no such step. Blocks."""
        with self._latest_records() as detail:
            record = detail.find(uuid)
            if record is None:
                return None
            return _step_detail.detail_of(record, view, self._records.redactor)

    def log_sources(self, task: str | None) -> _logs.Sources:
        """Return the tasks and steps with log lines, like `logs.sources_of`. Blocks."""
        with self._latest_records() as detail:
            return _logs.sources_of(detail, task)

    def events(self, limit: int, after: str | None, latest_first: bool) -> _event_history.EventPage:
        """Return a page of events as of the latest read, like `event_history.page`. Blocks."""
        with self._latest_records() as detail:
            return _event_history.page(
                detail,
                self._records.redactor,
                limit=limit,
                after=after,
                latest_first=latest_first,
            )

    def close(self) -> None:
        """Release the records, now or after the build in progress."""
        self._is_closed = True
        with self._lock:
            if not self._is_building:
                self._records.close()
