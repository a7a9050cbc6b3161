"""Jobs that are kept in a store: what all boards have in common that keep theirs, and what those in
Redis, ZooKeeper and etcd have, whose jobs are documents.

Such a board may keep the job of a flow under the flow's uuid, as one in the flows' database does:
`repost` posts it unless the board has it, so that a flow is never on the board twice.
"""

from __future__ import annotations

import abc
import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from wbengine import _codec, _json_text, _options, exceptions, states
from wbengine.jobs import base
from wbengine.persistence import base as persistence_base
from wbengine.persistence import models

__all__ = [
    "Identity", "KeptJobBoard", "NewJob", "Posting", "Status", "StoredJob", "StoredJobBoard",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

_T = TypeVar("_T")

#: The key of a flow's `meta` that says on which board its job is.
_SUBMITTED: Final = "submitted"

#: Names of this host that every host has for itself.
_LOOPBACKS: Final = ("localhost", "127.0.0.1", "::1")

#: Seconds that a claim lasts at most.
_LONGEST: Final = 1e9

#: Seconds until who listens for posts connects again.
_LISTEN_AGAIN: Final = 2.0

_PRIORITIES: Final = tuple(base.JobPriority)

#: What reading a damaged document raises.
_DAMAGES: Final = (LookupError, TypeError, ValueError, OverflowError, OSError, RecursionError)


class Posting(NamedTuple):
    """A job as the store has it: `told` has its name, and perhaps its details and its book.

    `sequence` says in which order jobs of one `rank` were posted, `created` when, in unix seconds.
    """

    uuid: str
    rank: int
    sequence: int
    told: Mapping[str, Any]
    created: float
    claims: int = 0

    @classmethod
    def of(
        cls, uuid: str, rank: int, sequence: int, document: str, created: float, claims: int = 0
    ) -> Posting:
        """That of a document, which `StoredJobBoard.post` made.

        :raises Exception: the document is damaged.
        """
        return cls(uuid, rank, sequence, json.loads(document), created, claims)


class NewJob(NamedTuple):
    """A job that is to be posted, with its details as they are kept."""

    uuid: str
    name: str
    book: models.LogBook | None
    details: Any
    priority: base.JobPriority
    #: Whether it is about the flow of its uuid.
    is_of_flow: bool

    @classmethod
    def of(
        cls,
        uuid: str,
        name: str,
        book: models.LogBook | None,
        details: Mapping[str, Any] | None,
        priority: base.JobPriority | str,
    ) -> NewJob:
        """:raises ValueError, TypeError, NotEncodable: what it is of `JobBoard.post`."""
        told = base.posting_details(uuid, book, details)
        if not _is_key(uuid):
            raise ValueError(f"{uuid!r:.80} is no uuid of a flow")
        packed, chosen = _codec.pack(told, "details"), base.JobPriority.convert(priority)
        is_of_flow = told.get("flow_uuid") == uuid
        return cls(uuid, _options.text("name", name), book, packed, chosen, is_of_flow)

    @classmethod
    def of_flow(
        cls, uuid: str, name: str, book: models.LogBook, priority: base.JobPriority | str
    ) -> NewJob:
        """The job of a flow, with the flow's uuid."""
        return cls.of(uuid, name, book, {"flow_uuid": uuid}, priority)

    @property
    def document(self) -> str:
        """It all, as JSON."""
        told: dict[str, Any] = {
            "uuid": self.uuid,
            "name": self.name,
            "priority": self.priority.value,
            "details": self.details,
        }
        if self.book is not None:
            told["book"] = {"name": self.book.name, "uuid": self.book.uuid}
        return json.dumps(told)


class Status(NamedTuple):
    """What becomes of a job: `remaining` is for how many seconds more its claim holds, if told."""

    claims: int
    updated: float
    owner: str | None = None
    remaining: float | None = None


class Identity(NamedTuple):
    """Which board a store has: its `id`, which is kept there, and the `run` of the server.

    The server may have lost jobs when either changes; `run` is empty where it loses none.
    """

    id: str
    run: str = ""


class StoredJob(base.Job):
    """A job of a `KeptJobBoard`."""

    def __init__(self, board: KeptJobBoard, posting: Posting) -> None:
        told = posting.told
        super().__init__(
            board, told["name"], posting.uuid, backend=board.persistence, book_data=told.get("book")
        )
        self._stored_board = board
        self._packed: Any = told.get("details")
        self._priority = _PRIORITIES[posting.rank]
        self._created = _moment(posting.created)
        self._claims = posting.claims
        #: In which order it was posted.
        self.sequence: Final = posting.sequence
        #: The claim that this object made, as its board names it; None: none.
        self.claim: Any = None

    @property
    def details(self) -> dict[str, Any]:
        """What was posted with it.

        :raises JobFailure: it cannot be read, which keeps nobody from reading other jobs.
        """
        if self._packed is not None:
            try:
                packed = self._packed
                found = _codec.unpack(json.loads(packed) if isinstance(packed, str) else packed)
            except (ValueError, RecursionError, exceptions.InvalidFormat) as error:
                raise exceptions.JobFailure(
                    f"{self} has details that are damaged", error
                ) from error
            if not isinstance(found, dict):
                raise exceptions.JobFailure(
                    f"{self} has details that are a {type(found).__name__}, and no dict"
                )
            self._details, self._packed = found, None
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
        found = self._stored_board.look(self)
        return None if found is None else _moment(found.updated)

    @property
    def state(self) -> str:
        found = self._stored_board.look(self)
        if found is None:
            return states.COMPLETE
        return states.UNCLAIMED if found.owner is None else states.CLAIMED

    def expires_in(self) -> float | None:
        found = self._stored_board.look(self)
        return None if found is None else found.remaining

    def extend_expiry(self, expiry: float) -> bool:
        return self._stored_board.extend(self, check_expiry("expiry", expiry))

    def claimed(self, claim: Any, claims: int) -> None:
        """Note that this object made a claim, the last of so many."""
        self.claim, self._claims = claim, claims

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, StoredJob):
            return NotImplemented
        return (self.priority.rank, self.sequence) < (other.priority.rank, other.sequence)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredJob) and other.uuid == self.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)


class KeptJobBoard(base.NotifyingJobBoard):
    """A board whose jobs are in a store; what is one step of the store is for its classes."""

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf)
        self.persistence: Final = persistence
        # The jobs that could not be read: each is logged once.
        self._unreadable: set[str] = set()

    # -- what the store does --------------------------------------------------------------------

    @abc.abstractmethod
    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        """The jobs in the order in which they are given out, read some at a time.

        Each is a name for logs, and what the store has, for `_parse`.
        """

    @abc.abstractmethod
    def _parse(self, row: Any) -> Posting:
        """The job that the store has as `row`; raises whatever there is if it is damaged."""

    @abc.abstractmethod
    def _put(self, job: NewJob) -> Posting | None:
        """Keep a new job; None: there is one with this uuid, or it was trashed."""

    @abc.abstractmethod
    def _find(self, uuid: str) -> Any:
        """What the store has of the job with this uuid, for `_parse`; None: nothing."""

    @abc.abstractmethod
    def _is_trashed(self, uuid: str) -> bool:
        """What `is_trashed` does."""

    @abc.abstractmethod
    def look(self, job: base.Job) -> Status | None:
        """What becomes of a job; None: it is not on the board (any more)."""

    @abc.abstractmethod
    def _claim(self, job: base.Job, who: str, expiry: float | None) -> tuple[Any, int] | Status:
        """Claim a job: the name of the claim, and the number of claims; else who has claimed it.

        :raises NotFound: it is not on the board any more.
        """

    @abc.abstractmethod
    def _end_claim(self, job: base.Job, who: str, how: str) -> Status | None:
        """Consume, abandon or trash a job; None: it was done, else who has claimed it, if any.

        :raises NotFound: it is not on the board any more.
        """

    @abc.abstractmethod
    def extend(self, job: StoredJob, expiry: float) -> bool:
        """What `Job.extend_expiry` does."""

    # -- posting --------------------------------------------------------------------------------

    def post(
        self,
        name: str,
        book: models.LogBook | None = None,
        details: Mapping[str, Any] | None = None,
        priority: base.JobPriority | str = base.JobPriority.NORMAL,
    ) -> StoredJob:
        found = self._put(NewJob.of(models.new_uuid(), name, book, details, priority))
        if found is None:
            raise exceptions.JobFailure(f"Posting job {name!r} failed: another one has its uuid")
        return self._posted(found)

    def repost(
        self,
        flow_uuid: str,
        name: str,
        book: models.LogBook,
        priority: base.JobPriority | str = base.JobPriority.NORMAL,
    ) -> StoredJob | None:
        """Post a job for a flow that is kept, with the flow's uuid; None: there is or was one."""
        found = self._put(NewJob.of_flow(flow_uuid, name, book, priority))
        return found and self._posted(found)

    def _posted(self, found: Posting) -> StoredJob:
        """The job that was posted just now; tells of it."""
        job = StoredJob(self, found)
        self.notifier.notify(base.POSTED, {"job": job})
        return job

    # -- listing --------------------------------------------------------------------------------

    def iterjobs(
        self, only_unclaimed: bool = False, ensure_fresh: bool = False
    ) -> base.JobBoardIterator:
        jobs = self._jobs(only_unclaimed, ensure_fresh)
        return base.JobBoardIterator(self, jobs, only_unclaimed, ensure_fresh)

    def _jobs(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[StoredJob]:
        for name, row in self._rows(only_unclaimed, ensure_fresh):
            try:
                job = StoredJob(self, self._parse(row))
            except _DAMAGES as error:
                # Of a later version, or damaged: it keeps nobody from the others.
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    LOG.warning("Job %s cannot be read, and is left: %r", name, error)
                continue
            yield job

    def find(self, uuid: str) -> StoredJob | None:
        """The job with this uuid; None: it is not on the board (any more)."""
        row = self._find(uuid) if _is_key(uuid) else None
        if row is None:
            return None
        try:
            return StoredJob(self, self._parse(row))
        except _DAMAGES as error:
            raise exceptions.JobFailure(f"Job {uuid} cannot be read: {error!r}") from error

    def is_trashed(self, uuid: str) -> bool:
        """Whether the job with this uuid was trashed."""
        return _is_key(uuid) and self._is_trashed(uuid)

    def find_owner(self, job: base.Job) -> str | None:
        found = self.look(job)
        return None if found is None else found.owner

    # -- claims ---------------------------------------------------------------------------------

    @base.check_who
    def claim(self, job: base.Job, who: str, expiry: float | None = None) -> None:
        found = self._claim(job, who, None if expiry is None else check_expiry("expiry", expiry))
        if isinstance(found, Status):
            left, owner = found.remaining, found.owner
            until = "" if left is None else f", for {left:.1f} seconds more"
            why = "waits for its time" if owner is None else f"is claimed by {owner}"
            raise exceptions.UnclaimableJob(f"{job} {why}{until}")
        if isinstance(job, StoredJob):
            job.claimed(*found)
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

    def _end(self, job: base.Job, who: str, how: str) -> None:
        found = self._end_claim(job, who, how)
        if found is None:
            return
        if found.owner is None:
            raise exceptions.NotFound(f"{job} is not claimed: {who} cannot {how} it")
        again = " anew" if found.owner == who else ""
        raise exceptions.JobFailure(
            f"{job} is claimed{again} by {found.owner}: {who} cannot {how} it"
        )


class StoredJobBoard(KeptJobBoard):
    """A board whose jobs are documents of a store that has no flows.

    :raises ValueError: an option is wrong.
    """

    #: The kind of the store.
    KIND: ClassVar[str]
    #: What reads each of the options.
    OPTIONS: ClassVar[Mapping[str, _options.Reader]]

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        client: Any = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, persistence)
        #: The options that were given.
        self._given: Final = _options.read(f"A job board in {self.KIND}", self._conf, self.OPTIONS)
        self._owns_client: Final = client is None
        #: Unless it is given, the board's class makes it, and says where its store is.
        self._client: Any = client
        #: Where the store is, as hosts name it; None: only its client knows.
        self.address: str | None = None
        self._opened = False
        # The ids that the board has had, the last one last: a store that lost its data has another.
        self._ids: list[str] = []

    # -- what the store does --------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def place(self) -> str:
        """What tells the board from others of its store."""

    @abc.abstractmethod
    def _open_client(self) -> None:
        """Make sure that the client reaches the store."""

    def _close_client(self) -> None:
        """Let the client that the board made go; it may be opened again."""

    @abc.abstractmethod
    def _reason(self, error: BaseException) -> str | None:
        """What an error of the client says; None: it is none."""

    @abc.abstractmethod
    def _identify(self, new: str) -> Identity:
        """What `identify` returns; the id is `new` if there is none yet."""

    def _put_all(self, jobs: Sequence[NewJob]) -> list[Posting | None]:
        """What `_put` does, of many: in one step, where the store has one for that."""
        return [self._put(job) for job in jobs]

    # -- being connected ------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._opened

    def connect(self) -> None:
        if not self._opened:
            try:
                with self._failures("Connecting"):
                    self._open_client()
                self._opened = True
                self.identify()
            except BaseException:
                self.close()
                raise
        self._check_connected()

    def close(self) -> None:
        self._opened = False
        if self._owns_client:
            self._close_client()

    def _check_connected(self) -> None:
        if not self.connected:
            raise exceptions.JobFailure(f"Job board {self.name!r} is not connected")

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Ask the store.

        :raises JobFailure: it says no, or the board is not connected.
        """
        self._check_connected()
        with self._failures(what):
            yield

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Raise what is wrong with the store as what is wrong with the board."""
        try:
            yield
        except BaseException as error:
            why = self._reason(error)
            if why is None:
                raise
            raise exceptions.JobFailure(
                f"{what} failed: job board {self.name!r} in {self.place}: {why}"
            ) from error

    # -- which board it is ----------------------------------------------------------------------

    def identify(self) -> Identity:
        """Ask the store which board it has.

        What `connect` does first: the board gets an id unless it has one.
        """
        found = self._identify(models.new_uuid())
        if found.id not in self._ids:
            self._ids.append(found.id)
        return found

    @property
    def note(self) -> dict[str, str]:
        """What a flow is noted with whose job is to be on this board."""
        if not self._ids:
            raise exceptions.JobFailure(f"Job board {self.name!r} was never connected")
        found = {"board": self._ids[-1]}
        return found if self.address is None else {**found, "at": f"{self.address} {self.place}"}

    def is_noted(self, note: Mapping[str, Any]) -> bool:
        """Whether a note is about this board, be it under another address.

        The id of a store that has lost its data is gone with that: there the address decides.
        """
        own = self.note
        return note.get("board") in self._ids or ("at" in own and note.get("at") == own["at"])

    def repost_all(
        self,
        flows: Iterable[tuple[models.FlowDetail, models.LogBook]],
        priority: base.JobPriority | str = base.JobPriority.NORMAL,
    ) -> list[StoredJob | None]:
        """What `repost` does, of many flows, each in its book."""
        made = [NewJob.of_flow(flow.uuid, flow.name, book, priority) for flow, book in flows]
        return [found and self._posted(found) for found in self._put_all(made)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} in {self.place}>"


def note_submitted(meta: dict[str, Any], board: StoredJobBoard, priority: base.JobPriority) -> None:
    """Note in a flow that its job is to be on a board, which is in another store than the flow."""
    meta[_SUBMITTED] = {**board.note, "priority": priority.value}


def is_noted(meta: Mapping[str, Any]) -> bool:
    """Whether a flow says on which board its job is to be."""
    return isinstance(meta.get(_SUBMITTED), Mapping)


def submitted(meta: Mapping[str, Any], board: base.JobBoard) -> base.JobPriority | None:
    """How urgent a flow is that was submitted to this very board; None: it was not."""
    told = meta.get(_SUBMITTED)
    if not isinstance(told, Mapping) or not isinstance(board, StoredJobBoard):
        return None
    if not board.is_noted(told):
        return None
    try:
        return base.JobPriority.convert(told.get("priority", ""))
    except ValueError:  # of a later version
        return base.JobPriority.NORMAL


def located(job: base.Job, key: Callable[[StoredJob], _T], find: Callable[[str], _T | None]) -> _T:
    """Where a job is: `key` says it of one that was read, `find` looks for the uuid of any other.

    :raises NotFound: it is not on the board any more.
    """
    found = key(job) if isinstance(job, StoredJob) else find(job.uuid)
    if found is None:
        raise gone(job)
    return found


def host_name(host: str) -> str:
    """The name of a host that tells it from others, also where it calls itself localhost."""
    return socket.gethostname() if host in _LOOPBACKS else host


def gone(job: base.Job) -> exceptions.NotFound:
    """What to raise of a job that is on the board no more."""
    return exceptions.NotFound(f"{job} is not on the board any more")


def claim_of(job: base.Job) -> Any:
    """The claim that a job object made, as its board names it; None: none."""
    return job.claim if isinstance(job, StoredJob) else None


def check_expiry(name: str, value: Any) -> float:
    """Read an option that says for how many seconds a claim is to last.

    :raises ValueError: it is no number above 0, or too large for one.
    """
    found = _options.number(name, value)
    if not 0 < found <= _LONGEST:
        raise ValueError(f"Option {name}={value} is no time for a claim to last")
    return found


@contextlib.contextmanager
def listening(board: base.JobBoard, listen: Callable[[threading.Event], None]) -> Iterator[None]:
    """In the block, `listen` for posts in a thread, until an event; again when it fails."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                listen(ended)
            except Exception as error:
                LOG.debug("Posts to %r are not heard: %s", board, error)
                ended.wait(_LISTEN_AGAIN)

    thread = threading.Thread(target=work, name="wbengine-posts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def page_sizes(largest: int = 1024) -> Iterator[int]:
    """How many jobs to read at a time: few at first, for who wants one only."""
    size = 16
    while True:
        yield size
        size = min(4 * size, largest)


def _is_key(uuid: object) -> bool:
    """Whether a store can have a job under this uuid."""
    return isinstance(uuid, str) and bool(uuid) and _json_text.is_text(uuid)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
