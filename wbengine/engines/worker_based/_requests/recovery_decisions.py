"""Decisions about requests whose progress is uncertain. The tracker applies them, in order."""

from __future__ import annotations

from dataclasses import dataclass

from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.request_state import OfRequest
from wbengine.types import failure as ft

# Where the request is.


class Inherit(OfRequest):
    """Keep a request of an earlier run until it is known whether a worker has it."""


@dataclass(slots=True)
class Hold(OfRequest):
    """Record that `worker` (None: an unknown one) has the request, and watch the worker.

    `silence` is the number of seconds since its last heartbeat.
    """

    worker: str | None
    silence: float = 0.0


# Sending it again.


@dataclass(slots=True)
class Send(OfRequest):
    """Send the request under a new epoch, unless it has expired or has a pending outcome.

    Before, it is certain that no worker runs an earlier copy, or the task may run twice. `lost`:
    a lost worker had the request.
    """

    lost: bool = False


class Reroute(OfRequest):
    """Choose a queue again, with the same epoch: no worker has the request."""


class Republish(OfRequest):
    """Publish another copy to the same queue with the same epoch."""


class Wait(OfRequest):
    """Wait until a worker offers the task, and do not publish."""


# Ending it.


@dataclass(slots=True)
class AcceptStored(OfRequest):
    """End the request with the reply in its row."""

    reply: Reply


class AcceptEarly(OfRequest):
    """End the request with the reply that arrived before it was submitted, if there is one."""


@dataclass(slots=True)
class Settle(OfRequest):
    failure: ft.Failure


@dataclass(slots=True)
class Lose(OfRequest):
    """End the request as lost with its worker. `exhausted`: after all permitted resends."""

    failure: ft.Failure
    exhausted: bool = False


class TimeOut(OfRequest):
    """End the request because no worker started it in time."""


# Waiting for evidence.


class CheckLater(OfRequest):
    """Check the request after a pause, which doubles each time."""


class RestartTimeout(OfRequest):
    pass


class StartFinalTimeout(OfRequest):
    """Start a timeout, even without `transition_timeout`: no queue may contain the request."""


class Search(OfRequest):
    """Review the request in each round of heartbeats, which become frequent."""


@dataclass(slots=True)
class Ask(OfRequest):
    """Ask a worker, or all workers, whether it has the request."""

    to: str


class AskQueue(OfRequest):
    """Publish an ask behind the request in its queue."""


class Refuse(OfRequest):
    """Tell all workers to refuse present copies of the request, if they arrive late."""


@dataclass(slots=True)
class Cancel(OfRequest):
    """Cancel the request in a worker, or in all workers."""

    to: str


Decision = (
    Inherit | Hold | Send | Reroute | Republish | Wait | AcceptStored | AcceptEarly
    | Settle | Lose | TimeOut | CheckLater | RestartTimeout | StartFinalTimeout | Search | Ask
    | AskQueue | Refuse | Cancel | fx.Inspect | fx.Revoke | fx.Reopen | fx.Conclude
)  # fmt: skip
