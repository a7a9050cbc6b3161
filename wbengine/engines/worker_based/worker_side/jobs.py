"""The requests of a worker, from their arrival until their reply is published."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wbengine.concurrency import time_limits
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import headers as hd

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.engines.worker_based import protocol as pr

Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class Job:
    id: str
    epoch: int
    key: Key
    reply_to: str
    receipt: Any
    #: The highest number of an inquiry about the request. `listener` is the engine that inquired
    #: after the request had ended.
    inquiry_number: int
    listener: str | None = None
    attempt: int = 1
    flow: str = ""
    extended: bool = False
    ledger: bool = False
    redelivered: bool = False
    limit: time_limits.TimeLimit = time_limits.UNLIMITED
    #: Whether the engine stores the log records of the task.
    captures: bool = False
    #: Unix time. Unused with a ledger, because the clocks of two hosts may differ.
    expires: float | None = None
    name: str = ""
    body: Mapping[str, Any] | None = None
    unit: pr.WorkUnit | None = None
    endpoint: endpoints.Endpoint | None = None
    refusal: BaseException | None = None
    seq: int = 0
    cancelled: bool = False
    outcome: invocation.Outcome | None = None
    #: Used only by `TaskRunner`, like `receipt`: the time until which this worker certainly owns
    #: the request, the Unix time of submission to the pool, the delayed RUNNING, and the ticket
    #: of the pool.
    fresh: float = math.inf
    began: float = 0.0
    running: Any = None
    ticket: Any = None

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
        self.epoch = self.inquiry_number = max(1, next_epoch)
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


def job_of(request: env.Envelope, receipt: Any) -> Job:
    name, epoch = request.correlation_id or "", request.number(hd.WBE_EPOCH, 1)
    headers = request.headers
    job = Job(
        name, epoch, (name, epoch), request.reply_to or "", receipt, inquiry_number=epoch,
        name=name,
    )  # fmt: skip
    job.attempt = request.number(hd.WBE_ATTEMPT, 1)
    job.flow = request.text(hd.ROOT_ID) or ""
    job.extended = request.extended
    job.ledger = hd.WBE_LEDGER in headers
    job.captures = hd.WBE_LOGS in headers
    job.redelivered = request.redelivered
    if hd.TIMELIMIT in headers:
        job.limit = _limit(headers[hd.TIMELIMIT])
    if hd.EXPIRES in headers and not job.ledger:
        job.expires = request.seconds(hd.EXPIRES)
    return job


def _limit(value: Any) -> time_limits.TimeLimit:
    """Return the time limits of a header, which has the hard one first. Ignore invalid ones."""
    try:
        hard, soft = value
        return time_limits.read((soft, hard))
    except (TypeError, ValueError, OverflowError):
        return time_limits.UNLIMITED
