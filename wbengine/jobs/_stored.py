"""Common parts of boards that keep their jobs in a store.

`StoredJobBoard` is the base of the boards in Redis, ZooKeeper and etcd, whose jobs are documents.
Like a board in the flows' database, it stores the job of a flow under the flow's uuid, so that a
flow is never on the board twice.
"""

from __future__ import annotations

import abc
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from wbengine import exceptions, states
from wbengine._concurrency import conditions, forks, threads
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine._text import data_formats, json_text
from wbengine.jobs import _places, base
from wbengine.persistence import _sealed_fields, models
from wbengine.persistence import base as persistence_base
from wbengine.types import codec

if TYPE_CHECKING:
    from wbengine.jobs._queues import BaseJobQueues

__all__ = [
    "Identity", "BaseStoredJobBoard", "NewJob", "Posting", "Status", "StoredJob", "StoredJobBoard",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")

_MAX_CLAIM_SECONDS: Final = 1e9

#: Pause before a failed listener for posts connects again.
_RELISTEN_SECONDS: Final = 2.0

_PRIORITIES: Final = tuple(base.JobPriority)

_DAMAGE_ERRORS: Final = (
    exceptions.IncompatibleVersion, LookupError, TypeError, ValueError, OverflowError, OSError,
    RecursionError,
)  # fmt: skip


class Posting(NamedTuple):
    """A job in the store. `content` contains its name and optionally details and logbook.

    `sequence` is the order of posting among jobs of one `rank`; `created` is in Unix seconds.
    """

    uuid: str
    rank: int
    sequence: int
    content: Mapping[str, Any]
    created: float
    claims: int = 0

    @classmethod
    def of(
        cls, uuid: str, rank: int, sequence: int, document: str, created: float, claims: int = 0
    ) -> Posting:
        """Create it from a document of `StoredJobBoard.post`.

        :raises IncompatibleVersion: if another release wrote the document.
        :raises Exception: if the document is damaged.
        """
        content = json.loads(document)
        data_formats.JOB.check(f"job {uuid}", content["format"])
        return cls(uuid, rank, sequence, content, created, claims)


class NewJob(NamedTuple):
    """A job to post, with encoded details."""

    uuid: str
    name: str
    book: models.LogBook | None
    details: Any
    place: _places.Place
    #: Whether its uuid is the uuid of its flow.
    is_of_flow: bool

    @classmethod
    def of(
        cls,
        uuid: str,
        name: str,
        book: models.LogBook | None,
        details: Mapping[str, Any] | None,
        place: _places.Place | base.JobPriority | str,
    ) -> NewJob:
        """Validate the arguments of `JobBoard.post` and encode the details.

        :raises ValueError, TypeError, NotEncodable: as `JobBoard.post` does.
        """
        signed_details = base.posting_details(uuid, book, details)
        if not _is_key(uuid):
            raise ValueError(f"uuid must be the uuid of a flow, got {uuid!r:.80}")
        packed = codec.pack(signed_details, "details")
        packed = _sealed_fields.sealed_parts(
            packed, _sealed_fields.secret_details(packed), *_sealed_fields.place_of_details(uuid)
        )
        converted = _places.Place.convert(place)
        is_of_flow = signed_details.get("flow_uuid") == uuid
        object_names.check_length("Job name", named_options.text("name", name))
        return cls(uuid, name, book, packed, converted, is_of_flow)

    @classmethod
    def of_flow(
        cls,
        uuid: str,
        name: str,
        book: models.LogBook,
        place: _places.Place | base.JobPriority | str,
    ) -> NewJob:
        return cls.of(uuid, name, book, {"flow_uuid": uuid}, place)

    @property
    def priority(self) -> base.JobPriority:
        return self.place.priority

    @property
    def document(self) -> str:
        """All fields but the place as JSON."""
        fields: dict[str, Any] = {
            "format": data_formats.JOB.written,
            "uuid": self.uuid,
            "name": self.name,
            "priority": self.priority.value,
            "details": self.details,
        }
        if self.book is not None:
            fields["book"] = {"name": self.book.name, "uuid": self.book.uuid}
        return json.dumps(fields)


class Status(NamedTuple):
    """The state of a job. `remaining` is in seconds until the claim expires, if known."""

    claims: int
    updated: float
    owner: str | None = None
    remaining: float | None = None


class Identity(NamedTuple):
    """The identity of a board: its `id`, which is in the store, and the `run` of the server.

    If either changes, the server may have lost jobs. `run` is empty if the server loses none.
    """

    id: str
    run: str = ""


class StoredJob(base.Job):
    """A job of a `BaseStoredJobBoard`."""

    def __init__(self, board: BaseStoredJobBoard, posting: Posting) -> None:
        content = posting.content
        super().__init__(
            board,
            content["name"],
            posting.uuid,
            backend=board.persistence,
            book_data=content.get("book"),
        )
        self._stored_board = board
        self._packed: Any = content.get("details")
        self._priority = _PRIORITIES[posting.rank]
        self._created = _moment(posting.created)
        self._claims = posting.claims
        self._sequence = posting.sequence
        #: The claim of this object in the format of its board, or None.
        self.claim: Any = None
        #: Number of a blocked job from `SQLJobBoard.blocked_jobs`, which grows when the job is
        #: blocked again after it was due; None for other jobs.
        self.block_number: float | None = None

    @property
    def sequence(self) -> int:
        return self._sequence

    @property
    def details(self) -> dict[str, Any]:
        """The details of the job.

        :raises JobFailure: if they are damaged. Other jobs stay readable.
        """
        if self._packed is not None:
            try:
                packed = self._packed
                packed = json.loads(packed) if isinstance(packed, str) else packed
                if isinstance(packed, dict):
                    packed = _sealed_fields.opened_parts(
                        packed, *_sealed_fields.place_of_details(self.uuid)
                    )
                details = codec.unpack(packed)
            except (
                ValueError, RecursionError, exceptions.InvalidFormat, exceptions.NotTrusted
            ) as error:  # fmt: skip
                raise exceptions.JobFailure(f"Details of {self} are damaged", error) from error
            if not isinstance(details, dict):
                raise exceptions.JobFailure(
                    f"Details of {self} must be a dict, got {type(details).__name__}"
                )
            self._details, self._packed = details, None
        return self._details

    @property
    def priority(self) -> base.JobPriority:
        return self._priority

    @property
    def claims(self) -> int:
        return self._claims

    @property
    def created_on(self) -> datetime:
        return self._created

    @property
    def last_modified(self) -> datetime | None:
        status = self._stored_board.status_of(self)
        return None if status is None else _moment(status.updated)

    @property
    def state(self) -> str:
        status = self._stored_board.status_of(self)
        if status is None:
            return states.COMPLETE
        return states.UNCLAIMED if status.owner is None else states.CLAIMED

    def expires_in(self) -> float:
        status = self._stored_board.status_of(self)
        if status is None or status.owner is None:
            return base.UnknownExpire.KEY_NOT_FOUND
        seconds = status.remaining
        return base.UnknownExpire.DOES_NOT_EXPIRE if seconds is None else seconds

    def extend_expiry(self, expiry: float) -> bool:
        return self._stored_board.extend(self, check_expiry("expiry", expiry))

    def record_claim(self, claim: Any, claims: int, seconds: float | None) -> None:
        """Record a claim of this object: its name, the number of all claims, and its duration."""
        self.claim, self._claims, self.claim_seconds = claim, claims, seconds

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, StoredJob):
            return NotImplemented
        return (self.priority.rank, self.sequence) < (other.priority.rank, other.sequence)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredJob) and other.uuid == self.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)


class BaseStoredJobBoard(base.NotifyingJobBoard):
    """A board that keeps its jobs in a store. Subclasses implement the operations of the store."""

    JOB: ClassVar[type[StoredJob]] = StoredJob
    #: Duration of claims from the options of the board, or None.
    claim_seconds: float | None = None
    #: Names of the queues of `take`, in this order; '*': all others, in a random order. Boards
    #: without queues ignore it.
    queues: Sequence[str] = (_places.DEFAULT_QUEUE,)
    #: The queues of the board, or None if it stores only priorities.
    job_queues: BaseJobQueues | None = None

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf)
        self.persistence: Final = persistence
        # Unreadable jobs; each is logged once.
        self._unreadable: set[str] = set()

    @abc.abstractmethod
    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        """Yield the jobs in the order of claims, read in pages.

        Each one is a name for logs and the stored data for `_parse`.
        """

    @abc.abstractmethod
    def _parse(self, row: Any) -> Posting:
        """Return the job for stored data. Any exception means damaged data."""

    @abc.abstractmethod
    def _put(self, job: NewJob) -> Posting | None:
        """Store a new job. Return None if its uuid exists, even in the trash."""

    def _put_all(self, jobs: Sequence[NewJob]) -> list[Posting | None]:
        """Store several jobs like `_put`, in one step if the store supports it."""
        return [self._put(job) for job in jobs]

    @abc.abstractmethod
    def _find(self, uuid: str) -> Any:
        """Return the stored data of a job for `_parse`, or None."""

    @abc.abstractmethod
    def _is_trashed(self, uuid: str) -> bool:
        """Implement `is_trashed`."""

    @abc.abstractmethod
    def _delete_trashed(self, uuid: str) -> None:
        """Delete the job with this uuid if it is in the trash."""

    @property
    @abc.abstractmethod
    def note(self) -> dict[str, str]:
        """The entry in the `meta` of a flow whose job belongs on this board."""

    def is_noted(self, note: Mapping[str, Any]) -> bool:
        """Return True if the note in a flow refers to this board."""
        return all(note.get(name) == value for name, value in self.note.items())

    @abc.abstractmethod
    def status_of(self, job: base.Job) -> Status | None:
        """Return the state of a job, or None if it is not on the board."""

    @abc.abstractmethod
    def _claim(self, job: base.Job, who: str, expiry: float | None) -> tuple[Any, int] | Status:
        """Claim a job. Return the claim and the number of claims, or the state of a claimed job.

        :raises NotFound: if the job is not on the board.
        """

    @abc.abstractmethod
    def _end_claim(self, job: base.Job, who: str, action: str) -> Status | None:
        """Consume, abandon or trash a job. Return None on success, otherwise the state of the job.

        :raises NotFound: if the job is not on the board.
        """

    @abc.abstractmethod
    def extend(self, job: StoredJob, expiry: float) -> bool:
        """Implement `Job.extend_expiry`."""

    def check_place(self, place: _places.Place) -> None:
        """Check that the board can store the place of a job.

        :raises ValueError: if it has a queue or a key, and the board stores only priorities.
        """
        if self.job_queues is None:
            place.check_plain()

    def make_due(self, uuid: str) -> None:
        """Let conductors take the job with this uuid, if there is one, before new flows."""

    def post(
        self,
        name: str,
        book: models.LogBook | None = None,
        details: Mapping[str, Any] | None = None,
        priority: base.JobPriority | str = base.JobPriority.NORMAL,
    ) -> StoredJob:
        posting = self._put(NewJob.of(models.new_uuid(), name, book, details, priority))
        if posting is None:
            raise exceptions.JobFailure(f"Posting job {name!r} failed: another job has its uuid")
        return self._posted(posting)

    def repost(
        self,
        flow_uuid: str,
        name: str,
        book: models.LogBook,
        place: _places.Place | base.JobPriority | str = base.JobPriority.NORMAL,
        *,
        replaces_trashed: bool = False,
    ) -> StoredJob | None:
        """Post a job under the uuid of a stored flow. Return None if it has one, even trashed.

        :param place: its priority, or its place among waiting jobs.
        :param replaces_trashed: delete a job in the trash first.
        """
        if replaces_trashed:
            self._delete_trashed(flow_uuid)
        job = NewJob.of_flow(flow_uuid, name, book, place)
        self.check_place(job.place)
        posting = self._put(job)
        return posting and self._posted(posting)

    def repost_all(
        self,
        flows: Iterable[tuple[models.FlowDetail, models.LogBook]],
        places: Iterable[_places.Place],
    ) -> list[StoredJob | None]:
        """Repost several flows, each with its logbook and a place; see `repost`."""
        new_jobs = [
            NewJob.of_flow(flow.uuid, flow.name, book, place)
            for (flow, book), place in zip(flows, places, strict=True)
        ]
        for job in new_jobs:
            self.check_place(job.place)
        return [posting and self._posted(posting) for posting in self._put_all(new_jobs)]

    def _posted(self, posting: Posting) -> StoredJob:
        job = self.JOB(self, posting)
        self.notifier.notify(base.POSTED, {"job": job})
        return job

    def iterjobs(
        self, only_unclaimed: bool = False, ensure_fresh: bool = False
    ) -> base.JobBoardIterator:
        jobs = self._jobs(only_unclaimed, ensure_fresh)
        return base.JobBoardIterator(self, jobs, only_unclaimed, ensure_fresh)

    def _jobs(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[StoredJob]:
        for name, row in self._rows(only_unclaimed, ensure_fresh):
            job = self._readable(name, row)
            if job is not None:
                yield job

    def _readable(self, name: str, row: Any) -> StoredJob | None:
        """Return the job of a row. None: it is damaged, or of a later version; this is logged."""
        try:
            return self.JOB(self, self._parse(row))
        except _DAMAGE_ERRORS as error:
            if name not in self._unreadable:
                self._unreadable.add(name)
                LOG.warning("cannot read job %s; ignoring it: %r", name, error)
            return None

    def find(self, uuid: str) -> StoredJob | None:
        """Return the job with this uuid, or None if it is not on the board."""
        row = self._find(uuid) if _is_key(uuid) else None
        if row is None:
            return None
        try:
            return self.JOB(self, self._parse(row))
        except _DAMAGE_ERRORS as error:
            raise exceptions.JobFailure(f"Cannot read job {uuid}: {error!r}") from error

    def is_trashed(self, uuid: str) -> bool:
        """Return True if the job with this uuid is in the trash."""
        return _is_key(uuid) and self._is_trashed(uuid)

    def find_owner(self, job: base.Job) -> str | None:
        status = self.status_of(job)
        return None if status is None else status.owner

    @base.check_who
    def claim(self, job: base.Job, who: str, expiry: float | None = None) -> None:
        if expiry is None:
            expiry = self.claim_seconds or base.default_expiry.get()
        seconds = None if expiry is None else check_expiry("expiry", expiry)
        result = self._claim(job, who, seconds)
        if isinstance(result, Status):
            remaining, owner = result.remaining, result.owner
            until = "" if remaining is None else f" for {remaining:.1f} more seconds"
            reason = "is not due" if owner is None else f"is claimed by {owner}"
            raise exceptions.UnclaimableJob(f"{job} {reason}{until}")
        if isinstance(job, StoredJob):
            job.record_claim(*result, seconds)
        self.notifier.notify(base.CLAIMED, {"job": job, "who": who})

    @base.check_who
    def consume(self, job: base.Job, who: str) -> None:
        self._end(job, who, "consume")
        self.notifier.notify(base.REMOVAL, {"job": job})

    @base.check_who
    def abandon(self, job: base.Job, who: str) -> None:
        self._end(job, who, "abandon")

    @base.check_who
    def trash(self, job: base.Job, who: str) -> None:
        self._end(job, who, "trash")
        self.notifier.notify(base.REMOVAL, {"job": job})

    def _end(self, job: base.Job, who: str, action: str) -> None:
        status = self._end_claim(job, who, action)
        if status is None:
            return
        if status.owner is None:
            raise exceptions.NotFound(f"{who} cannot {action} {job}: it is not claimed")
        again = " again" if status.owner == who else ""
        raise exceptions.JobFailure(
            f"{who} cannot {action} {job}: it was claimed{again} by {status.owner}"
        )


class StoredJobBoard(BaseStoredJobBoard):
    """A board whose jobs are documents in a store without flows.

    :raises ValueError: if an option is invalid.
    """

    KIND: ClassVar[str]
    #: Functions that read the options, by name.
    OPTIONS: ClassVar[Mapping[str, named_options.Reader]]
    #: Whether a fork can use the client: it opens connections of its own.
    _is_fork_safe: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, persistence)
        self._settings: Final = named_options.read(
            f"A job board in {self.KIND}", self._conf, self.OPTIONS
        )
        self._owns_client: Final = client is None
        #: The given client, or the one that the subclass creates.
        self._client: Any = client
        #: Address of the store; None if only the client contains it.
        self.address: str | None = None
        self._opened = False
        # The process that connected the client.
        self._pid = forks.current_pid
        # All ids of the board so far, latest last. A store that lost its data gets a new id.
        self._ids: list[str] = []

    @property
    @abc.abstractmethod
    def place(self) -> str:
        """Description that distinguishes the board from others in its store."""

    @abc.abstractmethod
    def _open_client(self) -> None:
        """Connect the client to the store."""

    def _close_client(self) -> None:
        """Close the client that the board created; it may be opened again."""

    @abc.abstractmethod
    def _reason(self, error: BaseException) -> str | None:
        """Return the message of a client error, or None for other errors."""

    @abc.abstractmethod
    def _identify(self, new: str) -> Identity:
        """Return the identity of the board; `new` becomes its id if there is none."""

    @property
    def connected(self) -> bool:
        return self._opened

    def connect(self) -> None:
        if not self._opened:
            try:
                with self._failures("Connecting"):
                    self._open_client()
                self._opened, self._pid = True, forks.current_pid
                self.identify()
            except BaseException:
                self.close()
                raise
        self._check_connected()

    @property
    def _is_inherited(self) -> bool:
        return self._opened and not self._is_fork_safe and self._pid != forks.current_pid

    def close(self) -> None:
        is_inherited, self._opened = self._is_inherited, False
        if self._owns_client and not is_inherited:
            self._close_client()

    def _check_connected(self) -> None:
        if self._is_inherited:
            raise exceptions.JobFailure(
                f"Job board {self.name!r} was connected in process {self._pid}, and cannot be used"
                " in its fork: create a board after the fork"
            )
        if not self.connected:
            raise exceptions.JobFailure(f"Job board {self.name!r} is not connected")

    @contextlib.contextmanager
    def _accessing_store(self, what: str) -> Iterator[None]:
        """Check the connection, and convert errors of the store.

        :raises JobFailure: if the store fails or the board is not connected.
        """
        self._check_connected()
        with self._failures(what):
            yield

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            reason = self._reason(error)
            if reason is None:
                raise
            raise exceptions.JobFailure(
                f"{what} failed: job board {self.name!r} in {self.place}: {reason}"
            ) from error

    def identify(self) -> Identity:
        """Read the id of the board from the store, and create it if there is none."""
        identity = self._identify(models.new_uuid())
        if identity.id not in self._ids:
            self._ids.append(identity.id)
        return identity

    @property
    def note(self) -> dict[str, str]:
        """The entry in the `meta` of a flow whose job belongs on this board."""
        if not self._ids:
            raise exceptions.JobFailure(f"Job board {self.name!r} must be connected first")
        note = {"board": self._ids[-1]}
        return note if self.address is None else {**note, "at": f"{self.address} {self.place}"}

    def is_noted(self, note: Mapping[str, Any]) -> bool:
        """Return True if the note refers to this board, even under another address.

        If the store lost its data, and with it the id, the address decides.
        """
        own = self.note
        return note.get("board") in self._ids or ("at" in own and note.get("at") == own["at"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} in {self.place}>"


def note_submitted(meta: dict[str, Any], board: BaseStoredJobBoard, place: _places.Place) -> None:
    """Record in a flow's `meta` that it was submitted: the board and the place of its job."""
    meta[models.SUBMITTED] = {**board.note, **place.to_dict()}


def submitted(flow: models.FlowDetail, board: base.JobBoard) -> _places.Place | None:
    """Return the place of the job of a flow that was submitted to this board, or None.

    A fork that is held gets no job yet.
    """
    note = flow.meta_value(models.SUBMITTED)
    if (
        flow.awaits_reversion
        or not isinstance(note, Mapping)
        or not isinstance(board, BaseStoredJobBoard)
    ):
        return None
    return _places.Place.from_dict(note) if board.is_noted(note) else None


def located(job: base.Job, key: Callable[[StoredJob], _T], find: Callable[[str], _T | None]) -> _T:
    """Return the location of a job: `key` for jobs that were read, `find` by uuid for others.

    :raises NotFound: if the job is not on the board.
    """
    location = key(job) if isinstance(job, StoredJob) else find(job.uuid)
    if location is None:
        raise missing_job_error(job)
    return location


def missing_job_error(job: base.Job) -> exceptions.NotFound:
    return exceptions.NotFound(f"{job} is no longer on the job board")


def claim_of(job: base.Job) -> Any:
    """Return the claim of a job object in the format of its board, or None."""
    return job.claim if isinstance(job, StoredJob) else None


def check_expiry(name: str, value: Any) -> float:
    """Read an option with the duration of a claim in seconds.

    :raises ValueError: if it is not a number above 0, or too large.
    """
    seconds = named_options.number(name, value)
    if not 0 < seconds <= _MAX_CLAIM_SECONDS:
        raise ValueError(f"Option {name} must be a number of seconds above 0, got {value}")
    return seconds


@contextlib.contextmanager
def listening(
    board: base.JobBoard, listen: Callable[[conditions.Event], None], poll_seconds: float
) -> Iterator[float]:
    """Run `listen` in a thread until the end of the block; restart it if it ends earlier.

    The value of the block is `poll_seconds` (see `JobBoard.waking`).
    """
    ended = conditions.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                listen(ended)
            except Exception as error:
                LOG.debug("cannot subscribe to posts on %r: %s", board, error)
            ended.wait(_RELISTEN_SECONDS)

    thread = threads.Thread(target=work, name="wbengine-posts", daemon=True)
    thread.start()
    try:
        yield poll_seconds
    finally:
        ended.set()
        thread.join()


def page_sizes(max_size: int = 1024) -> Iterator[int]:
    """Yield sizes of pages. The first ones are small, for callers that need only one job."""
    size = 16
    while True:
        yield size
        size = min(4 * size, max_size)


def _is_key(uuid: object) -> bool:
    return isinstance(uuid, str) and bool(uuid) and json_text.is_text(uuid)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
