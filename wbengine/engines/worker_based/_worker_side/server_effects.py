"""Effects that a `Server` returns. Its owner has the sockets, the ledger and the pool.

They are not frozen, because frozen dataclasses are slower to create.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._worker_side.jobs import Job


@dataclass(slots=True)
class Claim:
    """Claim `(job.id, job.epoch)` in the ledger, and call `on_claim`."""

    job: Job


@dataclass(slots=True)
class Run:
    """Start the job's task; call `on_event` and `on_finished`, or `on_unstarted`."""

    job: Job


@dataclass(slots=True)
class Check:
    """Read the row of a job that waited for a long time, and call `on_checked`."""

    job: Job


@dataclass(slots=True)
class Cancel:
    """Cancel the job's task; its end is reported as usual."""

    job: Job


@dataclass(slots=True)
class Reply:
    """Publish a reply.

    If `terminal`, acknowledge the job's receipt after publishing, and call `on_answered`. A
    `deferrable` reply (RUNNING) is not needed if the next reply of the job follows soon.
    """

    job: Job | None
    envelope: env.Envelope
    terminal: bool = False
    deferrable: bool = False


@dataclass(slots=True)
class Finish:
    """Store the reply in the ledger, call `on_stored`, then publish the reply."""

    job: Job
    answer: env.Envelope


@dataclass(slots=True)
class Release:
    """Release the job's row as if it had never been claimed, and call `on_released`."""

    job: Job


@dataclass(slots=True)
class Return:
    """Requeue the request.

    Without a row, publish it as a new message, because a redelivered message would not be run.
    """

    job: Job


@dataclass(slots=True)
class Drain:
    """Drain the worker: it has started its maximum number of tasks."""


@dataclass(slots=True)
class Acknowledge:
    """Acknowledge a message that needs no further action."""

    receipt: Any


Effect = Claim | Run | Check | Cancel | Reply | Finish | Release | Return | Drain | Acknowledge
