"""RESPONSE: the progress or the result of one request, with its headers as attributes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._calls import invocation
    from wbengine.engines.worker_based._worker_side.jobs import Job

LOG = logging.getLogger(__name__)


class Reply(NamedTuple):
    """A reply of a worker. The values in `data` are encoded.

    Without `extended`, the peer is TaskFlow's, and there are no headers.
    """

    request_id: str
    state: str
    data: Mapping[str, Any]
    extended: bool = True
    worker: str | None = None
    #: None: the epoch is unknown.
    epoch: int | None = None
    #: Number of this reply among those of its epoch, from 1; 0: the peer does not number them.
    seq: int = 0
    #: Number of the ask that this reply answers: 0 if it reports without an ask, None if
    #: it is a usual reply.
    ask_number: int | None = None
    #: Unix times of the task on the clock of the worker.
    started_at: float | None = None
    ended_at: float | None = None
    #: Whether no worker completed the request, and its effects are unknown.
    is_lost: bool = False
    #: Routing key of the engine; "" if the reply was read from a ledger.
    to: str = ""

    def to_message(self) -> env.Envelope:
        headers: dict[str, Any] = {}
        if self.extended:
            headers[hd.WBE_VERSION] = hd.VERSION
            if self.worker is not None:
                headers[hd.WBE_WORKER] = self.worker
            if self.epoch is not None:
                headers[hd.WBE_EPOCH] = self.epoch
            if self.seq:
                headers[hd.WBE_SEQ] = self.seq
            if self.started_at is not None:
                headers[hd.WBE_STARTED] = self.started_at
            if self.ended_at is not None:
                headers[hd.WBE_ENDED] = self.ended_at
            if self.ask_number is not None:
                headers[hd.WBE_ASK] = self.ask_number
            if self.is_lost:
                headers[hd.WBE_LOST] = 1
        body = {"state": self.state, "data": self.data}
        return env.Envelope(pr.RESPONSE, body, self.to, self.request_id, None, headers)

    @classmethod
    def from_message(cls, message: env.Envelope) -> Reply:
        """Read a message with a validated body. Invalid headers get their defaults."""
        headers, state = message.headers, message.body["state"]
        if hd.WBE_VERSION not in headers:
            return cls(
                message.correlation_id or "", state, message.body["data"], False,
                to=message.routing_key,
            )  # fmt: skip
        number, epoch = message.number, message.number(hd.WBE_EPOCH, -1)
        return cls(
            message.correlation_id or "",
            state,
            message.body["data"],
            True,
            message.text(hd.WBE_WORKER),
            epoch if epoch >= 0 else None,
            number(hd.WBE_SEQ),
            number(hd.WBE_ASK) if hd.WBE_ASK in headers else None,
            message.seconds(hd.WBE_STARTED) if hd.WBE_STARTED in headers else None,
            message.seconds(hd.WBE_ENDED) if hd.WBE_ENDED in headers else None,
            state == pr.FAILURE and hd.WBE_LOST in headers,
            message.routing_key,
        )

    def value(self) -> Any:
        """Return the value or failure of a terminal reply; a failure if it cannot be decoded."""
        result = self.data["result"]
        try:
            if self.state == pr.FAILURE:
                return ft.Failure.from_dict(result)
            return env.unpacker(self.extended)(result)
        except Exception as error:
            return ft.Failure.from_exception(error)

    def details(self) -> dict[str, Any] | None:
        """Return the details of an event, or None if they cannot be decoded."""
        try:
            details = env.unpacker(self.extended)(self.data["details"])
        except exc.InvalidFormat as error:
            LOG.warning("an event of request %s cannot be read: %s", self.request_id, error)
            return None
        return details if isinstance(details, dict) else None


class ReplyFactory:
    """Creates the replies of one worker. `max_size` limits the encoded body, in bytes."""

    def __init__(self, identity: str, max_size: int) -> None:
        self._identity = identity
        self._max_size = max_size

    def running(self, job: Job) -> env.Envelope:
        job.seq += 1
        reply = Reply(
            job.id, pr.RUNNING, {}, job.extended, self._identity, job.epoch, job.seq,
            to=job.reply_to,
        )  # fmt: skip
        return reply.to_message()

    def report(
        self, job: Job, state: str, number: int, started_at: float | None = None
    ) -> env.Envelope:
        """Return a reply to the ask with this number (0: without an ask).

        RUNNING: this worker has the request, and runs it since `started_at` unless that is None.
        PENDING: another worker has claimed the request.
        """
        job.seq += 1
        reply = Reply(
            job.id, state, {}, job.extended, self._identity, job.epoch, job.seq, number,
            started_at, to=job.reply_to,
        )  # fmt: skip
        return reply.to_message()

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
        reply = self._make(job, pr.SUCCESS, data, outcome)
        env.check_size(reply, job.name, "the result", self._max_size)
        return reply

    def failed(
        self,
        job: Job,
        failure: ft.Failure,
        outcome: invocation.Outcome | None = None,
        *,
        lost: bool = False,
    ) -> env.Envelope:
        """Return a FAILURE. `lost` marks a task whose effects are unknown."""
        data = {"result": pr.failure_to_dict(failure, job.extended)}
        reply = self._make(job, pr.FAILURE, data, outcome, lost=lost)
        if len(reply.encoded) > self._max_size:
            too_large = exc.TooLarge(
                f"the failure of task {job.name!r} is too large to send"
                f" ({len(reply.encoded):,} bytes): {failure.exception_str[:1000]}"
            )
            data = {"result": ft.Failure.from_exception(too_large).to_dict(include_args=False)}
            reply = self._make(job, pr.FAILURE, data, outcome, lost=lost)
        return reply

    def _make(
        self,
        job: Job,
        state: str,
        data: Mapping[str, Any],
        outcome: invocation.Outcome | None = None,
        *,
        lost: bool = False,
    ) -> env.Envelope:
        job.seq += 1
        started, ended = (None, None) if outcome is None else (outcome.started, outcome.ended)
        reply = Reply(
            job.id, state, data, job.extended, self._identity, job.epoch, job.seq, None,
            started, ended, lost, job.reply_to,
        )  # fmt: skip
        return reply.to_message()
