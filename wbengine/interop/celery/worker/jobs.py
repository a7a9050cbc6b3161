"""The task messages that a worker has, from when it takes them until they are settled."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wbengine import limits, running
from wbengine.interop.celery.protocol import message as messages
from wbengine.interop.celery.worker import builtins, calls, informing

if TYPE_CHECKING:
    from wbengine import invocation, loops
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.interop.celery.protocol.message import TaskMessage
    from wbengine.interop.celery.protocol.wire import Wire
    from wbengine.interop.celery.worker.informing import Informing

__all__ = ["MODULES", "Job", "Jobs", "Key", "Past"]

#: What a process needs to make a call of `Job.call`, besides the modules of its task.
MODULES: Final = frozenset(one.__name__ for one in (builtins, calls, informing, messages))

#: A task's id, and the number of its try: a retry is sent under the same id.
Key = tuple[str, int]


class Past(enum.Enum):
    """What a broker knows of a message before it came here."""

    #: Nobody began its task.
    NONE = "none"
    #: Somebody was given it, and no note says that its task began.  After a crash of the broker it
    #: may be a second copy of what has begun.
    GIVEN = "given"
    #: Its task began, or somebody was about to begin it and did not hear whether that was noted.
    BEGUN = "begun"


@dataclass(slots=True, eq=False)
class Job:
    """One task message: what it says, and what became of it.  `ticket` is the shell's own."""

    id: str
    #: 1 for the first try, more for each retry.
    epoch: int
    message: TaskMessage
    #: As it came; what is given back is this.
    wire: Wire
    receipt: Any
    queue: str
    taken: float
    past: Past = Past.NONE
    #: What its broker knows by this name is that its task begins, once.
    note: str = ""
    #: The name of its worker, as people and `Task.request` are told it.
    worker: str = ""
    endpoint: endpoints.Endpoint | None = None
    limit: limits.TimeLimit = limits.UNLIMITED
    #: Unix seconds.  `due` is when it is looked at again, which may be before `eta`.
    eta: float | None = None
    expires: float | None = None
    due: float | None = None
    started: float | None = None
    #: Somebody asked for its end, and said so to all.
    cancelled: bool = False
    #: How its task ended, for whoever tells people.
    outcome: invocation.Outcome | None = None
    #: It failed, and its errbacks are called: until they are, that is not told.
    informing: Informing | None = None
    #: For the headers of the messages that follow from it.
    handed_on: Mapping[str, str] = field(default_factory=dict)
    ticket: Any = None

    @property
    def key(self) -> Key:
        return self.id, self.epoch

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.message.task

    @property
    def name(self) -> str:
        """The name for people: its shadow, else that of its task."""
        return self.message.shadow or self.message.task

    @property
    def attempt(self) -> int:
        """The number of its try."""
        return self.epoch

    @property
    def flow(self) -> str:
        """The task that it all began with."""
        return self.message.root_id or ""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Those of its message."""
        return self.wire.headers

    @property
    def unit(self) -> None:
        """There is none: it is no request of an engine."""

    def call(self, loop: loops.Loop | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What a pool is to run: `(function, arguments)`; the pool adds its `emit` behind them.

        Both pickle.  Async bodies run in `loop`, or without one in that of the process.
        """
        who = running.Request(
            self.id, self.epoch, self.epoch, self.message.root_id or "", self.worker
        )
        told = self.informing
        if told is not None:
            return calls.inform, (told.errbacks, told.message, told.failure, who, loop)
        return calls.run, (self.endpoint, self.message, who, loop, self.expires)

    def __repr__(self) -> str:
        return f"<Job {self.name!r}, task {self.id}, try {self.epoch}>"


class Jobs:
    """Jobs by key; a `Service` puts them in and takes them out.

    Each is in one of these: `doubtful` while others are asked for it, `held` until its time comes,
    `waiting` for one of the slots, in order, `noting`: it has a slot, and its broker is told that
    it begins, `begun`, `leaving`: it ended, and is not settled yet, or `returning`: it is given
    back.  Those have no key any more, for a copy of them may come back
    at any moment.
    """

    __slots__ = ("begun", "doubtful", "held", "leaving", "noting", "returning", "waiting")

    def __init__(self) -> None:
        self.doubtful: dict[Key, Job] = {}
        self.held: dict[Key, Job] = {}
        self.waiting: OrderedDict[Key, Job] = OrderedDict()
        self.noting: dict[Key, Job] = {}
        self.begun: dict[Key, Job] = {}
        self.leaving: dict[Key, Job] = {}
        self.returning: set[Job] = set()

    def find(self, key: Key) -> Job | None:
        """The job with this key that is neither settled nor given back."""
        return (
            self.begun.get(key)
            or self.noting.get(key)
            or self.waiting.get(key)
            or self.held.get(key)
            or self.leaving.get(key)
            or self.doubtful.get(key)
        )

    def unbegun(self) -> Iterator[Job]:
        """Those that did not begin, here or elsewhere."""
        yield from self.waiting.values()
        yield from self.held.values()

    def __len__(self) -> int:
        return sum(len(getattr(self, name)) for name in Jobs.__slots__)
