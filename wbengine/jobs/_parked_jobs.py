"""Jobs of parked flows whose board is not in the database of the flows.

The end of a wait is a change of this database: a signal, a command, a pause, a permit, or a time.
Therefore the job of such a flow moves from its board to this database when the flow is parked, and
stays there until the flow has ended. Only conductors of the board take it, which have the same
name for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from wbengine.jobs import _stored
from wbengine.jobs import base as jobs
from wbengine.jobs._places import ALL_QUEUES
from wbengine.jobs.backends import impl_memory, impl_sql
from wbengine.persistence import base as persistence_base
from wbengine.persistence.backends import _sql

__all__ = ["ParkedJobs"]

#: Beginning of the namespaces of these jobs.
_PREFIX: Final = "elsewhere:"


class ParkedJobs:
    """The jobs of parked flows that have left a board.

    :ivar board: the jobs in the database of the flows.
    """

    def __init__(
        self, origin: _stored.BaseStoredJobBoard, store: _sql.SQLBackend, location: str
    ) -> None:
        self._origin: Final = origin
        namespace = f"{_PREFIX}{hashlib.sha256(location.encode()).hexdigest()[:32]}"
        self.board: Final = impl_sql.SQLJobBoard("parked", {"namespace": namespace}, store)
        self._may_be_due = True
        self._next_poll = 0.0
        self._poll_seconds = 0.0

    @classmethod
    def of(cls, origin: jobs.JobBoard, store: persistence_base.Backend | None) -> ParkedJobs | None:
        """Return those of a board. None if its flows cannot be parked in another place.

        This requires that the flows are in another database than the jobs, and that other processes
        have the same board.
        """
        if not isinstance(store, _sql.SQLBackend) or isinstance(origin, impl_memory.MemoryJobBoard):
            return None
        if isinstance(origin, impl_sql.SQLJobBoard) and not origin.keeps_flows:
            return cls(origin, store, f"{origin.address} {origin.namespace}")
        if isinstance(origin, _stored.StoredJobBoard) and origin.address is not None:
            return cls(origin, store, f"{origin.address} {origin.place}")
        return None

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[float]:
        """Call `wake` during the block when jobs may be due; yield the interval between polls."""
        has_queues = self._origin.job_queues is not None
        self.board.queues = self._origin.queues if has_queues else (ALL_QUEUES,)

        def note() -> None:
            self._may_be_due = True
            wake()

        with self.board.waking(note) as self._poll_seconds:
            yield self._poll_seconds

    def take(self, who: str, limit: int, except_uuids: Collection[str]) -> list[jobs.Job]:
        """Claim up to `limit` jobs that are due. They go before those of the board."""
        now = time.monotonic()
        if not self._may_be_due and now < self._next_poll:
            return []
        self._may_be_due, self._next_poll = False, now + self._poll_seconds
        taken = list[jobs.Job](self.board.take(who, limit, except_uuids))
        if len(taken) == limit:
            self._may_be_due = True
        return taken

    def has(self, flow_uuid: str) -> bool:
        """Return whether the job of a flow is among them.

        :raises JobFailure: if the database cannot be read.
        """
        self.connect()
        return self.board.find(flow_uuid) is not None

    def connect(self) -> None:
        """Prepare the database, if necessary.

        :raises JobFailure: if this fails.
        """
        if not self.board.connected:
            self.board.connect()

    def adopt(self) -> None:
        """Find parked jobs that left the board when it had another address."""
        self.board.adopt(_PREFIX, self._origin.is_noted)
