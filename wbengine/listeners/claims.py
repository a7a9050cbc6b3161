"""Makes sure, while a flow runs, that the job it belongs to is still ours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.listeners import base

__all__ = ["CheckingClaimListener"]

LOG: Final = logging.getLogger(__name__)

#: Called with the engine, the state it told of, and the details.
OnJobLoss = Callable[[Any, str, base.Details], Any]


class CheckingClaimListener(base.Listener):
    """At each change of state, asks whether `job` is still claimed by `owner`; if not, suspends.

    `job` has a `state`, `board` a `find_owner(job)`.  Each question may go to the job board's
    server: this costs what that costs, once per change.

    A job is lost when it is unclaimed, has another owner, or is not found; then
    `on_job_loss(engine, state, details)` is called, at this and each later change.  By default it
    suspends the engine, so that whoever claims the job next can go on where it stopped.
    """

    def __init__(
        self,
        engine: Any,
        job: Any,
        board: Any,
        owner: str,
        on_job_loss: OnJobLoss | None = None,
    ) -> None:
        """
        :raises ValueError: `on_job_loss` is not callable.
        """
        super().__init__(engine, retry_listen_for=())
        if on_job_loss is not None and not callable(on_job_loss):
            raise ValueError(f"Custom 'on_job_loss' handler must be callable, not {on_job_loss!r}")
        self._job = job
        self._board = board
        self._owner = owner
        self._on_job_loss = on_job_loss if on_job_loss is not None else self._suspend

    def _suspend(self, engine: Any, state: str, details: base.Details) -> None:
        try:
            engine.suspend()
        except exceptions.WbengineException as error:
            LOG.warning(
                "Engine %s, whose job was owned by '%s', could not be suspended:\n%s",
                engine,
                self._owner,
                error.pformat(),
            )

    def _has_been_lost(self) -> bool:
        try:
            job_state = self._job.state
            owner = self._board.find_owner(self._job)
        except (exceptions.NotFound, exceptions.JobFailure):
            return True
        return bool(job_state == states.UNCLAIMED or owner != self._owner)

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        if not self._has_been_lost():
            LOG.debug("Job '%s' is still claimed by '%s'", self._job, self._owner)
            return
        LOG.warning("Job '%s' is no longer claimed by '%s'", self._job, self._owner)
        self._on_job_loss(self._engine, state, details)
