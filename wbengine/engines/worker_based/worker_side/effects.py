"""What a `Server` asks of its owner, who has sockets, a ledger and a pool.

They are never changed; frozen dataclasses would take longer to make than to perform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side.jobs import Job


@dataclass(slots=True)
class Claim:
    """Ask the ledger for `(job.id, job.epoch)`, and report to `on_claim`."""

    job: Job


@dataclass(slots=True)
class Run:
    """Start the job's task; report to `on_event` and `on_finished`, or `on_unstarted`."""

    job: Job


@dataclass(slots=True)
class Check:
    """Look at the row of a job that waited for long, and report to `on_checked`."""

    job: Job


@dataclass(slots=True)
class Cancel:
    """Let the job's task end soon; however it ends is reported as usual."""

    job: Job


@dataclass(slots=True)
class Reply:
    """Publish an answer.

    `terminal`: once it is published, acknowledge the job's receipt and report to `on_answered`.
    """

    job: Job | None
    envelope: env.Envelope
    terminal: bool = False


@dataclass(slots=True)
class Finish:
    """Store the answer in the ledger, and report to `on_stored`; it is published after that."""

    job: Job
    answer: env.Envelope


@dataclass(slots=True)
class Release:
    """Let go of the job's row, as if it had never been claimed, and report to `on_released`."""

    job: Job


@dataclass(slots=True)
class Return:
    """Give the request back to the queue it came from, for others to take.

    `fresh`: as a new message, where one that is delivered again would not be run.
    """

    job: Job
    fresh: bool


@dataclass(slots=True)
class Drain:
    """The worker has done its share: take nothing new, finish what runs, and end."""


@dataclass(slots=True)
class Acknowledge:
    """Nothing is to be done for this message."""

    receipt: Any


Effect = Claim | Run | Check | Cancel | Reply | Finish | Release | Return | Drain | Acknowledge
