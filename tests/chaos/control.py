"""The control experiment: OpenStack TaskFlow with the same faults, which must fail the checks.

TaskFlow waits forever for tasks of a dead worker, so the checks must find stuck flows.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from taskflow import engines, exceptions, task
from taskflow.engines.worker_based import worker
from taskflow.patterns import linear_flow, unordered_flow
from taskflow.persistence import backends, models

from tests.chaos import audit, flows, tasks
from tests.chaos.checking import FinalState
from tests.chaos.engines import ENDED, Work

EXCHANGE, TOPIC = "control", "control"
_MODULE = "tests.chaos.control"


class Step(task.Task):  # type: ignore[misc]
    """Acts like `tasks.Step`, without data about its request."""

    def execute(self, seconds: float, long: float) -> int:
        audit.note(audit.STARTED, self.name)
        tasks.rest(self.name, seconds, long)
        audit.note(audit.ENDED, self.name)
        return tasks.value(self.name)


class Sum(task.Task):  # type: ignore[misc]
    def execute(self, **parts: int) -> int:
        audit.note(audit.STARTED, self.name)
        audit.note(audit.ENDED, self.name)
        return sum(parts.values())


def work(options: Mapping[str, Any], slots: int) -> None:
    """Run a worker until it is killed."""
    taskflow_worker = worker.Worker(
        EXCHANGE,
        TOPIC,
        [f"{_MODULE}:Step", f"{_MODULE}:Sum"],
        threads_count=slots,
        url=options["url"],
    )
    taskflow_worker.run(display_banner=False)


def make(flow: str) -> Any:
    """Return a flow of the kind `plain`."""
    wide = unordered_flow.Flow(f"{flow}.wide")
    wide.add(*(Step(part, provides=part) for part in flows.parts(flow)))
    total = f"{flow}.sum"
    return linear_flow.Flow(flow).add(
        wide, Sum(total, requires=flows.parts(flow), provides=total, auto_extract=False)
    )


def run(work: Work) -> None:
    """Resume the remaining flows of one process, then run new ones until the end."""
    life = _Life(work)
    threads = [threading.Thread(target=life.serve, daemon=True) for _ in range(work.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Life:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._backend = _backend(work)
        with contextlib.closing(self._backend.get_connection()) as connection:
            connection.upgrade()
            books = list(connection.get_logbooks())
        self._next = len(books)
        self._left = [(book, detail) for book in books for detail in book
                      if detail.state not in ENDED]  # fmt: skip

    def serve(self) -> None:
        while (flow := self._take()) is not None:
            self._run(*flow)

    def _take(self) -> tuple[Any, Any] | None:
        with self._lock:
            if self._left:
                return self._left.pop()
            if self._work.enough.exists():
                return None
            name = self._work.name(self._next)
            self._next += 1
            book = models.LogBook(name)
            detail = models.FlowDetail(name, f"{name}-flow")
            book.add(detail)
            with contextlib.closing(self._backend.get_connection()) as connection:
                connection.save_logbook(book)
            return book, detail

    def _run(self, book: Any, detail: Any) -> None:
        engine = engines.load(
            make(detail.name),
            store=flows.store(self._work.seconds, self._work.long),
            flow_detail=detail,
            book=book,
            backend=self._backend,
            engine="worker-based",
            exchange=EXCHANGE,
            topics=[TOPIC],
            url=self._work.options["url"],
        )
        try:
            engine.run()
        except Exception as error:
            print(f"note: {detail.name}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        audit.note(audit.FLOW, detail.name, str(detail.state))


def _backend(work: Work) -> Any:
    path = work.folder / f"engine-{work.number}.taskflow"
    return backends.fetch({"connection": "dir", "path": str(path)})


def kept(work: Work) -> Iterator[FinalState]:
    """Yield the stored state of all flows, or "UNREADABLE" if a kill damaged the record."""
    backend = _backend(work)
    with contextlib.closing(backend.get_connection()) as connection:
        for book in connection.get_logbooks(lazy=True):
            try:
                details = list(connection.get_logbook(book.uuid))
            except exceptions.StorageFailure:
                yield FinalState(book.name, "UNREADABLE", {})
                continue
            for detail in details:
                results = {atom.name: atom.results for atom in detail if atom.state == "SUCCESS"}
                yield FinalState(detail.name, detail.state, results)
