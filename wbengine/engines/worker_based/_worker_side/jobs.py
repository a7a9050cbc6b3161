"""The requests of a worker, from their arrival until their reply is published."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wbengine._calls import invocation
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.engines.worker_based import protocol as pr
    from wbengine.engines.worker_based._messages import envelope as env
    from wbengine.engines.worker_based._messages.requests import RequestMessage

Key = tuple[str, int]


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
        "ask_number", "attempt", "began", "cancelled", "captures", "endpoint", "epoch", "expires",
        "extended", "flow", "fresh", "id", "key", "ledger", "limit", "listener", "name",
        "outcome", "receipt", "redelivered", "refusal", "reply_to", "request", "row", "running",
        "seq", "settled", "stores_large", "ticket", "unit",
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
        self.captures = request.captures
        self.stores_large = request.stores_large
        self.row, self.settled = request.row, request.settled
        self.seq, self.cancelled = 0, False
        self.listener: str | None = None
        self.unit: pr.WorkUnit | None = None
        self.endpoint: endpoints.Endpoint | None = None
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
