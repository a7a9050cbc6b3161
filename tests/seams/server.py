"""The core of a worker process: its reactions to messages, without threads, sockets, pool or
ledger.

Methods receive events and return effects: the next actions of the worker, in order. The performer
of an effect reports its result to the method that the docstring of the effect names.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.seams import ledgers
from wbengine._calls import invocation
from wbengine.engines.worker_based import endpoint
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import server as servers
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import notices, worker_commands
from wbengine.engines.worker_based._messages.request_messages import Reply, RequestMessage
from wbengine.engines.worker_based._worker_side import server_effects as fx

#: Task classes that a worker offers.
Offer = Mapping[str, Any]


def offer(classes: Iterable[Any]) -> Offer:
    """Return an offer that many workers can share."""
    return endpoint.endpoints_of(list(classes))


def queue_name(topic: str, tasks: Iterable[str]) -> str:
    """Return a readable name of the queue of the workers that offer tasks on a topic."""
    return f"{topic}.{'-'.join(sorted(name.rpartition('.')[2] for name in tasks))}"


class Job:
    """A request that the worker accepted. Two objects for the same request are equal."""

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
        """Return whether it has a row in the ledger."""
        return self._job.ledger  # type: ignore[no-any-return]

    @property
    def task(self) -> str:
        """Return the name of its task class."""
        return self._job.unit.task_cls  # type: ignore[no-any-return]

    @property
    def arguments(self) -> Mapping[str, Any]:
        return self._job.unit.arguments  # type: ignore[no-any-return]

    def submitted(self, now: float) -> None:
        """Record when the pool received the task."""
        self._job.began = now

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._job is other._job

    def __hash__(self) -> int:
        return hash(self._job)

    def __repr__(self) -> str:
        return repr(self._job)


# Effects.


@dataclass(slots=True)
class Claim:
    """Claim the row: `on_claim`, or `forget` if the ledger is unreachable."""

    job: Job


@dataclass(slots=True)
class Run:
    """Start the task: `on_event`, `on_finished`; or `on_unstarted` if it waited too long."""

    job: Job


@dataclass(slots=True)
class Check:
    """Read the row of a job that waited for long: `on_checked`."""

    job: Job


@dataclass(slots=True)
class Interrupt:
    """Cancel the task."""

    job: Job


@dataclass(slots=True)
class PublishNotice:
    """Publish a message of no job: a heartbeat, or a notice that a request is missing."""

    message: env.Envelope


@dataclass(slots=True)
class PublishEvent:
    """Publish a message of a job. `unhurried`: RUNNING, which is not needed after the end."""

    job: Job
    message: env.Envelope
    unhurried: bool


@dataclass(slots=True)
class Answer:
    """Publish the result of a job, then acknowledge its message: `on_answered`."""

    job: Job
    message: env.Envelope


@dataclass(slots=True)
class Finish:
    """Store the result of a job in the ledger, then publish it: `on_stored`, `on_answered`."""

    job: Job
    message: env.Envelope


@dataclass(slots=True)
class Release:
    """Release the row as if it had not been claimed: `on_released`."""

    job: Job


@dataclass(slots=True)
class Return:
    """Requeue the request; `fresh`: as a new message."""

    job: Job
    fresh: bool


#: Effects without an adapter: accept no new requests and finish the running ones; acknowledge a
#: message.
Drain, Acknowledge = fx.Drain, fx.Acknowledge

Effect = (
    Claim | Run | Check | Interrupt | PublishNotice | PublishEvent | Answer | Finish | Release
    | Return | Drain | Acknowledge
)  # fmt: skip


def _effect(effect: fx.Effect) -> Effect:
    match effect:
        case fx.Reply(None, message):
            return PublishNotice(message)
        case fx.Reply(job, message, True):
            return Answer(Job(job), message)
        case fx.Reply(job, message):
            return PublishEvent(Job(job), message, effect.deferrable)
        case fx.Acknowledge() | fx.Drain():
            return effect
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
        case fx.Return(job):
            return Return(Job(job), not job.ledger)
    raise AssertionError(f"nobody performs {effect!r}")


def _effects(effects: Iterable[fx.Effect]) -> list[Effect]:
    return [_effect(each) for each in effects]


def _adapted(value: Any) -> Any:
    """Replace jobs and effects of the core in a result."""
    if isinstance(value, list | tuple):
        return type(value)(_adapted(each) for each in value)
    if isinstance(value, fx.Effect):
        return _effect(value)
    return Job(value) if isinstance(value, servers.Job) else value


def _call(method: Callable[..., Any], *values: Any, **options: Any) -> Any:
    plain = (each._job if isinstance(each, Job) else each for each in values)
    return _adapted(method(*plain, **options))


class Server:
    """A worker. `ledger`: the digest of its ledger."""

    def __init__(
        self,
        name: str,
        topics: Iterable[str],
        offered: Offer,
        slots: int,
        ledger: str | None = None,
        **options: Any,
    ) -> None:
        self._core = servers.Server(name, topics, offered, slots, **options)
        self._core.ledger = ledger

    def __getattr__(self, name: str) -> Any:
        """Return another attribute of the core, with jobs and effects of this module."""
        value = getattr(self._core, name)
        return functools.partial(_call, value) if callable(value) else _adapted(value)

    # Messages.

    def on_request(
        self, message: env.Envelope, receipt: Any, now: float, *, claimed: bool = False
    ) -> list[Effect]:
        """Process a request. `now` is in unix seconds. `claimed`: the broker claimed it, too."""
        return _effects(
            self._core.on_request(
                RequestMessage.from_message(message), receipt, now, claimed=claimed
            )
        )

    def hear(self, message: env.Envelope, period: float, *, in_person: bool) -> list[Effect]:
        """Process a question, an order or a discovery message of an engine.

        :param period: the heartbeat period of the worker.
        """
        if message.type == worker_commands.ASK:
            worker_commands.SCHEMAS[worker_commands.ASK].check(message.body)
            ask = worker_commands.Ask.from_message(message)
            return _effects(self._core.on_ask(ask.requests, ask.reply_to, in_person))
        if message.type == worker_commands.CANCEL:
            worker_commands.SCHEMAS[worker_commands.CANCEL].check(message.body)
            cancellation = worker_commands.Cancellation.from_message(message)
            return _effects(self._core.on_cancel(cancellation.requests))
        assert message.type == pr.NOTIFY, message
        return _effects(self._core.on_query(message.reply_to, period))

    # Results of effects.

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

    def on_stored(self, job: Job, *, fenced: bool = False, sent: bool = False) -> list[Effect]:
        """Process the end of `Finish`; `fenced`: another process owns the row."""
        return _effects(self._core.on_stored(job._job, fenced, sent=sent))

    def on_answered(self, job: Job) -> None:
        self._core.on_answered(job._job)

    def on_released(self, job: Job, released: bool) -> list[Effect]:
        return _effects(self._core.on_released(job._job, released))

    def forget(self, job: Job) -> None:
        self._core.forget(job._job)

    # Life cycle.

    def announce(self, to: Iterable[str], state: str, period: float) -> list[Effect]:
        heartbeat = self._core.heartbeat
        if state != notices.READY:
            return _effects(heartbeat.create(to, state, period))
        return [effect for one in to for effect in _effects(heartbeat.announce_tasks(one, period))]

    def beat(self, period: float) -> list[Effect]:
        return _effects(self._core.heartbeat.beat(period))

    def suspend(self, period: float) -> list[Effect]:
        return _effects(self._core.suspend(period))

    def resume(self, period: float) -> list[Effect]:
        return _effects(self._core.resume(period))

    def drain(self, now: float, period: float) -> list[Effect]:
        return _effects(self._core.drain(now, period))

    def die(self, now: float, period: float) -> list[Effect]:
        return _effects(self._core.shut_down(now, period))

    # State.

    @property
    def running(self) -> int:
        """Return the number of accepted jobs that have not ended."""
        return self._core.running

    @property
    def holding(self) -> int:
        """Return the number of rows that can still be claimed."""
        return self._core.holding

    @property
    def suspended(self) -> bool:
        return self._core.suspended

    @property
    def counts(self) -> Counter[str]:
        return self._core.counts

    def is_storing(self, job: Job) -> bool:
        """Return whether the result of a job is being stored."""
        return job._job.key in self._core._job_table.ending

    def refuses(self, job: Job) -> bool:
        """Return whether an order forbids the request with this epoch."""
        return self._core._recent.refused(job.id) >= job.epoch


def limit_memory(patch: pytest.MonkeyPatch, replies: int, size: int) -> None:
    """Limit the number and the total size of replies that a worker without a ledger remembers."""
    patch.setattr(servers, "MAX_REMEMBERED", replies)
    patch.setattr(servers, "MAX_REMEMBERED_BYTES", size)


def request(
    id: str,
    reply_to: str | None,
    body: Mapping[str, Any],
    headers: Mapping[str, Any],
    *,
    redelivered: bool = False,
) -> env.Envelope:
    """Return a request as a broker delivers it."""
    return env.Envelope(pr.REQUEST, body, "", id, reply_to, dict(headers), redelivered=redelivered)


def content(message: env.Envelope) -> Any:
    """Return the decoded value or failure of a reply, or the details of an event."""
    pr.Response.validate(json.loads(message.encoded))
    reply = Reply.from_message(message)
    if reply.state in (pr.SUCCESS, pr.FAILURE):
        return reply.value()
    return (reply.data["event_type"], reply.details()) if reply.state == pr.EVENT else reply.data


def stored(headers: Mapping[str, Any], body: Mapping[str, Any]) -> bytes:
    """Return a reply as ledgers store it."""
    return env.freeze(env.Envelope(pr.RESPONSE, body, headers=dict(headers)))


outcome = invocation.Outcome


def ledger_of(worker: Any) -> str | None:
    """Return the digest of the ledger of a complete worker."""
    return worker._server.ledger  # type: ignore[no-any-return]


# Defects: replacements for correct code, as `(owner, name, made)`.


def _run_on_missing_row(before: Any) -> Any:
    def on_claim(self: Any, job: Any, claim: ledgers.Claim) -> Any:
        if claim.verdict == ledgers.MISSING:
            claim = ledgers.Claim(ledgers.GRANTED, job.epoch, None, self.identity)
        return before(self, job, claim)

    return on_claim


def _ack_first(before: Any) -> Any:
    def on_request(self: Any, request: Any, receipt: Any, *more: Any, **options: Any) -> Any:
        return [fx.Acknowledge(receipt), *before(self, request, receipt, *more, **options)]

    return on_request


def _redelivered_runs(before: Any) -> Any:
    def on_request(self: Any, request: Any, receipt: Any, *more: Any, **options: Any) -> Any:
        return before(self, request._replace(redelivered=False), receipt, *more, **options)

    return on_request


DEFECTS: Final[dict[str, tuple[tuple[Any, str, Callable[[Any], Any]], ...]]] = {
    "missing-row": ((servers.Server, "on_claim", _run_on_missing_row),),
    "ack-first": ((servers.Server, "on_request", _ack_first),),
    "redelivered-runs": ((servers.Server, "on_request", _redelivered_runs),),
}
