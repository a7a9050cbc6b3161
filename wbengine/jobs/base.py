"""The interface of job boards, and its common parts.

A job names a flow to run. A board assigns it to one conductor at a time. A claim does not protect
the flow's records: the flow's lease determines which engine may write them.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol, TypeVar, cast, runtime_checkable

from wbengine import exceptions, states
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine.jobs._places import JobPriority, Place
from wbengine.persistence import _macs, base, models
from wbengine.types import notifier

__all__ = [
    "CLAIMED", "POSTED", "REMOVAL", "FlowBoard", "Job", "JobBoard", "JobBoardIterator",
    "JobPriority", "NotifyingJobBoard", "UnknownExpire", "check_who", "claims_expiring_after",
    "default_expiry", "posting_details", "verify",
]  # fmt: skip

_M = TypeVar("_M", bound=Callable[..., Any])

POSTED: Final = "POSTED"
CLAIMED: Final = "CLAIMED"
REMOVAL: Final = "REMOVAL"

#: Time until a claim without an expiry expires; None: never.
default_expiry: Final[ContextVar[float | None]] = ContextVar("default_expiry", default=None)


@contextlib.contextmanager
def claims_expiring_after(seconds: float) -> Iterator[None]:
    """Set the expiry of claims in the block for which neither the caller nor the board sets one."""
    token = default_expiry.set(seconds)
    try:
        yield
    finally:
        default_expiry.reset(token)


class UnknownExpire(enum.IntEnum):
    """The result of `Job.expires_in` if there is no number of seconds."""

    #: The job is claimed, and the claim does not expire.
    DOES_NOT_EXPIRE = -1
    #: The job is not claimed.
    KEY_NOT_FOUND = -2


class Job(abc.ABC):
    """Work on a board: a logbook, named by its uuid, and `details`.

    Conductors read `details['flow_uuid']` (the flow of the logbook; required if there are several)
    and `details['store']` (further inputs of the flow).
    """

    #: Duration in seconds of the latest claim by this object. None: it does not expire.
    claim_seconds: float | None = None

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
        self._name = object_names.check_length("Job name", name)
        self._uuid = uuid or models.new_uuid()
        self._details = dict(details or {})
        self._backend = backend
        self._book = book
        self._book_data = dict(book_data or {})

    @property
    def board(self) -> JobBoard:
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
        """The logbook with its contents, loaded on first access; None if the job has none."""
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
        """Number of claims when the board was last read."""

    @property
    @abc.abstractmethod
    def created_on(self) -> datetime: ...

    @property
    @abc.abstractmethod
    def last_modified(self) -> datetime | None:
        """Time of the latest posting, claim or abandonment (from the board); None if deleted."""

    @property
    @abc.abstractmethod
    def state(self) -> str:
        """UNCLAIMED, CLAIMED, or COMPLETE after the job left the board; read from the board."""

    @abc.abstractmethod
    def expires_in(self) -> float:
        """Return the seconds until the claim expires, or an `UnknownExpire`."""

    @abc.abstractmethod
    def extend_expiry(self, expiry: float) -> bool:
        """Set the expiry of the claim to `expiry` seconds from now.

        Return False if the claim has expired or belongs to another owner.
        """

    def wait(
        self,
        timeout: float | None = None,
        delay: float = 0.01,
        delay_multiplier: float = 2.0,
        max_delay: float = 1.0,
        sleep_func: Callable[[float], object] = time.sleep,
    ) -> bool:
        """Wait until the job is COMPLETE. Return False after `timeout` seconds.

        The board is polled after `delay` seconds, then at intervals that grow by
        `delay_multiplier`, up to `max_delay`.

        :raises ValueError: if a number is negative or NaN.
        """
        until = _deadline(timeout)
        delay, longest_delay = (
            named_options.number("delay", delay),
            named_options.number("max_delay", max_delay),
        )
        growth = named_options.number("delay_multiplier", delay_multiplier)
        while self.state != states.COMPLETE:
            remaining = delay if until is None else until - time.monotonic()
            if remaining <= 0:
                return False
            sleep_func(min(delay, remaining))
            delay = min(delay * growth, longest_delay)
        return True

    def __str__(self) -> str:
        # Without details, which may contain secrets.
        description = f"{self.name} (priority={self.priority.value}, uuid={self.uuid})"
        return f"{type(self).__name__}: {description}"


class JobBoardIterator(Iterator[Job]):
    """The jobs of a `board` in the order of their priority, oldest first within a priority."""

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
    """A list of jobs that are posted and claimed.

    All methods are thread-safe. A method raises `JobFailure` if the store of the board fails,
    and before `connect` and after `close`.
    """

    #: Interval between two polls in `wait`.
    POLL_SECONDS: ClassVar[float] = 0.05

    def __init__(self, name: str, conf: Mapping[str, Any] | None = None) -> None:
        self._name = object_names.check_length("Job board name", name)
        self._conf = dict(conf or {})

    @property
    def name(self) -> str:
        """Name for display; not unique."""
        return self._name

    @property
    @abc.abstractmethod
    def connected(self) -> bool: ...

    @abc.abstractmethod
    def connect(self) -> None:
        """Connect to the store of the board; idempotent."""

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect; `connect` connects again."""

    @abc.abstractmethod
    def post(
        self,
        name: str,
        book: models.LogBook | None = None,
        details: Mapping[str, Any] | None = None,
        priority: JobPriority | str = JobPriority.NORMAL,
    ) -> Job:
        """Post a job. It is durable when this method returns.

        :param book: a logbook in the persistence backend of the conductors.
        :raises ValueError: if the name is empty or too long, or the priority is unknown.
        :raises TypeError: if `book` is not a logbook or `details` is not a dict.
        :raises NotEncodable: if a detail cannot be encoded.
        """

    @abc.abstractmethod
    def iterjobs(
        self, only_unclaimed: bool = False, ensure_fresh: bool = False
    ) -> JobBoardIterator:
        """Return the jobs on the board, read in pages. Claims may change during the iteration.

        :param ensure_fresh: if the board caches its list, read it again.
        """

    @property
    @abc.abstractmethod
    def job_count(self) -> int:
        """Number of jobs on the board, claimed or not."""

    @abc.abstractmethod
    def find_owner(self, job: Job) -> str | None:
        """Return the owner of a job's claim; None if it is unclaimed, expired or deleted."""

    @abc.abstractmethod
    def claim(self, job: Job, who: str, expiry: float | None = None) -> None:
        """Claim an unclaimed job for `expiry` seconds.

        Without `expiry`, the options of the board determine it; by default claims never expire.

        :raises UnclaimableJob: if the job is claimed, even by `who`.
        :raises NotFound: if the job is not on the board.
        """

    def take(self, who: str, limit: int, except_uuids: Collection[str] = ()) -> Sequence[Job]:
        """Claim up to `limit` unclaimed jobs, in their order, and return them.

        :param except_uuids: uuids of jobs to leave.
        :raises JobFailure: if the board failed before the first claim.
        """
        taken: list[Job] = []
        try:
            for job in self.iterjobs(only_unclaimed=True):
                if len(taken) >= limit:
                    break
                if job.uuid in except_uuids:
                    continue
                with contextlib.suppress(exceptions.UnclaimableJob, exceptions.NotFound):
                    self.claim(job, who)
                    taken.append(job)
        except exceptions.JobFailure:
            if not taken:
                raise
        return taken

    @abc.abstractmethod
    def consume(self, job: Job, who: str) -> None:
        """Delete a completed job.

        If this job object made a claim, it refers only to that claim, not to later claims with the
        same name. The same applies to `abandon` and `trash`.

        :raises NotFound: if the job is not on the board or not claimed.
        :raises JobFailure: if another owner has claimed it.
        """

    @abc.abstractmethod
    def abandon(self, job: Job, who: str) -> None:
        """Release a claim, so that the job can be claimed again. Raises the errors of `consume`."""

    @abc.abstractmethod
    def trash(self, job: Job, who: str) -> None:
        """Move a broken job to the trash. Raises the errors of `consume`."""

    def register_entity(self, entity: Any) -> None:  # noqa: B027  (a default, not a stub)
        """Register a conductor with the board, if the board stores a list of them."""

    def waking(self, wake: Callable[[], None]) -> contextlib.AbstractContextManager[float]:
        """In a `with` block, call `wake`, in any thread, when there may be a new job.

        Only some boards support this, and notifications may be lost, so callers must also poll. The
        value of the block is the interval between two polls in seconds.
        """
        return contextlib.nullcontext(self.POLL_SECONDS)

    def wait(self, timeout: float | None = None) -> JobBoardIterator:
        """Wait for an unclaimed job. Return an iterator over all unclaimed jobs.

        :raises NotFound: if there was none for `timeout` seconds.
        :raises ValueError: if `timeout` is negative or NaN.
        """
        until = _deadline(timeout)
        while True:
            jobs = self.iterjobs(only_unclaimed=True)
            for first in jobs:
                return JobBoardIterator(self, itertools.chain([first], jobs), only_unclaimed=True)
            pause = self.POLL_SECONDS
            remaining = pause if until is None else until - time.monotonic()
            if remaining <= 0:
                raise exceptions.NotFound(f"No job could be claimed within {timeout:g} seconds")
            time.sleep(min(pause, remaining))


class NotifyingJobBoard(JobBoard):
    """A board with a `notifier` for POSTED, CLAIMED and REMOVAL. The details contain the `job`.

    It reports only operations of this object, in the thread of the operation.
    """

    def __init__(self, name: str, conf: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, conf)
        #: Notifies of POSTED, CLAIMED and REMOVAL.
        self.notifier = notifier.Notifier()


@runtime_checkable
class FlowBoard(Protocol):
    """A board that stores the job of a submitted flow under the flow's uuid."""

    def find(self, uuid: str) -> Job | None:
        """Return the job with this uuid, or None if it is not on the board."""

    def repost(
        self,
        flow_uuid: str,
        name: str,
        book: models.LogBook,
        place: Place | JobPriority | str = JobPriority.NORMAL,
        *,
        replaces_trashed: bool = False,
    ) -> Job | None:
        """Post a job for a stored flow. Return None if it has a job, even in the trash.

        :param place: its priority, or its place among waiting jobs.
        :param replaces_trashed: delete a job in the trash first.
        """

    def is_trashed(self, uuid: str) -> bool:
        """Return True if the job with this uuid is in the trash."""


def _deadline(timeout: float | None) -> float | None:
    if timeout is None or timeout == math.inf:
        return None
    return time.monotonic() + named_options.number("timeout", timeout)


def posting_details(uuid: str, book: Any, details: Any) -> dict[str, Any]:
    """Return the details of a new job, with a MAC if needed.

    Details that contain only the uuid of the flow, equal to that of the job, need no MAC.

    :raises TypeError: if `book` is not a logbook or `details` is not a dict.
    """
    if book is not None and not isinstance(book, models.LogBook):
        raise TypeError(f"book must be a LogBook, got {book!r:.80}")
    if details is not None and not isinstance(details, Mapping):
        raise TypeError(f"details must be a dict, got {details!r:.80}")
    signed_details = dict(details or {})
    if (
        _needs_mac(uuid, signed_details)
        and (mac := _macs.sign(_macs.JOB, uuid, signed_details)) is not None
    ):
        signed_details[_macs.MAC] = mac
    return signed_details


def verify(job: Job) -> None:
    """Verify the MAC of a job's details, if there are keys.

    :raises NotTrusted: if the details were changed.
    """
    if _needs_mac(job.uuid, job.details):
        _macs.verify(_macs.JOB, job.uuid, job.details)


def _needs_mac(uuid: str, details: Mapping[str, Any]) -> bool:
    return bool(details) and dict(details) != {"flow_uuid": uuid}


def check_who(method: _M) -> _M:
    """Validate the job and the owner's name before a method of a board.

    :raises TypeError: if `job` is not a job or `who` is not a str.
    :raises ValueError: if `who` is empty or too long.
    """

    @functools.wraps(method)
    def checked(self: JobBoard, job: Job, who: str, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(job, Job):
            raise TypeError(f"job must be a job of the board, got {job!r:.80}")
        if not isinstance(who, str):
            raise TypeError(f"who must be the name of a job owner, got {who!r}")
        if not who:
            raise ValueError("who must be the name of a job owner, got ''")
        object_names.check_length("Job owner name", who)
        return method(self, job, who, *args, **kwargs)

    return cast(_M, checked)
