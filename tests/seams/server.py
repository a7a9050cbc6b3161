"""What one worker process does about messages; without threads, sockets, a pool or a ledger.

What happens goes in, and effects come out: what the worker does next, in that order.  Who performs
one reports what came of it, where its docstring says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.seams import ledgers
from wbengine import invocation
from wbengine.engines.worker_based import endpoint
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import server as servers
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side import effects as fx

#: Task classes, as a worker offers them.
Offer = Mapping[str, Any]


def offer(classes: Iterable[Any]) -> Offer:
    """Made once, it does for many workers."""
    return endpoint.endpoints_of(list(classes))


class Job:
    """A request that the worker took; the same one is equal to itself, whoever asks."""

    __slots__ = ("_job",)

    def __init__(self, job: Any) -> None:
        self._job = job

    @property
    def id(self) -> str:
        return self._job.id  # type: ignore[no-any-return]

    @property
    def epoch(self) -> int:
        return self._job.epoch  # type: ignore[no-any-return]

    @property
    def attempt(self) -> int:
        return self._job.attempt  # type: ignore[no-any-return]

    @property
    def reply_to(self) -> str:
        return self._job.reply_to  # type: ignore[no-any-return]

    @property
    def receipt(self) -> Any:
        return self._job.receipt

    @property
    def claimed(self) -> bool:
        """Whether it has a row in the ledger."""
        return self._job.ledger  # type: ignore[no-any-return]

    @property
    def task(self) -> str:
        """The name of its task's class."""
        return self._job.unit.task_cls  # type: ignore[no-any-return]

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self._job.unit.arguments  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._job is other._job

    def __hash__(self) -> int:
        return hash(self._job)

    def __repr__(self) -> str:
        return repr(self._job)


# Effects.


@dataclass(slots=True)
class Claim:
    """Claim the row: `on_claim`, or `forget` if the ledger cannot be reached."""

    job: Job


@dataclass(slots=True)
class Run:
    """Start the task: `on_event`, `on_finished`; or `on_unstarted` if it waited for too long."""

    job: Job


@dataclass(slots=True)
class Check:
    """Look at the row of a job that waited for long: `on_checked`."""

    job: Job


@dataclass(slots=True)
class Interrupt:
    """Let the task end soon."""

    job: Job


@dataclass(slots=True)
class Say:
    """Publish what no job tells: who the worker is, or that it does not have a request."""

    message: env.Envelope


@dataclass(slots=True)
class Tell:
    """Publish what a job tells.  `unhurried`: that it runs, which is needless once it has ended."""

    job: Job
    message: env.Envelope
    unhurried: bool


@dataclass(slots=True)
class Answer:
    """Publish the end of a job, then acknowledge its message: `on_answered`."""

    job: Job
    message: env.Envelope


@dataclass(slots=True)
class Finish:
    """Store the end of a job in the ledger, then publish it: `on_stored`, `on_answered`."""

    job: Job
    message: env.Envelope


@dataclass(slots=True)
class Release:
    """Let go of the row, as if it had never been claimed: `on_released`."""

    job: Job


@dataclass(slots=True)
class Return:
    """Give the request back to its queue; `fresh`: as a new message."""

    job: Job
    fresh: bool


#: These are the same inside: take nothing new, and end with what runs; a message is not needed any
#: more.
Drain, Acknowledge = fx.Drain, fx.Acknowledge

Effect = (
    Claim | Run | Check | Interrupt | Say | Tell | Answer | Finish | Release | Return | Drain
    | Acknowledge
)  # fmt: skip


def _effect(made: fx.Effect) -> Effect:
    match made:
        case fx.Reply(None, message):
            return Say(message)
        case fx.Reply(job, message, True):
            return Answer(Job(job), message)
        case fx.Reply(job, message):
            runs = message.body["state"] == pr.RUNNING and env.WBE_ASK not in message.headers
            return Tell(Job(job), message, runs and job is not None and job.ours)
        case fx.Acknowledge() | fx.Drain():
            return made
        case fx.Claim(job):
            return Claim(Job(job))
        case fx.Run(job):
            return Run(Job(job))
        case fx.Finish(job, message):
            return Finish(Job(job), message)
        case fx.Check(job):
            return Check(Job(job))
        case fx.Cancel(job):
            return Interrupt(Job(job))
        case fx.Release(job):
            return Release(Job(job))
        case fx.Return(job, fresh):
            return Return(Job(job), fresh)
    raise AssertionError(f"nobody performs {made!r}")


def _effects(made: Iterable[fx.Effect]) -> list[Effect]:
    return [_effect(each) for each in made]


class Server:
    """`queues`: the queue of each topic.  `ledger`: the digest of its ledger."""

    def __init__(
        self,
        name: str,
        queues: Mapping[str, str],
        offered: Offer,
        slots: int,
        ledger: str | None = None,
    ) -> None:
        self._core = servers.Server(name, queues, offered, slots, ledger=ledger)

    # What comes.

    def on_request(
        self, message: env.Envelope, receipt: Any, now: float, *, claimed: bool = False
    ) -> list[Effect]:
        """`now` is in unix seconds.  `claimed`: a claim came with it."""
        return _effects(self._core.on_request(message, receipt, now, claimed=claimed))

    def hear(self, message: env.Envelope, period: float, *, in_person: bool) -> list[Effect]:
        """What engines ask and order, and their questions who is there; `period`: its beat's."""
        if message.type == commands.ASK:
            commands.SCHEMAS[commands.ASK].check(message.body)
            asked = commands.named(message.body)
            return _effects(self._core.on_ask(asked, message.reply_to, in_person))
        if message.type == commands.CANCEL:
            commands.SCHEMAS[commands.CANCEL].check(message.body)
            return _effects(self._core.on_cancel(commands.named(message.body)))
        assert message.type == pr.NOTIFY, message
        if message.reply_to is None:
            return []
        return _effects(self._core.on_notify(message, period))

    # What came of effects.

    def on_claim(self, job: Job, claim: ledgers.Claim) -> list[Effect]:
        return _effects(self._core.on_claim(job._job, claim))

    def on_unstarted(self, job: Job) -> list[Effect]:
        return _effects(self._core.on_unstarted(job._job))

    def on_checked(self, job: Job, row: ledgers.Row | None) -> list[Effect]:
        return _effects(self._core.on_checked(job._job, row))

    def on_event(self, job: Job, event: str, details: Mapping[str, Any]) -> list[Effect]:
        return _effects(self._core.on_event(job._job, event, details))

    def on_finished(self, job: Job, outcome: invocation.Outcome) -> list[Effect]:
        return _effects(self._core.on_finished(job._job, outcome))

    def on_stored(self, job: Job, *, fenced: bool = False) -> list[Effect]:
        """`fenced`: the row is somebody else's by now."""
        return _effects(self._core.on_stored(job._job, fenced))

    def on_answered(self, job: Job) -> None:
        self._core.on_answered(job._job)

    def on_released(self, job: Job, released: bool) -> list[Effect]:
        return _effects(self._core.on_released(job._job, released))

    def forget(self, job: Job) -> None:
        self._core.forget(job._job)

    # Its life.

    def announce(self, to: Iterable[str], state: str, period: float) -> list[Effect]:
        heartbeat = self._core.heartbeat
        if state != env.READY:
            return _effects(heartbeat.tell(to, state, period))
        return [made for one in to for made in _effects(heartbeat.introduce(one, period))]

    def beat(self, period: float) -> list[Effect]:
        return _effects(self._core.heartbeat.beat(period))

    def suspend(self, period: float) -> list[Effect]:
        return _effects(self._core.suspend(period))

    def resume(self, period: float) -> list[Effect]:
        return _effects(self._core.resume(period))

    def drain(self, now: float, period: float) -> list[Effect]:
        return _effects(self._core.drain(now, period))

    def die(self, now: float, period: float) -> list[Effect]:
        return _effects(self._core.die(now, period))

    # What is known.

    @property
    def running(self) -> int:
        """How many jobs were taken, and have not ended."""
        return self._core.running

    @property
    def holding(self) -> int:
        """How many of its rows may still be claimed."""
        return self._core.holding

    @property
    def suspended(self) -> bool:
        return self._core.suspended

    @property
    def counts(self) -> Counter[str]:
        return self._core.counts

    def is_storing(self, job: Job) -> bool:
        """Whether the end of a job is just being stored."""
        return job._job.key in self._core._roll.ending

    def refuses(self, job: Job) -> bool:
        """Whether it was told not to begin the request under such an epoch."""
        return self._core._recent.refused(job.id) >= job.epoch


def ledger_of(worker: Any) -> str | None:
    """The digest of the ledger that a whole worker has found."""
    return worker._server.ledger  # type: ignore[no-any-return]


# Defects: what is put in the place of something that is right, as `(owner, name, made)`.


def _run_on_missing_row(before: Any) -> Any:
    def on_claim(self: Any, job: Any, claim: ledgers.Claim) -> Any:
        if claim.verdict == ledgers.MISSING:
            claim = ledgers.Claim(ledgers.GRANTED, job.epoch, None, self.identity)
        return before(self, job, claim)

    return on_claim


def _ack_first(before: Any) -> Any:
    def on_request(self: Any, request: Any, receipt: Any, *rest: Any, **options: Any) -> Any:
        return [fx.Acknowledge(receipt), *before(self, request, receipt, *rest, **options)]

    return on_request


def _redelivered_runs(before: Any) -> Any:
    def on_request(self: Any, request: Any, receipt: Any, *rest: Any, **options: Any) -> Any:
        request.redelivered = False
        return before(self, request, receipt, *rest, **options)

    return on_request


DEFECTS: Final[dict[str, tuple[tuple[Any, str, Callable[[Any], Any]], ...]]] = {
    "missing-row": ((servers.Server, "on_claim", _run_on_missing_row),),
    "ack-first": ((servers.Server, "on_request", _ack_first),),
    "redelivered-runs": ((servers.Server, "on_request", _redelivered_runs),),
}
