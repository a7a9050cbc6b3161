"""Execution of submitted flows in the thread of a test."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from wbengine import engines
from wbengine.conductors._outcomes import Action
from wbengine.conductors.backends import impl_blocking
from wbengine.engines import _loading
from wbengine.jobs import base as jobs
from wbengine.jobs._places import ALL_QUEUES
from wbengine.jobs.backends import impl_sql
from wbengine.persistence.backends import _sql

__all__ = ["run_submitted"]


def run_submitted(backend: _loading.Backend) -> list[engines.FlowHandle]:
    """Run all submitted flows that can run now in this thread, also those that they submit.

    Flows of all queues run one after the other, as a conductor with serial engines runs them. Flows
    that wait for a signal or for a time of more than 5 seconds remain, for a later call.

    :param backend: the store, which must be a database, and contain the jobs.
    :returns: the handles of the flows, in the order of their execution.
    :raises ValueError: if `backend` is not a database.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_loading.opened_backend(backend))
        if not isinstance(store, _sql.SQLBackend):
            raise ValueError(f"backend must be a database, which contains jobs, got {store!r}")
        board = impl_sql.SQLJobBoard("tests", persistence=store)
        stack.enter_context(contextlib.closing(board))
        board.queues = (ALL_QUEUES,)
        conductor = _Conductor("tests", board, store, "serial")
        conductor.run()
    return [engines.handle(uuid, backend=backend) for uuid in conductor.flows]


class _Conductor(impl_blocking.BlockingConductor):
    """Ends when no job can be claimed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: The flows that were run, each once.
        self.flows: dict[str, None] = {}

    def _sleep(self, seconds: float) -> None:
        self.stop()

    def _dispatch_job(self, job: jobs.Job) -> Action:
        if isinstance(job.details, Mapping) and "flow_uuid" in job.details:
            self.flows[job.details["flow_uuid"]] = None
        return super()._dispatch_job(job)
