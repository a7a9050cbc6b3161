"""The tasks and the ledger that a worker offers, and the checks of requests against them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from wbengine import exceptions as exc
from wbengine import running
from wbengine._calls import invocation
from wbengine._concurrency import time_limits
from wbengine._introspection import object_names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env

if TYPE_CHECKING:
    from wbengine.engines.worker_based._messages.request_messages import RequestMessage
    from wbengine.engines.worker_based._worker_side.jobs import Job
    from wbengine.engines.worker_based.endpoint import Endpoint

LOG: Final = logging.getLogger(__name__)


class Offer:
    """The endpoints of one worker by name, and the digest of its ledger."""

    def __init__(self, identity: str, offered: Mapping[str, Endpoint], ledger: str | None) -> None:
        self._identity = identity
        self._endpoints = dict(offered)
        self.names = tuple(sorted(offered))
        self.ledger = ledger
        #: Digests of the same ledger before it lost its data.
        self.former_ledgers: frozenset[str | None] = frozenset()
        # Tasks whose unaccepted arguments were logged.
        self._logged: set[str] = set()

    def check_ledger(self, request: RequestMessage) -> None:
        """Check that a request uses the ledger of this worker.

        :raises NotFound: if its row is in another ledger, or if it has no row although this worker
            has a ledger.
        """
        if self.ledger is not None and request.ledger is None:
            raise exc.NotFound(
                f"the request uses no ledger, but worker {self._identity} accepts only"
                f" requests of its ledger {self.ledger}: configure the same ledger for"
                " engine and worker"
            )
        if request.ledger != self.ledger and request.ledger not in self.former_ledgers:
            raise exc.NotFound(
                f"the request uses ledger {request.ledger!s:.120}, but worker {self._identity}"
                f" uses {self.ledger or 'none'}: configure the same ledger for engine and"
                " worker"
            )

    def find(self, job: Job, request: RequestMessage) -> None:
        """Find the endpoint by name without decoding user values; else set the job's refusal."""
        name = request.body["task_cls"]
        job.endpoint = self._endpoints.get(name)
        job.refusal = request.version_error()
        if job.endpoint is None and job.refusal is None:
            job.refusal = self._unknown(name)

    def decode(self, job: Job) -> None:
        """Decode the arguments of a claimed job; if they are not valid, set the job's refusal.

        The claim must come first. If the arguments kill or freeze the worker, the request then has
        an owner, so the number of resends is limited.
        """
        request, job.request = job.request, None
        assert request is not None and job.endpoint is not None
        try:
            shown = running.Request(job.id, job.attempt, job.epoch, job.flow, self._identity)
            job.unit = pr.Request.decode(request.body, env.unpacker(job.extended), shown)
            job.unit.captures, job.unit.stores_large = job.captures, job.stores_large
            job.unit.row, job.unit.settled = job.row, job.settled
            if not job.extended and job.limit is time_limits.UNLIMITED:
                # TaskFlow's engines do not send limits.
                job.limit = time_limits.read(job.endpoint.task_cls.timelimit)
        except Exception as error:  # The refusal becomes the reply.
            job.refusal = error

    def refuses_arguments(self, job: Job) -> bool:
        """Return whether the task of this worker cannot be called with the arguments.

        The engine has checked them with its own code, so this worker has other code. Each task is
        logged once. TaskFlow's requests are never refused.
        """
        endpoint, unit = job.endpoint, job.unit
        assert endpoint is not None and unit is not None
        if not job.extended or unit.action != invocation.EXECUTE:
            return False
        if endpoint.accepts(unit.arguments.keys()):
            return False
        if endpoint.name not in self._logged:
            self._logged.add(endpoint.name)
            LOG.warning(
                "task %s of this worker does not accept the arguments %s of request %s: its engine"
                " has other code; such requests return to the queue, for other workers",
                endpoint.name, ", ".join(sorted(unit.arguments)) or "()", job.id,
            )  # fmt: skip
        return True

    def _unknown(self, task_cls: str) -> Exception:
        return exc.NotFound(
            f"worker {self._identity} does not offer {task_cls}"
            f"{object_names.hint(task_cls, self.names)}; it offers: {', '.join(self.names[:8])}"
        )
