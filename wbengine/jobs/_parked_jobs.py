"""Jobs of parked flows whose board is not in the database of the flows.

The end of a wait is a change of this database: a signal, a command, a pause, a permit, or a time.
Therefore the job of such a flow moves from its board to this database when the flow is parked. When
its wait has ended, a conductor of the board posts it there again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from wbengine import exceptions
from wbengine.jobs import _stored
from wbengine.jobs import base as jobs
from wbengine.jobs._places import Place
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base as persistence_base
from wbengine.persistence import models
from wbengine.persistence.backends import _sql

__all__ = ["ParkedJobs"]

LOG: Final = logging.getLogger(__name__)

#: Beginning of the namespaces of these jobs. The rest is the id of their board.
_PREFIX: Final = "elsewhere:"
#: Maximum number of jobs that are posted again at once.
_MAX_POSTED: Final = 64
#: Duration of a claim on such a job, after which another process posts it.
_CLAIM_SECONDS: Final = 5.0
#: Time after which a job is posted that could not be, because an earlier one was claimed.
_RETRY_SECONDS: Final = 1.0
#: The same, because the record of the flow cannot be read by this process.
_UNREADABLE_SECONDS: Final = 30.0


class ParkedJobs:
    """The jobs of parked flows that have left a board. Those of its `queues` are posted again.

    :param origin: the board, which must be connected before the first call of a method.
    :param store: the database of the flows.
    """

    def __init__(self, origin: _stored.StoredJobBoard, store: _sql.SQLBackend) -> None:
        self._origin: Final = origin
        self._store: Final = store
        self._board: impl_sql.SQLJobBoard | None = None
        self._may_be_due = True
        self._next_poll = 0.0
        self._poll_seconds = 0.0

    @classmethod
    def of(cls, origin: jobs.JobBoard, store: persistence_base.Backend | None) -> ParkedJobs | None:
        """Return those of a board; None if the flows are not in a database, or the jobs are."""
        if isinstance(origin, _stored.StoredJobBoard) and isinstance(store, _sql.SQLBackend):
            return cls(origin, store)
        return None

    @property
    def board(self) -> impl_sql.SQLJobBoard:
        """The parked jobs.

        :raises JobFailure: if the board was never connected, or the database cannot be used.
        """
        namespace, board = f"{_PREFIX}{self._origin.note['board']}", self._board
        # A board that lost its data has another id.
        if board is None or board.namespace != namespace:
            board = impl_sql.SQLJobBoard("parked", {"namespace": namespace}, self._store)
            board.queues = self._origin.queues
            board.connect()
            self._board = board
        return board

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[float]:
        """Call `wake` during the block when jobs may be due; yield the interval between polls."""

        def note() -> None:
            self._may_be_due = True
            wake()

        with self.board.waking(note) as self._poll_seconds:
            yield self._poll_seconds

    def leave(self, job: jobs.Job, who: str, is_parked: bool) -> None:
        """Delete a claimed job of the board that `is_parked` now; otherwise release it.

        It is not if a conductor is just posting an earlier job of this flow.
        """
        (self._origin.consume if is_parked else self._origin.abandon)(job, who)

    def post_due(self, who: str) -> None:
        """Post the jobs on their board whose wait has ended, if it is time to look for them.

        If this process dies between the two steps, another one repeats the first, which then has no
        effect.

        While an earlier job of the flow is claimed on the board, the conductor that parked the flow
        may be about to delete it. So the parked job waits until that job is deleted or released.
        """
        now = time.monotonic()
        if not self._may_be_due and now < self._next_poll:
            return
        self._may_be_due, self._next_poll = False, now + self._poll_seconds
        board = self.board
        with jobs.claims_expiring_after(_CLAIM_SECONDS):
            taken = list(board.take(who, _MAX_POSTED))
        self._may_be_due = self._may_be_due or len(taken) == _MAX_POSTED
        for job in taken:
            retry_seconds = self._post(board, job)
            # If this process was stopped for longer than its claim, another one has posted it.
            with contextlib.suppress(exceptions.JobFailure, exceptions.NotFound):
                if retry_seconds is None:
                    board.consume(job, who)
                else:  # Not parked again: a command would make it due at once.
                    board.extend(job, retry_seconds)

    def _post(self, board: impl_sql.SQLJobBoard, job: jobs.Job) -> float | None:
        """Post a parked job. If it must be posted later, return after how many seconds."""
        with contextlib.closing(self._store.get_connection()) as connection:
            try:
                detail = connection.get_flow_details(job.uuid, lazy=True)
            except exceptions.NotFound:
                return None
            except exceptions.CorruptRecord as error:
                LOG.warning("cannot continue the flow of %s yet: %s", job, error)
                return _UNREADABLE_SECONDS
        place = _stored.submitted(detail, self._origin) or Place()
        book = models.LogBook(str(job.book_name), str(job.book_uuid))
        posted = self._origin.repost(job.uuid, job.name, book, place, replaces_trashed=True)
        if posted is None:
            earlier = self._origin.find(job.uuid)
            if earlier is None or self._origin.find_owner(earlier) is not None:
                return _RETRY_SECONDS
        if board.goes_first(job.uuid):
            self._origin.make_due(job.uuid)
        return None

    def has(self, flow_uuid: str) -> bool:
        """Return whether the job of a flow is among them.

        :raises JobFailure: if the database cannot be read.
        """
        return self.board.find(flow_uuid) is not None

    def adopt(self) -> None:
        """Find parked jobs that left the board when it had another id, or another address."""
        self.board.adopt(_PREFIX, self._origin.is_noted)
