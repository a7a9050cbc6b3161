"""What every job board promises, and what is the same for all of them.

A job names a flow that is to be run: a board allots it to one conductor at a time.  A claim is no
more than that: which engine may write a flow's records is decided by the flow's lease alone.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast, runtime_checkable

from wbengine import _options, exceptions, states
from wbengine.persistence import base, macs, models
from wbengine.types import notifier

__all__ = [
    "CLAIMED", "POSTED", "REMOVAL", "FlowBoard", "Job", "JobBoard", "JobBoardIterator",
    "JobPriority", "NotifyingJobBoard", "check_who", "posting_details", "verify",
]  # fmt: skip

_M = TypeVar("_M", bound=Callable[..., Any])

#: Events of boards: a job was posted, was claimed, or was removed (consumed, or trashed).
POSTED: Final = "POSTED"
CLAIMED: Final = "CLAIMED"
REMOVAL: Final = "REMOVAL"


class JobPriority(enum.Enum):
    """How urgent a job is; the most urgent comes first."""

    VERY_HIGH = "VERY_HIGH"
    HIGH = "HIGH"
    NORMAL = "NORMAL"
    LOW = "LOW"
    VERY_LOW = "VERY_LOW"

    @property
    def rank(self) -> int:
        """Its place in the order: 0 is the most urgent."""
        return _RANKS[self]

    @classmethod
    def convert(cls, value: JobPriority | str) -> JobPriority:
        """The priority of this name, in letters of either case.

        :raises ValueError: there is none; the text names those there are.
        """
        if isinstance(value, cls):
            return value
        try:
            return cls(str(value).upper())
        except ValueError:
            known = ", ".join(each.value for each in cls)
            raise ValueError(f"{value!r} is no priority of a job: it is one of {known}") from None

    @classmethod
    def reorder(cls, *values: tuple[JobPriority | str, Any]) -> Any:
        """The values of pairs (priority, value), the most urgent first; a single one by itself.

        :raises ValueError: there is no pair, or a priority that is none.
        """
        if not values:
            raise ValueError("At least one pair (priority, value) is needed")
        ranked = sorted(values, key=lambda pair: cls.convert(pair[0]).rank)
        return ranked[0][1] if len(ranked) == 1 else tuple(value for _, value in ranked)


_RANKS: Final = {priority: rank for rank, priority in enumerate(JobPriority)}


class Job(abc.ABC):
    """Work that is posted on a board: a log book, by its uuid, and `details` about it.

    Conductors read `details['flow_uuid']` (which flow of the book; needed if there are several) and
    `details['store']` (further inputs of the flow).
    """

    def __init__(
        self,
        board: JobBoard,
        name: str,
        uuid: str | None = None,
        details: Mapping[str, Any] | None = None,
        backend: base.Backend | None = None,
        book: models.LogBook | None = None,
        book_data: Mapping[str, Any] | None = None,
    ) -> None:
        self._board = board
        self._name = name
        self._uuid = uuid or models.new_uuid()
        self._details = dict(details or {})
        self._backend = backend
        self._book = book
        self._book_data = dict(book_data or {})

    @property
    def board(self) -> JobBoard:
        """The board it was posted on."""
        return self._board

    @property
    def name(self) -> str:
        return self._name

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def details(self) -> dict[str, Any]:
        return self._details

    @property
    def book_uuid(self) -> str | None:
        return self._book.uuid if self._book is not None else self._book_data.get("uuid")

    @property
    def book_name(self) -> str | None:
        return self._book.name if self._book is not None else self._book_data.get("name")

    @property
    def book(self) -> models.LogBook | None:
        """Its log book, read with all that is in it when first asked for; None: it has none."""
        if self._book is None and self._backend is not None and self.book_uuid is not None:
            with contextlib.closing(self._backend.get_connection()) as connection:
                self._book = connection.get_logbook(self.book_uuid)
        return self._book

    @property
    @abc.abstractmethod
    def priority(self) -> JobPriority: ...

    @property
    @abc.abstractmethod
    def claims(self) -> int:
        """How often it was claimed, when the board was asked last."""

    @property
    @abc.abstractmethod
    def created_on(self) -> datetime: ...

    @property
    @abc.abstractmethod
    def last_modified(self) -> datetime | None:
        """When it was posted, claimed or abandoned last; asks the board.  None: it is gone."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """UNCLAIMED, CLAIMED, or COMPLETE if it is on the board no more; asks the board."""

    @abc.abstractmethod
    def expires_in(self) -> float | None:
        """Seconds until the claim ends unless it is extended; None: there is none, or no end."""

    @abc.abstractmethod
    def extend_expiry(self, expiry: float) -> bool:
        """Let the claim end in `expiry` seconds from now; False: it has ended, or is another's."""

    def wait(
        self,
        timeout: float | None = None,
        delay: float = 0.01,
        delay_multiplier: float = 2.0,
        max_delay: float = 1.0,
        sleep_func: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Wait until it is COMPLETE, for `timeout` seconds at most; whether it is.

        The board is asked after `delay` seconds, and then after times that grow by
        `delay_multiplier`, up to `max_delay`.

        :raises ValueError: a number is negative or NaN.
        """
        until = _deadline(timeout)
        delay, most = _options.number("delay", delay), _options.number("max_delay", max_delay)
        growth = _options.number("delay_multiplier", delay_multiplier)
        while self.state != states.COMPLETE:
            left = delay if until is None else until - time.monotonic()
            if left <= 0:
                return False
            sleep_func(min(delay, left))
            delay = min(delay * growth, most)
        return True

    def __str__(self) -> str:
        # Without its details: there may be secrets in them.
        told = f"{self.name} (priority={self.priority.value}, uuid={self.uuid})"
        return f"{type(self).__name__}: {told}"


class JobBoardIterator(Iterator[Job]):
    """The jobs of a `board`, the most urgent first, and the oldest first of those as urgent."""

    def __init__(
        self,
        board: JobBoard,
        jobs: Iterator[Job],
        only_unclaimed: bool = False,
        ensure_fresh: bool = False,
    ) -> None:
        self.board = board
        self.only_unclaimed = only_unclaimed
        self.ensure_fresh = ensure_fresh
        self._jobs = jobs

    def __next__(self) -> Job:
        return next(self._jobs)


class JobBoard(abc.ABC):
    """A place where jobs are posted, and claimed by those who run them.

    Jobs are given out the most urgent first, and the oldest first of those as urgent.  Any thread
    may call any method.  What the store of the board cannot do raises `JobFailure`; so does each
    call before `connect` and after `close`.
    """

    #: Seconds between two looks for jobs, by who waits for one.
    LOOK_SECONDS: ClassVar[float] = 0.05

    def __init__(self, name: str, conf: Mapping[str, Any] | None = None) -> None:
        self._name = name
        self._conf = dict(conf or {})

    @property
    def name(self) -> str:
        """A name for people; other boards may have it too."""
        return self._name

    @property
    @abc.abstractmethod
    def connected(self) -> bool: ...

    @abc.abstractmethod
    def connect(self) -> None:
        """Reach the store of the board; does nothing the second time."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let it go; `connect` reaches it again."""

    @abc.abstractmethod
    def post(
        self,
        name: str,
        book: models.LogBook | None = None,
        details: Mapping[str, Any] | None = None,
        priority: JobPriority | str = JobPriority.NORMAL,
    ) -> Job:
        """Post a job; it is durable when this returns.

        `book` has to be kept by the persistence backend of those who claim the job.

        :raises ValueError: the name is empty, or there is no such priority.
        :raises TypeError: `book` is no log book, or `details` are no dict.
        :raises NotEncodable: a detail cannot be kept.
        """

    @abc.abstractmethod
    def iterjobs(
        self, only_unclaimed: bool = False, ensure_fresh: bool = False
    ) -> JobBoardIterator:
        """The jobs on the board, read some at a time; claims may have changed since.

        `ensure_fresh`: where a board keeps a copy of its list, read it anew.
        """

    @property
    @abc.abstractmethod
    def job_count(self) -> int:
        """How many jobs are on the board, claimed or not."""

    @abc.abstractmethod
    def find_owner(self, job: Job) -> str | None:
        """Who has claimed a job; None: nobody has, or the claim has ended, or the job is gone."""

    @abc.abstractmethod
    def claim(self, job: Job, who: str, expiry: float | None = None) -> None:
        """Claim a job that nobody has claimed, for `expiry` seconds (None: without end).

        :raises UnclaimableJob: it is claimed, be it by `who`.
        :raises NotFound: it is not on the board any more.
        """

    @abc.abstractmethod
    def consume(self, job: Job, who: str) -> None:
        """Remove a job that is done.

        A job object that was claimed answers for that very claim: after it has ended, a later claim
        of the same name is another's.  So it is for `abandon` and `trash`.

        :raises NotFound: it is not on the board any more, or nobody has claimed it.
        :raises JobFailure: somebody else has claimed it.
        """

    @abc.abstractmethod
    def abandon(self, job: Job, who: str) -> None:
        """Give a claim up, for another to claim the job; raises what `consume` does."""

    @abc.abstractmethod
    def trash(self, job: Job, who: str) -> None:
        """Put a broken job aside: it is kept, and never claimed; raises what `consume` does."""

    def register_entity(self, entity: Any) -> None:  # noqa: B027  (a default, not a stub)
        """Tell the board who works on it, where it keeps a list of that; those here keep none."""

    def waking(self, wake: Callable[[], None]) -> contextlib.AbstractContextManager[object]:
        """In a `with` block, have `wake` called, in any thread, when there may be a new job.

        Where the board can tell; it may miss some, so that who waits looks now and then, too.
        """
        return contextlib.nullcontext()

    def wait(self, timeout: float | None = None) -> JobBoardIterator:
        """Wait for a job that can be claimed, and iterate over those there are.

        :raises NotFound: there was none for `timeout` seconds.
        :raises ValueError: `timeout` is negative or NaN.
        """
        until = _deadline(timeout)
        while True:
            jobs = self.iterjobs(only_unclaimed=True)
            for first in jobs:
                return JobBoardIterator(self, itertools.chain([first], jobs), only_unclaimed=True)
            pause = self.LOOK_SECONDS
            left = pause if until is None else until - time.monotonic()
            if left <= 0:
                raise exceptions.NotFound(f"No job was to be claimed for {timeout:g} seconds")
            time.sleep(min(pause, left))


class NotifyingJobBoard(JobBoard):
    """A board whose `notifier` tells of POSTED, CLAIMED and REMOVAL, with the `job`.

    Of what is done through this very object, in the thread that does it.
    """

    def __init__(self, name: str, conf: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, conf)
        self.notifier = notifier.Notifier()


@runtime_checkable
class FlowBoard(Protocol):
    """A board that has the job of a submitted flow under the flow's uuid."""

    def find(self, uuid: str) -> Job | None:
        """The job with this uuid; None: it is not on the board (any more)."""

    def repost(
        self,
        flow_uuid: str,
        name: str,
        book: models.LogBook,
        priority: JobPriority | str = JobPriority.NORMAL,
    ) -> Job | None:
        """Post a job for a flow that is kept; None: there is one, or one that was trashed."""

    def is_trashed(self, uuid: str) -> bool:
        """Whether the job with this uuid was trashed."""


def _deadline(timeout: float | None) -> float | None:
    if timeout is None or timeout == math.inf:
        return None
    return time.monotonic() + _options.number("timeout", timeout)


def posting_details(uuid: str, book: Any, details: Any) -> dict[str, Any]:
    """The details of a job to be posted, with a MAC where there are keys and they say more than
    that the job is about the flow of its uuid.

    :raises TypeError: `book` is no log book, or `details` are no dict.
    """
    if book is not None and not isinstance(book, models.LogBook):
        raise TypeError(f"book must be a LogBook, not {book!r:.80}")
    if details is not None and not isinstance(details, Mapping):
        raise TypeError(f"details must be a dict, not {details!r:.80}")
    told = dict(details or {})
    if _says_more(uuid, told) and (mac := macs.sign(macs.JOB, uuid, told)) is not None:
        told[macs.MAC] = mac
    return told


def verify(job: Job) -> None:
    """Make sure that a job's details are those that were posted, if there are keys.

    :raises NotTrusted: they are not.
    """
    if _says_more(job.uuid, job.details):
        macs.verify(macs.JOB, job.uuid, job.details)


def _says_more(uuid: str, details: Mapping[str, Any]) -> bool:
    """Whether details say anything but that the job is about the flow of its uuid."""
    return bool(details) and dict(details) != {"flow_uuid": uuid}


def check_who(method: _M) -> _M:
    """Let a method of a board refuse a `who` that is no text (TypeError), or empty (ValueError).

    And a job that is none (TypeError).
    """

    @functools.wraps(method)
    def checked(self: JobBoard, job: Job, who: str, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(job, Job):
            raise TypeError(f"job must be a job of the board, not {job!r:.80}")
        if not isinstance(who, str):
            raise TypeError(f"who must be the name of an owner of jobs, not {who!r}")
        if not who:
            raise ValueError("who must be the name of an owner of jobs, not an empty text")
        return method(self, job, who, *args, **kwargs)

    return cast(_M, checked)
