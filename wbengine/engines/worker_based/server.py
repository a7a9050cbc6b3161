"""A worker's side of the protocol, without any I/O.

`Server` takes requests, the ledger's verdicts, and what tasks did; it returns *effects*: what the
worker should do next, in that order.  It owns no thread, no lock, no socket and no clock.

Every request that it takes on ends in exactly one terminal answer, whatever its task does; repeats
of the request get that same answer again, and nothing else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine.engines.worker_based import asking, recent
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)


class Job:
    """One request that this worker has taken."""

    __slots__ = (
        "asked",
        "endpoint",
        "epoch",
        "id",
        "ledger",
        "listener",
        "ours",
        "receipt",
        "redelivered",
        "refusal",
        "reply_to",
        "running",
        "seq",
        "unit",
    )

    def __init__(self, request: env.Envelope, receipt: Any) -> None:
        self.id = request.correlation_id or ""
        self.epoch = request.number(env.WBE_EPOCH, 1)
        self.reply_to = request.reply_to or ""
        self.ours = request.ours
        self.ledger = env.WBE_LEDGER in request.headers
        self.redelivered = request.redelivered
        self.receipt = receipt
        self.seq = 0
        self.unit: pr.WorkUnit | None = None
        self.endpoint: endpoints.Endpoint | None = None
        #: Why it cannot be run here; it is answered so by whoever is granted it.
        self.refusal: BaseException | None = None
        #: Like the receipt, the shell's own: the RUNNING that may still be taken back.
        self.running: Any = None
        #: The highest number under which an engine asked for it, and who did so when it had ended.
        #: Who sent it did so under its epoch, or a lower number: only later ones may ask.
        self.asked = self.epoch
        self.listener: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.epoch


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask the ledger for `(job.id, job.epoch)`, and report to `on_claim`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Run:
    """Start the job's task; report to `on_event` and `on_finished`."""

    job: Job


@dataclass(frozen=True, slots=True)
class Reply:
    """Publish an answer.  `terminal`: acknowledge the job's receipt once it is published."""

    job: Job | None
    envelope: env.Envelope
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Store the answer in the ledger before it is published, and report to `on_stored`."""

    job: Job
    frozen: bytes


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Nothing is to be done for this message."""

    receipt: Any


Effect = Claim | Run | Reply | Finish | Acknowledge


class Server:
    """What one worker process does about messages.  Its owner holds a lock around every call.

    `queues` maps the topics it serves to the queues it takes their requests from.
    """

    def __init__(
        self,
        identity: str,
        queues: Mapping[str, str],
        offered: Mapping[str, endpoints.Endpoint],
        slots: int,
        *,
        ledger: str | None = None,
        max_message_size: int = env.MAX_MESSAGE_SIZE,
    ) -> None:
        self.identity = identity
        self._queues = dict(queues)
        self._endpoints = dict(offered)
        self._names = sorted(offered)
        self._slots = slots
        #: Digest of the ledger that this worker holds.
        self.ledger = ledger
        self._max_size = max_message_size
        self._jobs: dict[tuple[str, int], Job] = {}
        # Ended, and the ledger is just being told so.
        self._ending: dict[tuple[str, int], tuple[Job, env.Envelope]] = {}
        self._recent = recent.Recent()
        #: How many tasks ended, and how many messages were not run, by what became of them.
        self.counts: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Number of jobs that were taken and have not ended."""
        return len(self._jobs)

    # Requests.

    def on_request(self, request: env.Envelope, receipt: Any) -> list[Effect]:
        """A validated REQUEST: claim it, refuse it with a failure, or ignore it."""
        for name in (request.reply_to, request.correlation_id):
            if not _names.is_label(name or ""):
                LOG.warning("refused a request: %.200r is no name to answer to", name)
                self.counts["unanswerable"] += 1
                return [Acknowledge(receipt)]
        job = Job(request, receipt)
        try:
            self._check_ledger(job, request)
        except exc.NotFound as error:
            # There is no row to finish: whoever is granted the request elsewhere answers as well.
            self.counts["refused"] += 1
            return [Reply(job, self._failed(job, ft.Failure.from_exception(error)), terminal=True)]
        if job.key in self._jobs or job.key in self._ending:
            self.counts["repeated"] += 1
            before = self._jobs.get(job.key)
            if before is None or before.reply_to != job.reply_to:
                return [self._elsewhere(job)]
            return [Acknowledge(receipt)]
        try:
            self._check_version(request)
            job.unit = pr.Request.decode(request.body, env.unpacker(request.ours))
            job.endpoint = self._find(job.unit.task_cls)
        except Exception as error:  # whatever a body does, it is answered
            job.refusal = error
        if not job.ledger:
            return self._without_ledger(job)
        self._jobs[job.key] = job
        return [Claim(job)]

    @staticmethod
    def _check_version(request: env.Envelope) -> None:
        version = request.headers.get(env.WBE_VERSION, env.VERSION)
        if version != env.VERSION:
            raise exc.IncompatibleVersion(
                f"this worker speaks version {env.VERSION} of the protocol, the request is of"
                f" version {str(version)[:80]}"
            )

    def _find(self, task_cls: str) -> endpoints.Endpoint:
        found = self._endpoints.get(task_cls)
        if found is None:
            raise exc.NotFound(
                f"worker {self.identity} does not offer {task_cls}"
                f"{_names.hint(task_cls, self._names)}; it offers: {', '.join(self._names[:8])}"
            )
        return found

    def _check_ledger(self, job: Job, request: env.Envelope) -> None:
        named = request.headers.get(env.WBE_LEDGER)
        if job.ledger and named != self.ledger:
            raise exc.NotFound(
                f"worker {self.identity} does not hold the ledger {str(named)[:120]} that the"
                f" request was opened in (it holds {self.ledger or 'none'}): give engine and"
                f" worker the same"
            )

    def _without_ledger(self, job: Job) -> list[Effect]:
        seen = self._recent.epoch(job.id)
        if job.epoch <= seen:
            self.counts["repeated"] += 1
            known = self._recent.answer(job.id) if job.epoch == seen else None
            if known is None:
                return [Acknowledge(job.receipt)]
            return [Reply(job, replace(known, routing_key=job.reply_to), terminal=True)]
        self._recent.note(job.id, job.epoch)
        self._jobs[job.key] = job
        if job.redelivered:
            job.refusal = exc.WorkerLost(
                "the request was given to a worker before, which went away, and no ledger knows"
                " whether it was run"
            )
        return self._start(job)

    def on_claim(self, job: Job, claim: ledgers.Claim) -> list[Effect]:
        """What the ledger said."""
        if claim.verdict == ledgers.GRANTED:
            return self._start(job)
        self._jobs.pop(job.key, None)
        self.counts[claim.verdict] += 1
        if claim.verdict == ledgers.DONE and claim.result is not None:
            known = env.thaw(claim.result, job.id, job.reply_to)
            return [Reply(job, known, terminal=True)]
        if claim.verdict == ledgers.HELD and claim.holder == self.identity:
            # It was claimed here, and nothing here knows of it: what became of it nobody knows.
            lost = exc.WorkerLost(f"worker {self.identity} lost track of request {job.id}")
            answer = self._failed(job, ft.Failure.from_exception(lost))
            return [Reply(job, answer, terminal=True)]
        if claim.verdict in (ledgers.HELD, ledgers.STALE):
            return [self._elsewhere(job)]
        return [Acknowledge(job.receipt)]

    def _elsewhere(self, job: Job) -> Effect:
        """Somebody has it, who may answer another engine: who sent this one should look."""
        if not job.ours:
            return Acknowledge(job.receipt)
        return Reply(job, self._response(job, pr.PENDING, {}, asked=0), terminal=True)

    def on_ask(self, asked: Iterable[tuple[str, int]], reply_to: str | None) -> list[Effect]:
        """An engine asks for requests that another one sent: it is answered from now on.

        Of what runs here it is told so, of what ended how, as far as that is remembered.  Of the
        rest, where there is a ledger, that it does not run here: what ended is in the ledger then.
        """
        if reply_to is None or not _names.is_label(reply_to):
            LOG.warning("refused a question: %.200r is no name to answer to", reply_to)
            return []
        jobs: dict[str, list[Job]] = {}
        for job in (*(job for job, _ in self._ending.values()), *self._jobs.values()):
            jobs.setdefault(job.id, []).append(job)
        effects: list[Effect] = []
        for request_id, number in asked:
            found, known = jobs.get(request_id), self._recent.answer(request_id)
            if found is not None:
                effects += [e for job in found for e in self._readdress(job, reply_to, number)]
            elif known is not None:
                effects.append(Reply(None, replace(known, routing_key=reply_to)))
            elif self.ledger is not None:
                answer = asking.not_here(request_id, number, self.identity, reply_to)
                effects.append(Reply(None, answer))
        return effects

    def _readdress(self, job: Job, reply_to: str, number: int) -> list[Effect]:
        if number < job.asked:
            return []  # by an engine that lost its flow to another since
        job.asked = number
        if job.key in self._ending:
            job.listener = reply_to
            return []
        job.reply_to = reply_to
        return [Reply(job, self._response(job, pr.RUNNING, {}, asked=number))]

    def on_stored(self, job: Job) -> list[Effect]:
        """The ledger was told that a job ended, or cannot be: who asked meanwhile is answered."""
        _, answer = self._ending.pop(job.key)
        if job.listener is None:
            return []
        return [Reply(None, replace(answer, routing_key=job.listener))]

    def forget(self, job: Job) -> None:
        """The ledger could not be asked: the request goes back to where it came from."""
        self._jobs.pop(job.key, None)
        self.counts["returned"] += 1

    def _start(self, job: Job) -> list[Effect]:
        if job.refusal is not None:
            del self._jobs[job.key]
            answer = self._failed(job, ft.Failure.from_exception(job.refusal))
            return self._end(job, answer, "refused")
        return [Reply(job, self._response(job, pr.RUNNING, {})), Run(job)]

    # What tasks do.

    def on_event(self, job: Job, event_type: str, details: Mapping[str, Any]) -> list[Effect]:
        """A running task told something; what cannot be sent is logged and left out."""
        if job.key not in self._jobs:
            return []
        try:
            if not isinstance(event_type, str):
                raise exc.InvalidFormat(f"{event_type!r:.80} is not the name of an event")
            packed = env.packer(job.ours)(dict(details), "details")
            data = {"event_type": event_type, "details": packed}
            event = self._response(job, pr.EVENT, data)
            env.check_size(event, _name(job), "an event", self._max_size)
        except Exception as error:  # a task that tells nonsense must not be hurt by it
            LOG.warning("an event of request %s cannot be sent: %s", job.id, error)
            return []
        return [Reply(job, event)]

    def on_finished(self, job: Job, outcome: invocation.Outcome) -> list[Effect]:
        """The task ended: exactly one terminal answer."""
        if self._jobs.pop(job.key, None) is None:
            return []
        value = outcome.value
        if not outcome.failed:
            try:
                data = {"result": env.packer(job.ours)(value, "result")}
                answer = self._response(job, pr.SUCCESS, data, outcome)
                env.check_size(answer, _name(job), "the result", self._max_size)
                return self._end(job, answer)
            except Exception as error:  # whatever a result does, there is an answer
                value = ft.Failure.from_exception(error)
        return self._end(job, self._failed(job, value, outcome))

    def _failed(
        self, job: Job, failure: ft.Failure, outcome: invocation.Outcome | None = None
    ) -> env.Envelope:
        answer = self._response(job, pr.FAILURE, {"result": pr.failure_to_dict(failure)}, outcome)
        if len(answer.encoded) > self._max_size:
            short = exc.TooLarge(
                f"the failure of task {_name(job)!r} is too large to send"
                f" ({len(answer.encoded):,} bytes): {failure.exception_str[:1000]}"
            )
            data = {"result": ft.Failure.from_exception(short).to_dict(include_args=False)}
            answer = self._response(job, pr.FAILURE, data, outcome)
        return answer

    def _end(self, job: Job, answer: env.Envelope, how: str | None = None) -> list[Effect]:
        self.counts[how or answer.body["state"]] += 1
        reply = Reply(job, answer, terminal=True)
        if job.ledger:
            self._ending[job.key] = job, answer
            return [Finish(job, env.freeze(answer)), reply]
        self._recent.keep(job.id, job.epoch, answer)
        return [reply]

    def _response(
        self,
        job: Job,
        state: str,
        data: Mapping[str, Any],
        outcome: invocation.Outcome | None = None,
        asked: int | None = None,
    ) -> env.Envelope:
        job.seq += 1
        headers: dict[str, Any] = {
            env.WBE_VERSION: env.VERSION,
            env.WBE_WORKER: self.identity,
            env.WBE_EPOCH: job.epoch,
            env.WBE_SEQ: job.seq,
        }
        if outcome is not None and outcome.started is not None:
            headers[env.WBE_STARTED] = outcome.started
            headers[env.WBE_ENDED] = outcome.ended
        if asked is not None:
            headers[env.WBE_ASK] = asked
        return env.Envelope(
            pr.RESPONSE,
            {"state": state, "data": data},
            routing_key=job.reply_to,
            correlation_id=job.id,
            headers=headers,
        )

    # What others should know of this worker.

    def on_notify(self, question: env.Envelope, period: float) -> list[Effect]:
        """Somebody asks who is there."""
        if question.reply_to is None:
            return []
        try:
            _names.check_label("reply_to", question.reply_to)
        except ValueError as error:
            LOG.warning("refused a question: %s", error)
            return []
        return self.announce([question.reply_to], env.READY, period)

    def announce(
        self, listeners: Iterable[str], state: str, period: float | None = None
    ) -> list[Effect]:
        """Tell `listeners` (routing keys) who this is, once for each topic."""
        return [
            Reply(None, self._notify(topic, queue, listener, state, period))
            for listener in listeners
            for topic, queue in self._queues.items()
        ]

    def beat(self, period: float) -> list[Effect]:
        """Tell the engines whose requests run here that they still do."""
        engines = dict.fromkeys(job.reply_to for job in self._jobs.values() if job.ours)
        return self.announce(engines, env.BEAT, period)

    def _notify(
        self, topic: str, queue: str, listener: str, state: str, period: float | None
    ) -> env.Envelope:
        headers: dict[str, Any] = {
            env.WBE_VERSION: env.VERSION,
            env.WBE_WORKER: self.identity,
            env.WBE_STATE: state,
            env.WBE_QUEUE: queue,
            env.WBE_SLOTS: self._slots,
            env.WBE_RUNNING: len(self._jobs),
        }
        if period is not None:
            headers[env.WBE_PERIOD] = period
        tasks: Sequence[str] = self._names if state == env.READY else ()
        return env.Envelope(
            pr.NOTIFY,
            {"topic": topic, "tasks": list(tasks)},
            routing_key=listener,
            headers=headers,
        )


def _name(job: Job) -> str:
    return job.unit.task_name if job.unit is not None else job.id
