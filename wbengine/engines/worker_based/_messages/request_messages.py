"""REQUEST, the execution or reversion of one task, and RESPONSE, its progress or result.

Their headers are attributes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from wbengine import exceptions as exc
from wbengine._concurrency import time_limits
from wbengine._text import data_formats
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import argument_display
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)


class RequestMessage(NamedTuple):
    """One dispatch of a request. The values in `body` are encoded.

    Without `extended`, the peer is TaskFlow's: it has neither epochs nor attempts.
    """

    id: str
    reply_to: str
    body: Mapping[str, Any]
    extended: bool = True
    #: Format of the message, unchecked.
    version: Any = hd.VERSION
    epoch: int = 1
    attempt: int = 1
    #: The uuid of the flow, or "".
    flow: str = ""
    #: Digest of the ledger with the row of the request; None: it has no row.
    ledger: str | None = None
    #: Whether the engine stores the log records of the task.
    captures: bool = False
    limit: time_limits.TimeLimit = time_limits.UNLIMITED
    #: Unix time after which the task must not start. Unused with a ledger, because the clocks of
    #: two hosts may differ.
    expires: float | None = None
    redelivered: bool = False
    #: The key of the row of a task with a transaction, or "", and the highest settled attempt.
    row: str = ""
    settled: int = 0
    #: Whether the engine reads values that are stored out of line.
    stores_large: bool = False

    def to_message(
        self,
        queue: str,
        *,
        priority: int = 0,
        persistent: bool = False,
        shown_arguments: Mapping[str, Any] | None = None,
    ) -> env.Envelope:
        """Return the message for a queue.

        :param shown_arguments: arguments to display in monitors of the broker.
        """
        headers: dict[str, Any] = {
            hd.LANG: "py",
            hd.TASK: self.body["task_cls"],
            hd.ID: self.id,
            hd.RETRIES: self.attempt - 1,
        }
        if self.extended:
            headers[hd.WBE_VERSION] = self.version
            headers[hd.WBE_ATTEMPT] = self.attempt
            headers[hd.WBE_EPOCH] = self.epoch
            if self.stores_large:
                headers[hd.WBE_PAYLOADS] = 1
            if self.captures:
                headers[hd.WBE_LOGS] = 1
            if self.row:
                headers[hd.WBE_ROW] = self.row
                headers[hd.WBE_SETTLED] = self.settled
        if self.flow:
            headers[hd.ROOT_ID] = self.flow
        if self.ledger is not None:
            headers[hd.WBE_LEDGER] = self.ledger
        if self.limit is not time_limits.UNLIMITED:
            headers[hd.TIMELIMIT] = [self.limit.hard, self.limit.soft]
        if shown_arguments is not None:
            headers |= argument_display.headers(shown_arguments)
        if self.expires is not None:
            headers[hd.EXPIRES] = self.expires
        return env.Envelope(
            pr.REQUEST, self.body, queue, self.id, self.reply_to, headers, priority,
            persistent=persistent,
        )  # fmt: skip

    def version_error(self) -> exc.IncompatibleVersion | None:
        """Return an error if this release does not read the format of the request."""
        if self.version == hd.VERSION:
            return None
        text = self.version
        is_number = isinstance(text, str) and text.isdecimal() and len(text) < 10
        problem = data_formats.MESSAGE.problem(
            "the request", int(text) if is_number else repr(text)
        )
        return None if problem is None else exc.IncompatibleVersion(problem)

    @classmethod
    def from_message(cls, message: env.Envelope) -> RequestMessage:
        """Read a message with a validated body. Invalid headers get their defaults."""
        headers, number = message.headers, message.number
        ledger = str(headers[hd.WBE_LEDGER]) if hd.WBE_LEDGER in headers else None
        limit = headers.get(hd.TIMELIMIT)
        return cls(
            message.correlation_id or "",
            message.reply_to or "",
            message.body,
            hd.WBE_VERSION in headers,
            headers.get(hd.WBE_VERSION, hd.VERSION),
            number(hd.WBE_EPOCH, 1),
            number(hd.WBE_ATTEMPT, 1),
            message.text(hd.ROOT_ID) or "",
            ledger,
            hd.WBE_LOGS in headers,
            _limit(limit) if limit is not None else time_limits.UNLIMITED,
            message.seconds(hd.EXPIRES) if ledger is None else None,
            message.redelivered,
            message.text(hd.WBE_ROW) or "",
            number(hd.WBE_SETTLED, 0),
            hd.WBE_PAYLOADS in headers,
        )


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


class Death(NamedTuple):
    """Why and when a request was dead-lettered, in headers beside those of the request."""

    reason: str
    #: Queue from which workers consumed it.
    queue: str | None
    #: Unix time.
    at: float | None

    def mark(self, message: env.Envelope) -> None:
        """Add the headers to a REQUEST."""
        message.headers |= {
            hd.WBE_DEAD: self.reason,
            hd.WBE_QUEUE: self.queue or "",
            hd.WBE_TIME: self.at,
        }

    @classmethod
    def from_message(cls, message: env.Envelope) -> Death:
        return cls(
            message.text(hd.WBE_DEAD) or "",
            message.text(hd.WBE_QUEUE),
            message.seconds(hd.WBE_TIME),
        )


def revive(letter: env.Envelope, epoch: int) -> None:
    """Make a dead letter a REQUEST with a new epoch, and remove its signature."""
    dropped = (hd.WBE_DEAD, hd.WBE_QUEUE, hd.WBE_TIME, hd.WBE_SIGNATURE)
    letter.headers = {name: v for name, v in letter.headers.items() if name not in dropped}
    letter.headers[hd.WBE_EPOCH] = epoch


def _limit(value: Any) -> time_limits.TimeLimit:
    """Return the time limits of a header, which has the hard one first. Ignore invalid ones."""
    try:
        hard, soft = value
        return time_limits.read((soft, hard))
    except (TypeError, ValueError, OverflowError):
        return time_limits.UNLIMITED
