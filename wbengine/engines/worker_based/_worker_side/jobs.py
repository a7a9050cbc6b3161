"""The requests of a worker: checks against its tasks, progress and replies."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine import running
from wbengine._calls import invocation
from wbengine._concurrency import time_limits
from wbengine._introspection import object_names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages.request_messages import Reply, RequestMessage
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.engines.worker_based.endpoint import Endpoint

LOG: Final = logging.getLogger(__name__)

Key = tuple[str, int]

_NO_DATA: Final[Mapping[str, Any]] = {}


class Job:
    """A request of a worker, with its receipt and its progress.

    `request` contains the encoded values and is None after they were decoded to `unit`.
    `ask_number` is the highest number of an ask about it; `listener` is the engine that
    asked after it had ended.

    Only `TaskRunner` uses `fresh` (time until which this worker certainly owns the request),
    `began` (Unix time of submission to the pool), `running` (the delayed RUNNING) and `ticket` (of
    the pool), like `receipt`.
    """

    __slots__ = (
        "ask_number", "attempt", "began", "cancelled", "endpoint", "epoch", "expires", "extended",
        "flow", "fresh", "id", "key", "ledger", "limit", "listener", "name", "outcome", "receipt",
        "redelivered", "refusal", "reply_to", "request", "running", "seq", "ticket", "unit",
    )  # fmt: skip

    def __init__(self, request: RequestMessage, receipt: Any) -> None:
        self.request: RequestMessage | None = request
        self.receipt = receipt
        self.id, self.epoch = request.id, request.epoch
        self.key: Key = request.id, request.epoch
        self.name: str = request.body["task_name"]
        self.reply_to, self.ask_number = request.reply_to, request.epoch
        self.attempt, self.flow = request.attempt, request.flow
        self.extended, self.redelivered = request.extended, request.redelivered
        self.ledger = request.ledger is not None
        self.limit, self.expires = request.limit, request.expires
        self.seq, self.cancelled = 0, False
        self.listener: str | None = None
        self.unit: pr.WorkUnit | None = None
        self.endpoint: Endpoint | None = None
        self.refusal: BaseException | None = None
        self.outcome: invocation.Outcome | None = None
        self.fresh, self.began = math.inf, 0.0
        self.running: Any = None
        self.ticket: Any = None

    @property
    def is_quiet(self) -> bool:
        """Whether at most RUNNING was sent before the result, so that the result need not wait."""
        return self.extended and self.seq <= 2

    def set_epoch(self, highest_epoch: int) -> None:
        """Set the epoch; `highest_epoch` is the highest one of this id so far.

        TaskFlow has no epochs: it uses one id for all requests of an atom. It sends each request
        once, so a message of the same request is marked as redelivered.
        """
        next_epoch = highest_epoch if self.redelivered else highest_epoch + 1
        self.epoch = self.ask_number = max(1, next_epoch)
        self.key = self.id, self.epoch

    def __repr__(self) -> str:
        return f"<Job {self.name!r}, request {self.id}, epoch {self.epoch}>"


class Jobs:
    """Jobs by id and epoch, for a `Server`.

    `jobs` have arrived and not ended: `begun` have one of the `slots`, `waiting` wait for a slot,
    in order. At most `starts_left` more jobs may start (None: no limit). Jobs that ended: `ending`
    are being stored in the ledger, `leaving` have unpublished replies.
    """

    __slots__ = ("begun", "ending", "jobs", "leaving", "slots", "starts_left", "waiting")

    def __init__(self, slots: int, starts_left: int | None) -> None:
        self.slots = slots
        self.starts_left = starts_left
        self.jobs: dict[Key, Job] = {}
        self.begun: dict[Key, Job] = {}
        self.waiting: OrderedDict[Key, Job] = OrderedDict()
        self.ending: dict[Key, tuple[Job, env.Envelope]] = {}
        self.leaving: dict[Key, tuple[Job, env.Envelope]] = {}

    def held(self) -> Iterator[Job]:
        """Yield all jobs without a published reply, possibly more than once."""
        for job, _ in self.leaving.values():
            yield job
        yield from self.jobs.values()

    def by_id(self) -> dict[str, list[Job]]:
        """Return the jobs that wait, run or are being stored, by request id."""
        jobs_by_id: dict[str, list[Job]] = {}
        for job in (*(job for job, _ in self.ending.values()), *self.jobs.values()):
            jobs_by_id.setdefault(job.id, []).append(job)
        return jobs_by_id

    def answers(self) -> dict[str, env.Envelope]:
        """Return the unpublished terminal replies by request id, with the highest epoch of each."""
        unpublished = sorted(self.leaving.values(), key=lambda pair: pair[0].epoch)
        return {job.id: answer for job, answer in unpublished}

    def abandon(self) -> None:
        for jobs in (self.jobs, self.begun, self.waiting):
            jobs.clear()


class Offer:
    """The endpoints of one worker by name, and the digest of its ledger."""

    def __init__(self, identity: str, offered: Mapping[str, Endpoint]) -> None:
        self._identity = identity
        self._endpoints = dict(offered)
        self.names = tuple(sorted(offered))
        self.ledger: str | None = None
        #: That digest, and those of the same ledger before it lost its data.
        self.known_ledgers: frozenset[str | None] = frozenset([None])
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
        if request.ledger not in self.known_ledgers:
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
            job.refusal = exc.NotFound(
                f"worker {self._identity} does not offer {name}"
                f"{object_names.hint(name, self.names)}; it offers: {', '.join(self.names[:8])}"
            )

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
            job.unit.captures, job.unit.stores_large = request.captures, request.stores_large
            job.unit.row, job.unit.settled = request.row, request.settled
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


class ReplyFactory:
    """Creates the replies of one worker. `max_size` limits the encoded body, in bytes."""

    def __init__(self, identity: str, max_size: int) -> None:
        self._identity = identity
        self._max_size = max_size

    def running(self, job: Job) -> env.Envelope:
        return self._make(job, pr.RUNNING)

    def report(
        self, job: Job, state: str, number: int, started_at: float | None = None
    ) -> env.Envelope:
        """Return a reply to the ask with this number (0: without an ask).

        RUNNING: this worker has the request, and runs it since `started_at` unless that is None.
        PENDING: another worker has claimed the request.
        """
        return self._make(job, state, ask_number=number, started=started_at)

    def unknown(self, request_id: str, number: int, to: str) -> env.Envelope:
        """Return the reply to an ask about a request that this worker does not have."""
        reply = Reply(request_id, pr.PENDING, {}, worker=self._identity, ask_number=number, to=to)
        return reply.to_message()

    def event(self, job: Job, event_type: str, details: Mapping[str, Any]) -> env.Envelope:
        """Return an EVENT.

        :raises InvalidFormat: if it cannot be encoded or is too large.
        """
        if not isinstance(event_type, str):
            raise exc.InvalidFormat(f"the name of an event must be a str, got {event_type!r:.80}")
        packed = env.packer(job.extended)(dict(details), "details")
        reply = self._make(job, pr.EVENT, {"event_type": event_type, "details": packed})
        env.check_size(reply, job.name, "an event", self._max_size)
        return reply

    def succeeded(self, job: Job, outcome: invocation.Outcome) -> env.Envelope:
        """Return a SUCCESS.

        :raises InvalidFormat: if the result cannot be encoded or is too large.
        """
        data = {"result": env.packer(job.extended)(outcome.value, "result")}
        reply = self._make(job, pr.SUCCESS, data, outcome.started, outcome.ended)
        env.check_size(reply, job.name, "the result", self._max_size)
        return reply

    def failed(self, job: Job, outcome: invocation.Outcome, *, lost: bool = False) -> env.Envelope:
        """Return a FAILURE. `lost` marks a task whose effects are unknown."""
        failure: ft.Failure = outcome.value
        data = {"result": pr.failure_to_dict(failure, job.extended)}
        reply = self._make(job, pr.FAILURE, data, outcome.started, outcome.ended, lost=lost)
        if len(reply.encoded) > self._max_size:
            too_large = exc.TooLarge(
                f"the failure of task {job.name!r} is too large to send"
                f" ({len(reply.encoded):,} bytes): {failure.exception_str[:1000]}"
            )
            data = {"result": ft.Failure.from_exception(too_large).to_dict(include_args=False)}
            reply = self._make(job, pr.FAILURE, data, outcome.started, outcome.ended, lost=lost)
        return reply

    def _make(
        self,
        job: Job,
        state: str,
        data: Mapping[str, Any] = _NO_DATA,
        started: float | None = None,
        ended: float | None = None,
        *,
        ask_number: int | None = None,
        lost: bool = False,
    ) -> env.Envelope:
        job.seq += 1
        reply = Reply(
            job.id, state, data, job.extended, self._identity, job.epoch, job.seq, ask_number,
            started, ended, lost, job.reply_to,
        )  # fmt: skip
        return reply.to_message()
