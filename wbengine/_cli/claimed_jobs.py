"""Jobs of submitted flows that a command runs itself."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from wbengine import exceptions, states
from wbengine._cli import errors
from wbengine.jobs import _stored, backends
from wbengine.jobs import base as jobs
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _owners, models

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.persistence import base as persistence
    from wbengine.persistence._listing import FlowRow

__all__ = ["claimed", "separate_board"]

LOG: Final = logging.getLogger(__name__)

#: Time after which conductors continue a flow whose command was killed.
_CLAIM_SECONDS: Final = 15.0
#: Maximum time to wait for a conductor that deletes the job, and the pause between two attempts.
_CLAIM_PATIENCE_SECONDS: Final = 5.0
_CLAIM_PAUSE_SECONDS: Final = 0.05


def separate_board(context: Context, backend: persistence.Backend) -> _stored.StoredJobBoard | None:
    """Return the board of the option --board, or None if jobs are in the store of the flows.

    :raises Failed: if the URL is invalid.
    """
    url = context.settings.board
    if url is None:
        return None
    with context.settings.failing("board", exceptions.NotFound, ValueError, ImportError):
        board = backends.fetch("served", url, persistence=backend)
        if not isinstance(board, _stored.StoredJobBoard):
            raise ValueError(
                "must be in Redis, ZooKeeper or etcd; for jobs in a database, pass only"
                " --persistence"
            )
    return board


@contextlib.contextmanager
def claimed(context: Context, backend: persistence.Backend, row: FlowRow) -> Iterator[None]:
    """Hold the job of a submitted flow in a `with` block, so that no conductor runs the flow.

    Then the job is deleted if the flow has ended or a command suspended it. Otherwise conductors
    continue the flow, also if this process is killed.

    :raises FlowBusy: if a conductor runs the flow.
    :raises InvalidState: if a conductor was requested to run it.
    :raises Failed: if the flow was submitted to another board.
    """
    who = f"{socket.gethostname()}:{os.getpid()}"
    board: _stored.BaseStoredJobBoard
    board = separate_board(context, backend) or impl_sql.SQLJobBoard("here", persistence=backend)
    board.connect()
    try:
        job = _claim(backend, board, row, who)
        ended = threading.Event()
        keeper = threading.Thread(target=_extend, args=(job, ended), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ended.set()
            keeper.join()
            _finish(backend, board, job, who)
    finally:
        board.close()


def _claim(
    backend: persistence.Backend, board: _stored.BaseStoredJobBoard, row: FlowRow, who: str
) -> jobs.Job:
    """Claim the job of a flow, which is posted if there is none."""
    with contextlib.closing(backend.get_connection()) as connection:
        place = _stored.submitted(connection.get_flow_details(row.uuid, lazy=True), board)
        if place is None:
            raise errors.Failed(
                f"flow {row.uuid} was submitted to another job board: pass its --board",
                errors.USAGE,
            )
        request = connection.commands([row.uuid]).get(row.uuid)
        if request is not None and request.reruns_flow:
            raise request.pending_error(row.uuid)
        book = models.LogBook(row.book_name, row.book_uuid)
        until = time.monotonic() + _CLAIM_PATIENCE_SECONDS
        while True:
            job = board.find(row.uuid)
            owner = None if job is None else board.find_owner(job)
            if owner is None:
                job = board.repost(row.uuid, row.name, book, place, replaces_trashed=True) or job
                if isinstance(board, impl_sql.SQLJobBoard):
                    board.make_due(row.uuid)
                with (
                    contextlib.suppress(exceptions.UnclaimableJob, exceptions.NotFound),
                    jobs.claims_expiring_after(_CLAIM_SECONDS),
                ):
                    if job is not None:
                        board.claim(job, who)
                        if not isinstance(board, impl_sql.SQLJobBoard):
                            connection.drop_job(row.uuid)  # The flow may have been parked.
                        return job
            lease = connection.get_lease(row.uuid)
            is_running = lease is not None and not _owners.is_dead(lease.owner)
            if is_running or time.monotonic() >= until:
                holder = owner or "a conductor"
                raise exceptions.FlowBusy(
                    f"Flow {row.uuid} cannot run here: {holder} has claimed its job"
                )
            time.sleep(_CLAIM_PAUSE_SECONDS)


def _extend(job: jobs.Job, ended: threading.Event) -> None:
    seconds = job.claim_seconds or _CLAIM_SECONDS
    while not ended.wait(seconds / 3):
        try:
            job.extend_expiry(seconds)
        except exceptions.WbengineException as error:
            LOG.warning("cannot extend the claim on %s: %s", job, error)


def _finish(
    backend: persistence.Backend, board: _stored.BaseStoredJobBoard, job: jobs.Job, who: str
) -> None:
    try:
        with contextlib.closing(backend.get_connection()) as connection:
            detail = connection.get_flow_details(job.uuid, lazy=True)
            is_over = detail.state in states.FLOW_ENDED or detail.is_suspended_by_command
            is_over = is_over and not connection.commands([job.uuid])
        (board.consume if is_over else board.abandon)(job, who)
    except exceptions.WbengineException as error:
        LOG.warning("%s is left to the conductors: %s", job, error)
