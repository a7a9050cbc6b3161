"""Submission of the flow of one tick."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from wbengine import exceptions
from wbengine.engines import _allowed, _submission
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.jobs import _stored
from wbengine.jobs import base as jobs
from wbengine.jobs._places import Place
from wbengine.jobs.backends import impl_sql
from wbengine.persistence.backends import _sql
from wbengine.schedules._ticks import Schedule

__all__ = ["Firing"]

LOG: Final = logging.getLogger(__name__)


class Firing:
    """Submits flows of ticks to a board.

    If the board is in another store, the job is posted after the flow is saved. If that fails, or
    this process dies before, a conductor of the board posts it.

    :param flows: factories that may be called.
    """

    def __init__(
        self, backend: _sql.SQLBackend, board: jobs.JobBoard, flows: _allowed.AllowedFlows
    ) -> None:
        self._backend: Final = backend
        self.board: Final = board
        self._flows: Final = flows

    def fire(
        self,
        schedule: Schedule,
        tick: int,
        uuid: str,
        first: Callable[[sa.Connection], bool],
        priority: str | None = None,
    ) -> bool:
        """Save the flow of a tick with its job. Return whether it was saved.

        :param first: the first step of the transaction. If it returns False, nothing is saved.
        :param priority: priority instead of that of the schedule.
        :raises Exception: errors of the factory.
        """
        new = _submission.new_flow(
            schedule.factory,
            inputs=JsonInputs(schedule.inputs_at(tick)),
            tags=schedule.tags_at(tick),
            uuid=uuid,
            undo_until=schedule.undo_until,
            flows=self._flows,
            payloads=self._backend.payloads,
        )
        flow, board = new.detail, self.board
        book = _submission.new_book(flow)
        place = Place.of(priority or schedule.priority, schedule.queue)._replace(
            fair_key=new.fair_key
        )
        if not isinstance(board, _stored.StoredJobBoard):
            assert isinstance(board, impl_sql.SQLJobBoard)
            return board.post_flow(flow.name, book, flow, place, first=first) is not None
        board.check_place(place)
        _stored.note_submitted(flow.meta, board, place)
        is_saved = self._backend.save_new_books([book], first)
        if is_saved:
            try:
                board.repost(flow.uuid, flow.name, book, place)
            except exceptions.JobFailure as error:
                LOG.warning("flow %s has no job yet, a conductor posts it: %s", flow.uuid, error)
        return is_saved

    def is_busy(self, flow_uuid: str) -> bool:
        """Return True unless the job of an unfinished flow is in the trash."""
        return not (isinstance(self.board, jobs.FlowBoard) and self.board.is_trashed(flow_uuid))
