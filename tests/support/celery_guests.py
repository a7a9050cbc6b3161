"""Workers in threads of this process that serve Celery's clients: they are there at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.support import celery_errands
from tests.support.workers import WorkerProcess
from wbengine.engines.worker_based import worker as workers
from wbengine.interop.celery import brokers
from wbengine.interop.celery.worker import backends, doubting, guest, mapping

#: Starts workers in processes, or one in a thread; whatever happens, they are gone afterwards.
Start = Callable[..., contextlib.AbstractContextManager[list[WorkerProcess]]]
Serve = Callable[..., contextlib.AbstractContextManager["Serving"]]

#: A worker that is gone is soon given up: there is none that is only late.
HASTY = doubting.Patience(pause=0.2, lost_after=1.5, back=0.5)

#: Nobody is given up, however late.
PATIENT = doubting.Patience(pause=0.3, lost_after=600.0)


class Serving:
    """A worker that serves the queue `celery`, and its guest."""

    def __init__(self, worker: workers.Worker, guest: guest.Guest) -> None:
        self.worker = worker
        self.guest = guest

    @property
    def running(self) -> int:
        """How many tasks have a slot."""
        return self.guest.running

    @property
    def held(self) -> int:
        """How many messages wait for their time."""
        return int(self.guest.known("held"))

    @property
    def counts(self) -> Mapping[str, int]:
        """What became of messages that did not lead to a run."""
        found: Mapping[str, int] = self.guest.known("counts")
        return found

    @property
    def rests(self) -> bool:
        """Whether it is connected, and nothing is left to be done."""
        return not self.guest.busy


@contextlib.contextmanager
def serving(
    url: str,
    results: str,
    options: Mapping[str, Any] | None = None,
    *,
    threads: int = 2,
    tasks: Any = celery_errands,
    **given: Any,
) -> Iterator[Serving]:
    """A worker that has begun to serve; it ends as one does that is told to.

    `options` are those of its broker, `given` those of its guest, and `tasks` a module.
    """
    made = guest.Guest(
        brokers.Broker(url, options),
        ["celery"],
        mapping.Tasks([tasks]),
        node="test@here",
        backend=backends.backend_for(results),
        **given,
    )
    worker = workers.Worker("default", (), [tasks], guests=[made], threads_count=threads)
    thread = threading.Thread(target=worker.run, kwargs={"display_banner": False})
    thread.start()
    try:
        assert worker.wait(60)
        yield Serving(worker, made)
    finally:
        worker.stop()
        thread.join(60)
    assert not thread.is_alive()
