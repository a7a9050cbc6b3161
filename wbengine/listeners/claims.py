"""A listener that checks during a run that the claim on its job still exists."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.listeners import base

__all__ = ["CheckingClaimListener"]

LOG: Final = logging.getLogger(__name__)

OnJobLoss = Callable[[Any, str, base.Details], Any]


class CheckingClaimListener(base.Listener):
    """Checks at each state change that `owner` still claims `job`; if not, suspends the flow.

    `job` has a `state`, `board` has `find_owner(job)`. A check may be a request to the job board.

    A job is lost if it is unclaimed, has another owner, or is not found. Then `on_job_loss(engine,
    state, details)` is called, at this and each later state change. By default it suspends the
    engine, so that the next owner can continue the flow.
    """

    def __init__(
        self,
        engine: Any,
        job: Any,
        board: Any,
        owner: str,
        on_job_loss: OnJobLoss | None = None,
    ) -> None:
        """Create a listener for `engine`.

        :raises ValueError: if `on_job_loss` is not callable.
        """
        super().__init__(engine, retry_listen_for=())
        if on_job_loss is not None and not callable(on_job_loss):
            raise ValueError(f"on_job_loss must be callable, got {on_job_loss!r}")
        self._job = job
        self._board = board
        self._owner = owner
        self._on_job_loss = on_job_loss if on_job_loss is not None else self._suspend

    def _suspend(self, engine: Any, state: str, details: base.Details) -> None:
        try:
            engine.suspend()
        except exceptions.WbengineException as error:
            LOG.warning(
                "cannot suspend engine %s, whose job was owned by '%s':\n%s",
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
            LOG.debug("job '%s' is still claimed by '%s'", self._job, self._owner)
            return
        LOG.warning("job '%s' is no longer claimed by '%s'", self._job, self._owner)
        self._on_job_loss(self._engine, state, details)
