"""Effects that a `RequestTracker` returns. Its owner performs the I/O."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from wbengine._calls import invocation
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import worker_commands
from wbengine.engines.worker_based._requests.request_state import OfRequest, TrackedRequest
from wbengine.types import failure as ft


@dataclass(slots=True)
class Dispatch(OfRequest):
    """Open the row `(tracked.id, epoch)` and publish `envelope`, unless `epoch` is outdated.

    Set `tracked.opened`, then set `tracked.sent_at` to the time of publishing. Call `on_unrouted`
    if the broker had no queue. If it is unknown whether the broker has the message, publish it
    again with a ledger; without one, call `on_unconfirmed`.
    """

    epoch: int
    envelope: env.Envelope


@dataclass(slots=True)
class Settle(OfRequest):
    """Report the outcome to the submitter: `done(invocation, outcome)`."""

    outcome: invocation.Outcome


@dataclass(slots=True)
class ForwardEvent(OfRequest):
    """Forward an event of a running task."""

    event_type: str
    details: dict[str, Any]


@dataclass(slots=True)
class Record(OfRequest):
    """Record something in the store, with a method of the sink of the task's events.

    `began`: a worker has started the task; `taken`: a worker has it, possibly without a free slot;
    `incident`: a worker was lost with the task, or the task is resent.
    """

    method: str
    arguments: tuple[Any, ...]

    def report(self) -> None:
        getattr(self.tracked.invocation.events, self.method)(*self.arguments)


@dataclass(slots=True)
class Acknowledge:
    receipt: Any


class Revoke(OfRequest):
    """Remove the row if no worker has claimed it, and report `RowRevoked`."""


@dataclass(slots=True)
class Inspect(OfRequest):
    """Read the row and report `RowRead` with `lost`, the worker whose loss is the reason."""

    lost: str | None = None


@dataclass(slots=True)
class Reopen(OfRequest):
    """Move the row of a repeatable task from its lost owner back to OPEN.

    Report `RowReopened`, with the reply if the request is done. If the ledger is unavailable, the
    row is read again later.
    """

    epoch: int


@dataclass(slots=True)
class Conclude(OfRequest):
    """Complete a request with `failure` in place of its lost owner, and report `RowConcluded`.

    An owner that was only frozen then does not start the request later. If the ledger is
    unavailable, or the row has another owner, the row is read again later.
    """

    holder: str
    failure: ft.Failure


@dataclass(slots=True)
class MoveToDeadLetters:
    """Move a request to the dead letters: it may have caused the loss of all its workers."""

    letter: env.Envelope


@dataclass(slots=True)
class Ask:
    """Publish an ask (see `messages.worker_commands`)."""

    message: env.Envelope


@dataclass(slots=True)
class Cancel:
    """Publish a cancellation of requests (see `messages.worker_commands`).

    If they all belong to one `flow`, and another engine owns it, publish nothing.
    """

    message: env.Envelope
    flow: str | None = None


@dataclass(slots=True)
class Drop:
    """Remove the row of a request whose outcome is saved."""

    request_id: str


def record(tracked: TrackedRequest, method: str, *arguments: Any) -> list[Effect]:
    """Return the effect `Record`; none if the sink has no such method."""
    can_record = hasattr(tracked.invocation.events, method)
    return [Record(tracked, method, arguments)] if can_record else []


Effect = (
    Dispatch | Settle | ForwardEvent | Record | Acknowledge | Revoke | Inspect | Reopen | Conclude
    | MoveToDeadLetters | Ask | Cancel | Drop
)  # fmt: skip


class Asks:
    """Asks to workers about requests, collected during an event and sent in few messages."""

    def __init__(self) -> None:
        #: Whether `take` has anything to send.
        self.pending = False
        # By recipient. Asks in queues have the priority of their requests.
        self._asked: dict[tuple[str, int | None], dict[str, TrackedRequest]] = {}
        # Ids with the highest epoch of requests that no worker may start any more.
        self._refused: list[worker_commands.Named] = []

    def ask(self, tracked: TrackedRequest, to: str) -> None:
        self._asked.setdefault((to, None), {})[tracked.id] = tracked
        self.pending = True

    def ask_queue(self, tracked: TrackedRequest) -> None:
        """Add an ask in the queue: a reply proves that all earlier messages were consumed."""
        assert tracked.queue is not None
        recipient = tracked.queue, tracked.broker_priority
        self._asked.setdefault(recipient, {})[tracked.id] = tracked
        self.pending = True

    def refuse(self, tracked: TrackedRequest) -> None:
        self._refused.append((tracked.id, tracked.next_number - 1))
        self.pending = True

    def take(self, reply_to: str) -> list[Effect]:
        """Return the messages, without requests that were found meanwhile."""
        asked, self._asked = self._asked, {}
        refused, self._refused = self._refused, []
        self.pending = False
        effects: list[Effect] = []
        for (to, priority), requests in asked.items():
            named = [(each.id, each.number) for each in requests.values() if each.in_doubt]
            for ask in worker_commands.asks(named, to, reply_to):
                if priority is not None:
                    ask = dataclasses.replace(ask, priority=priority, persistent=True)
                effects.append(Ask(ask))
        messages = worker_commands.cancellations(refused, env.ALL_WORKERS)
        return effects + [Cancel(message) for message in messages]
