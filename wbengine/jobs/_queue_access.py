"""The queues of the board that a setting names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wbengine.jobs import _stored, backends
from wbengine.jobs._queues import BaseJobQueues, JobQueues
from wbengine.persistence import base

__all__ = ["opened"]


@contextlib.contextmanager
def opened(backend: base.Backend, board: str | None) -> Iterator[BaseJobQueues]:
    """Open the queues of a job board.

    :param board: URL of the board; None: it is in the store of the flows.
    :raises ValueError: if the board has no queues.
    :raises JobFailure: if the board cannot be reached.
    """
    if board is None:
        yield JobQueues(backend)
        return
    with contextlib.closing(backends.fetch("queues", board, persistence=backend)) as job_board:
        queues = job_board.job_queues if isinstance(job_board, _stored.BaseStoredJobBoard) else None
        if queues is None:
            raise ValueError(
                f"Queues of flows require a job board in a database or in Redis, got {job_board!r}"
            )
        job_board.connect()
        yield queues
