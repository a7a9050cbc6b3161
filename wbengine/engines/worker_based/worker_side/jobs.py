"""The requests that a worker has, from when it takes them until they are answered."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wbengine.concurrency import limits

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.engines.worker_based import protocol as pr
    from wbengine.engines.worker_based.messages import envelope as env

Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class Job:
    """One request that this worker has taken: what it says, and what became of it."""

    id: str
    epoch: int
    key: Key
    reply_to: str
    receipt: Any
    #: The highest number under which an engine asked for it, and who did so when it had ended.
    #: Who sent it did so under its epoch, or a lower number: only later ones may ask.
    asked: int
    listener: str | None = None
    attempt: int = 1
    flow: str = ""
    ours: bool = False
    ledger: bool = False
    redelivered: bool = False
    limit: limits.TimeLimit = limits.UNLIMITED
    #: Its engine keeps what the task logs.
    captures: bool = False
    #: Unix seconds.  Clocks of two hosts are not compared where a ledger says what is of use.
    expires: float | None = None
    #: The name of its task.
    name: str = ""
    #: As it came, until its arguments are read.
    body: Mapping[str, Any] | None = None
    unit: pr.WorkUnit | None = None
    endpoint: endpoints.Endpoint | None = None
    #: Why it cannot be run here; it is answered so by whoever is granted it.
    refusal: BaseException | None = None
    #: How many answers to it there are.
    seq: int = 0
    #: Somebody asked for its end.
    cancelled: bool = False
    #: How its task ended, for whoever tells people.
    outcome: invocation.Outcome | None = None
    #: Like the receipt, the shell's own: until when it certainly is this worker's, when it was
    #: handed to the pool (unix seconds), the RUNNING that is still to be told, and what the
    #: pool knows it by.
    fresh: float = math.inf
    began: float = 0.0
    running: Any = None
    ticket: Any = None

    @property
    def is_quiet(self) -> bool:
        """Whether it tells nothing but that it runs, and ended: nothing has to be heard before."""
        return self.ours and self.seq <= 2

    def number(self, seen: int) -> None:
        """Give it an epoch, after those `seen` of its id.

        TaskFlow has one id for all that it asks of an atom, and asks each once: only the broker
        repeats what it said, and tells so.
        """
        self.epoch = self.asked = max(1, seen if self.redelivered else seen + 1)
        self.key = self.id, self.epoch

    def __repr__(self) -> str:
        return f"<Job {self.name!r}, request {self.id}, epoch {self.epoch}>"


class Jobs:
    """Jobs by id and epoch; a `Server` puts them in and takes them out.

    `jobs` were taken and have not ended; of these, `begun` hold one of the `slots`, and `waiting`
    wait for one, in order.  No more than `left` begin (None: any number).  Of those that ended, the
    ledger is just being told of `ending`, and `leaving` have answers that are not published yet.
    """

    __slots__ = ("begun", "ending", "jobs", "leaving", "left", "slots", "waiting")

    def __init__(self, slots: int, left: int | None) -> None:
        self.slots = slots
        self.left = left
        self.jobs: dict[Key, Job] = {}
        self.begun: dict[Key, Job] = {}
        self.waiting: OrderedDict[Key, Job] = OrderedDict()
        self.ending: dict[Key, tuple[Job, env.Envelope]] = {}
        self.leaving: dict[Key, tuple[Job, env.Envelope]] = {}

    def held(self) -> Iterator[Job]:
        """All that was taken and is not answered, with repeats."""
        for job, _ in self.leaving.values():
            yield job
        yield from self.jobs.values()

    def by_id(self) -> dict[str, list[Job]]:
        """Those that run, or that the ledger is just being told of, by request."""
        found: dict[str, list[Job]] = {}
        for job in (*(job for job, _ in self.ending.values()), *self.jobs.values()):
            found.setdefault(job.id, []).append(job)
        return found

    def answers(self) -> dict[str, env.Envelope]:
        """What is not published yet of those that ended, by request; of the newest epoch."""
        left = sorted(self.leaving.values(), key=lambda pair: pair[0].epoch)
        return {job.id: answer for job, answer in left}

    def abandon(self) -> None:
        """Nothing runs here any more, as far as anybody is told."""
        for jobs in (self.jobs, self.begun, self.waiting):
            jobs.clear()
