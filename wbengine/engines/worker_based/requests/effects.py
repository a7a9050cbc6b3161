"""What a `RequestTracker` asks of whoever has sockets, clocks and a ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine import invocation
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.types import failure as ft


@dataclass(slots=True)
class Dispatch:
    """Open the row `(tracked.id, epoch)`, set `tracked.opened`, then publish `envelope`, at which
    `tracked.sent_at` is set to the time.

    Report to `on_unrouted` when the broker had no queue for it; and, where there is no ledger, to
    `on_unconfirmed` when it is not known whether the broker has it (with one, publish it again).

    All of it only while `tracked.live` and `tracked.epoch == epoch`.
    """

    tracked: TrackedRequest
    epoch: int
    envelope: env.Envelope


@dataclass(slots=True)
class Settle:
    """Tell whoever submitted it: `done(invocation, outcome)`."""

    tracked: TrackedRequest
    outcome: invocation.Outcome


@dataclass(slots=True)
class Tell:
    """Pass on what a running task told."""

    tracked: TrackedRequest
    event_type: str
    details: dict[str, Any]


@dataclass(slots=True)
class Began:
    """Let those know who look at the store that a worker has begun a task: `tell` them."""

    tracked: TrackedRequest
    worker: str

    def tell(self) -> None:
        events: Any = self.tracked.invocation.events
        events.began(self.worker)


@dataclass(slots=True)
class Taken:
    """Let those know who look at the store that a worker has a task, for which it may have no slot
    free yet: `tell` them.
    """

    tracked: TrackedRequest
    worker: str

    def tell(self) -> None:
        events: Any = self.tracked.invocation.events
        events.taken(self.worker)


@dataclass(slots=True)
class Incident:
    """Have it kept with the flow that `worker` was lost with a task (WORKER_LOST), or that a task
    is sent again which `worker` had (RESENT): `tell` it.
    """

    tracked: TrackedRequest
    event: str
    worker: str | None

    def tell(self) -> None:
        events: Any = self.tracked.invocation.events
        events.incident(self.event, self.worker)


@dataclass(slots=True)
class Acknowledge:
    """Nothing more is needed of a message."""

    receipt: Any


@dataclass(slots=True)
class Revoke:
    """Withdraw the row if nobody claimed it, and report to `on_revoked`."""

    tracked: TrackedRequest


@dataclass(slots=True)
class Inspect:
    """Look who holds the row, and report to `on_row`, with `lost` as it is here.

    `lost` is the identity of the worker whose loss is the reason to look.
    """

    tracked: TrackedRequest
    lost: str | None = None


@dataclass(slots=True)
class Reopen:
    """Take the row from its holder, who is lost; report to `on_reopened` the answer if it is done.

    A ledger that cannot be reached is not reported: the row is looked at again some time.

    Only for what may be run twice.
    """

    tracked: TrackedRequest
    epoch: int


@dataclass(slots=True)
class Conclude:
    """End a request with `failure` in the place of its holder, who is lost: should he only have
    been frozen, he does not begin it any more.  Report to `on_concluded` that it was done.

    A ledger that cannot be reached is not reported, nor a row that is his no more: it is looked at
    again some time.
    """

    tracked: TrackedRequest
    holder: str
    failure: ft.Failure


@dataclass(slots=True)
class PutAside:
    """Keep a request among the dead letters of the exchange: it fails because all workers that it
    was sent to were lost, and may be to blame for that.
    """

    letter: env.Envelope


@dataclass(slots=True)
class Ask:
    """Publish a question (see `messages.commands`)."""

    question: env.Envelope


@dataclass(slots=True)
class Cancel:
    """Publish a message that ends requests (see `messages.commands`)."""

    message: env.Envelope


@dataclass(slots=True)
class Drop:
    """Remove the row: its outcome is saved."""

    request_id: str


Effect = (
    Dispatch | Settle | Tell | Began | Taken | Incident | Acknowledge | Revoke | Inspect | Reopen
    | Conclude | PutAside | Ask | Cancel | Drop
)  # fmt: skip
