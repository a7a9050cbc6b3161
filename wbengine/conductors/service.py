"""What `wbengine serve` runs: a conductor of a database's job board, and a look for lost flows."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
from collections.abc import Mapping
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.conductors.backends import impl_nonblocking
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base, models, owners

__all__ = ["ConductorService"]

LOG: Final = logging.getLogger(__name__)

#: A flow in one of these has an engine, unless that died.
_UNDER_WAY: Final = (states.RUNNING, states.SUSPENDING, states.RESUMING)


class ConductorService:
    """Runs submitted flows of a database, and resumes those whose engine died.

    A flow whose engine died, and which has no job, is given one: by one of several services, and
    once.  Flows that do not say what made them are left alone.

    `engine` (a kind, or a URI) and `engine_options` say how flows are run, and `max_simultaneous`
    how many at a time (default: one more than there are processors).

    :raises ValueError: `persistence` is no database.
    """

    #: Seconds between two looks for flows whose engine died.
    LOOK_SECONDS: Final = 5.0

    def __init__(
        self,
        persistence: base.Backend,
        *,
        engine: str | None = None,
        engine_options: Mapping[str, Any] | None = None,
        max_simultaneous: int | None = None,
    ) -> None:
        self.name: Final = f"{socket.gethostname()}:{os.getpid()}"
        self._persistence = persistence
        self._board = impl_sql.SQLJobBoard("served", persistence=persistence)
        self._conductor = impl_nonblocking.NonBlockingConductor(
            self.name,
            self._board,
            persistence,
            engine,
            engine_options,
            max_simultaneous_jobs=max_simultaneous,
        )
        self._ended = threading.Event()

    def run(self) -> None:
        """Until `stop` is called, and what runs has been suspended.

        :raises JobFailure: the database cannot be used.
        """
        self._board.connect()
        looking = threading.Thread(target=self._look, name="wbengine-lost-flows", daemon=True)
        looking.start()
        try:
            self._conductor.run()
        finally:
            self._ended.set()
            looking.join()
            self._board.close()

    def stop(self) -> None:
        """Take no more jobs; flows are suspended after what runs, for others to go on with.

        From any thread.  Does not wait.
        """
        self._ended.set()
        self._conductor.stop()

    def responds(self, seconds: float) -> bool:
        """Whether it takes jobs, or runs flows."""
        return self._conductor.dispatching

    @property
    def trouble(self) -> str | None:
        """Why it takes no jobs now; None: it does.  Asks the database."""
        if self._ended.is_set():
            return "it is ending"
        try:
            next(self._board.iterjobs(), None)
        except exceptions.JobFailure as error:
            return str(error)
        return None

    def _look(self) -> None:
        while True:
            try:
                self._resume_lost()
            except Exception as error:  # the next look may succeed
                LOG.warning("Flows whose engine died cannot be looked for: %s", error)
            # Several services do not look all at once.
            if self._ended.wait(self.LOOK_SECONDS * random.uniform(0.7, 1.3)):
                return

    def _resume_lost(self) -> None:
        """Post a job for each flow whose engine died."""
        after = None
        with contextlib.closing(self._persistence.get_connection()) as connection:
            while True:
                page = connection.list_flows(states=_UNDER_WAY, newest_first=False, after=after)
                for row in page.flows:
                    if row.lease is None or owners.died(row.lease):
                        self._post(connection, row)
                after = page.after
                if after is None:
                    return

    def _post(self, connection: base.Connection, row: base.FlowRow) -> None:
        try:
            detail = connection.get_flow_details(row.uuid, lazy=True)
        except exceptions.NotFound:  # it was deleted meanwhile
            return
        if detail.state not in _UNDER_WAY or detail.noted(models.FACTORY) is None:
            return
        book = models.LogBook(row.book_name, row.book_uuid)
        if self._board.repost(row.uuid, row.name, book) is not None:
            LOG.warning("Flow %s (%s) has lost its engine, and is resumed", row.name, row.uuid)
