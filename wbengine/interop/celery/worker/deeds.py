"""What a `Service` asks of whoever has a broker, a result backend and a pool.

A message is settled once, by what names its receipt or its job: it is acknowledged, rejected, or
acknowledged after a copy of it was published.  Nobody changes effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wbengine.interop.celery.protocol.results import ChordPart, Fallen, Result
    from wbengine.interop.celery.protocol.steps import Step
    from wbengine.interop.celery.protocol.wire import Wire
    from wbengine.interop.celery.worker.jobs import Job

__all__ = [
    "Acknowledge",
    "Cancel",
    "Effect",
    "End",
    "GiveBack",
    "Inquire",
    "Mark",
    "Note",
    "Redirect",
    "Reject",
    "Requeue",
    "Run",
    "Tell",
]


@dataclass(slots=True)
class Run:
    """Start the job: submit what `job.call(loop)` returns; report to `on_finished`."""

    job: Job


@dataclass(slots=True)
class Mark:
    """Have the broker note that the job's task begins, so that whoever gets its message next knows
    it; report to `on_marked`, or to `on_refused` if somebody else has begun it.

    The note has the name `job.note`.  If the connection is lost before the broker has answered,
    `on_disconnected` is all that is reported.
    """

    job: Job


@dataclass(slots=True)
class Cancel:
    """End the job's task: at once, if it has a process of its own, else as it listens.  However it
    ends is reported as usual."""

    job: Job


@dataclass(slots=True)
class Acknowledge:
    """Nothing is to be done for this message, or another receipt stands for it by now.

    One that came over a connection that is lost is of no use any more: then nothing is done.
    """

    receipt: Any


@dataclass(slots=True)
class Reject:
    """Refuse this message for good: the broker drops it, or keeps it where it was told to."""

    receipt: Any


@dataclass(slots=True)
class Requeue:
    """Put this message back as it is: whoever gets it next is told that it was delivered before."""

    receipt: Any


@dataclass(slots=True)
class Inquire:
    """Ask all workers what they know of these tasks; report to `on_answers`, whenever that is."""

    ids: Sequence[str]


@dataclass(slots=True)
class GiveBack:
    """Give the message to others: publish `job.wire` to `job.queue`, then settle it, in one step
    where that can be.

    As a new message, for its task has not begun: of one that a broker marks as delivered again that
    is not known at once.  What comes again by itself, because the connection that it came over is
    lost, is not published.  Report to `on_done`.
    """

    job: Job


@dataclass(slots=True)
class Redirect:
    """Publish the message, as it is, to another queue; then settle it.

    Nothing is published if the connection is lost that it came over: it comes again.
    """

    receipt: Any
    wire: Wire
    queue: str


@dataclass(slots=True)
class End:
    """All that is owed to a job, in this order; then report to `on_done`.

    Send `steps`; store (or reply with) `result`, unless it is None; store each of `fallout` that
    has a result, and count what has a part; count `chord`; acknowledge `job.receipt`.

    `chord` is this task's part of a chord.  `fallout` is what fails with it: the tasks that would
    have followed it in its chain.  `state` is what it ended in, also where nothing is stored.
    """

    job: Job
    result: Result | None
    steps: Sequence[Step] = ()
    chord: ChordPart | None = None
    fallout: Sequence[Fallen] = ()
    reject: bool = False
    state: str = ""


@dataclass(slots=True)
class Note:
    """Store (or reply with) a state that is not the end of the job."""

    job: Job
    result: Result


@dataclass(slots=True)
class Tell:
    """Publish an event of this type, with these fields besides the standard ones."""

    type: str
    fields: Mapping[str, Any]


Effect = (
    Run
    | Mark
    | Cancel
    | Acknowledge
    | Reject
    | Requeue
    | Inquire
    | GiveBack
    | Redirect
    | End
    | Note
    | Tell
)
