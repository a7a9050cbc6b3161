"""A job board in a database: SQLite, MariaDB and MySQL, PostgreSQL."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions, states
from wbengine._concurrency.crash_points import crashpoint
from wbengine._configuration import named_options
from wbengine._introspection import object_names
from wbengine._sql import database_places, dialects, local_wakeups
from wbengine.jobs import _places, _queues, _stored, base
from wbengine.jobs.backends import _sql_turns
from wbengine.persistence import _leases, backends, models
from wbengine.persistence import base as persistence_base
from wbengine.persistence._debounce_keys import DebounceKey
from wbengine.persistence._pauses import TaskPause
from wbengine.persistence._unique_keys import UniqueKey
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import reading, rows, tables, turns, writing
from wbengine.signals import CHILD_PREFIX

__all__ = ["MAX_PAGE_SIZE", "SQLJobBoard"]

_T = TypeVar("_T")

_JOBS: Final = tables.JOBS.name
_FIRST_PAGE_SIZE: Final = 16
MAX_PAGE_SIZE: Final = 1024
#: Time for which a job is parked that only a signal makes due.
_MAX_PARK_SECONDS: Final = 1e9
#: Interval between two polls if a thread watches the file, in case the clock was set.
_WATCHED_POLL_SECONDS: Final = 1.0
#: Minimum of `not_before` for a waiting job; 0 means that the job is due.
_MIN_NOT_BEFORE: Final = 1.0
#: Maximum of `eta` in seconds, some thousand years.
_MAX_DELAY_SECONDS: Final = 1e11
#: `not_before` of a blocked job: this number plus the time of blocking in whole seconds. The index
#: of `not_before` finds these jobs.
MIN_BLOCKED_NOT_BEFORE: Final = 1e12


class SQLJobBoard(_stored.BaseStoredJobBoard):
    """A board in the table `wbe_jobs` of a database, which may also contain the flows.

    Options:

    - `connection`: the URL of the database (or of a folder, 'dir:///...'), with further options of
      `persistence.backends.fetch`. Without it, the jobs are in the database of `persistence`.
    - `namespace` ('default'): boards of one namespace of a database are one board.

    Claims expire by the clock of the database. If that clock is set, a job may be claimed twice or
    late. The lease of its flow prevents two runs at a time.

    :raises ValueError: if an option is invalid, or there is no database.
    """

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, persistence)
        options = dict(self._conf)
        namespace = named_options.text("namespace", options.pop("namespace", "default"))
        self.namespace: Final = object_names.check_length("Option namespace", namespace)
        store = backends.fetch(options) if options else persistence
        if not isinstance(store, sql.SQLBackend):
            raise ValueError(
                f"Store of job board {name!r} must be a database, got {_kind(store)}; pass"
                " connection='postgresql://...', or persistence= with a database backend"
            )
        self._store = store
        self._statements = _Statements(store.options.dialect)
        self._turns = _sql_turns.JobTurns(store.options.dialect)
        self.job_queues = _queues.JobQueues(store, self.namespace)
        self._connected = False
        # Until then, the first queue is likely to have further jobs, and `take` reads nothing else.
        self._busy_until = 0.0
        #: Codes of flows whose jobs are listed neither as unclaimed nor as blocked.
        self.refused_codes: Collection[str] = ()

    @property
    def keeps_flows(self) -> bool:
        """Whether its jobs are in the database of the flows."""
        return self._store is self.persistence

    @property
    def note(self) -> dict[str, str]:
        note = {"namespace": self.namespace}
        return note if self.keeps_flows else {**note, "at": self.address}

    def is_noted(self, note: Mapping[str, Any]) -> bool:
        return super().is_noted(note) and ("at" in note) == (not self.keeps_flows)

    @property
    def address(self) -> str:
        """The database of the jobs, however processes and hosts write its URL."""
        return database_places.place_of(self._store.options)

    @property
    def connected(self) -> bool:
        return self._connected

    def connect(self) -> None:
        with _failures():
            self._store.prepare()
        self._connected = True

    def close(self) -> None:
        self._connected = False
        if not self.keeps_flows:
            self._store.close()

    def post_flow(
        self,
        name: str,
        book: models.LogBook,
        flow: models.FlowDetail,
        place: _places.Place | base.JobPriority | str = base.JobPriority.NORMAL,
        *,
        eta: datetime | float | None = None,
        first: Callable[[sa.Connection], bool] | None = None,
    ) -> _stored.StoredJob | None:
        """Save a new flow in its logbook and post a job with the flow's uuid, in one transaction.

        :param eta: earliest start of the job: a datetime with a time zone, or seconds from now, on
            the clock of the database.
        :param first: the first step of the transaction. If it returns False, nothing is saved and
            None is returned.
        :raises ValueError: if the flows of `persistence` are in another database, or `eta` is
            invalid.
        """
        self._check_keeps_flows()
        job = _stored.NewJob.of_flow(flow.uuid, name, book, place)
        _stored.note_submitted(flow.meta, self, job.place)
        new, statements, row = writing.NewBook(book), self._store.statements, self._row(job)
        delay = self._delay(eta)

        def work(connection: sa.Connection) -> dict[str, Any] | None:
            if first is not None and not first(connection):
                return None
            new.put(connection, statements)
            return self._insert_one(connection, row, delay)

        result = self._transact(f"Submitting flow {flow.name!r}", work)
        return None if result is None else self._posted(self._parse(result))

    def post_flows(
        self,
        flows: Iterable[tuple[models.FlowDetail, models.LogBook]],
        places: Iterable[_places.Place],
        *,
        eta: datetime | float | None = None,
        keys: Iterable[UniqueKey] = (),
        transaction: sa.Connection | None = None,
    ) -> list[tuple[str, _stored.StoredJob | None]]:
        """Save new flows, each in its own logbook, and post their jobs, in one transaction.

        A flow whose unique key has another flow is not saved. If the job of that flow is in the
        trash, it is restored.

        :param places: one for each flow.
        :param keys: none, or one for each flow.
        :param transaction: a transaction of the caller to use (`caller_transactions.joined`).
        :returns: for each flow, its uuid and its job; or the uuid of the flow that has its key, and
            None.
        :raises ValueError: as `post_flow` does.
        :raises UniqueKeyConflict: as `writing.claim_key` does; then nothing is saved.
        """
        self._check_keeps_flows()
        new = []
        for (flow, book), place in zip(flows, places, strict=True):
            job = _stored.NewJob.of_flow(flow.uuid, flow.name, book, place)
            _stored.note_submitted(flow.meta, self, job.place)
            new.append((flow.uuid, writing.NewBook(book), self._row(job)))
        delay, keys_of_flows = self._delay(eta), list(keys)
        if delay is None and transaction is not None:
            # Flows of other keys may be taken before the commit: the turn is that after it.
            delay = self._statements.post_after, 0.0

        def work(connection: sa.Connection) -> list[tuple[str, _stored.Posting | None]]:
            owners = self._claim_keys(connection, [uuid for uuid, _, _ in new], keys_of_flows)
            kept = [each for each, owner in zip(new, owners, strict=True) if each[0] == owner]
            postings = dict[str, _stored.Posting]()
            if kept:
                books = [book for _, book, _ in kept]
                writing.write_new_books(connection, self._store.statements, books)
                self._insert(connection, [row for _, _, row in kept], delay)
            for start in range(0, len(kept), MAX_PAGE_SIZE):
                uuids = [uuid for uuid, _, _ in kept[start : start + MAX_PAGE_SIZE]]
                parameters = {"board": self.namespace, "uuids": uuids}
                for row in connection.execute(self._statements.posted, parameters).mappings():
                    postings[row["uuid"]] = self._parse(row)
            return [
                (owner, postings[owner] if owner == uuid else None)
                for (uuid, _, _), owner in zip(new, owners, strict=True)
            ]

        if not new:
            return []
        return [
            (uuid, None if posting is None else self._posted(posting))
            for uuid, posting in self._transact(
                f"Submitting {len(new)} flows", work, transaction=transaction
            )
        ]

    def post_children(
        self,
        flows: Iterable[tuple[models.FlowDetail, models.LogBook]],
        places: Iterable[_places.Place],
        lease: _leases.Lease,
    ) -> None:
        """Save child flows that do not exist, and post their jobs, in one transaction.

        :param lease: the lease of their parent.
        :raises LeaseLost: if another engine has acquired the lease; then nothing is saved.
        """
        self._check_keeps_flows()
        new = []
        for (flow, book), place in zip(flows, places, strict=True):
            job = _stored.NewJob.of_flow(flow.uuid, flow.name, book, place)
            _stored.note_submitted(flow.meta, self, job.place)
            new.append((flow.uuid, writing.NewBook(book), self._row(job)))
        statements = self._store.statements

        def work(connection: sa.Connection) -> None:
            writing.lock(connection, statements, lease.flow, None, lease)
            parameters = {"uuids": [uuid for uuid, _, _ in new]}
            stored = {row.uuid for row in connection.execute(statements.marks, parameters)}
            missing = [each for each in new if each[0] not in stored]
            if missing:
                writing.write_new_books(connection, statements, [book for _, book, _ in missing])
                self._insert(connection, [row for _, _, row in missing], None)
            crashpoint("sql.before-children-commit")

        self._transact(f"Starting {len(new)} child flows", work)

    def post_debounced(
        self,
        flow: models.FlowDetail,
        book: models.LogBook,
        place: _places.Place,
        key: DebounceKey,
        *,
        replaces: bool = False,
        transaction: sa.Connection | None = None,
    ) -> tuple[str | None, bool]:
        """Save a new flow, or replace one of an earlier submission with this key.

        :param replaces: whether `flow` has the uuid of a stored flow, from an earlier call.
        :param transaction: as in `post_flows`.
        :returns: the uuid of the flow and True. Or, if nothing was written, the uuid with which the
            caller must build the flow (None: a new one), and False.
        :raises ValueError: as `post_flow` does.
        """
        self._check_keeps_flows()
        job = _stored.NewJob.of_flow(flow.uuid, flow.name, book, place)
        _stored.note_submitted(flow.meta, self, job.place)
        new, row, statements = writing.NewBook(book), self._row(job), self._store.statements

        def work(connection: sa.Connection) -> tuple[str | None, bool]:
            owner, seconds = writing.lock_debounce_key(connection, statements, key, flow.uuid)
            if replaces or owner != flow.uuid:
                parameters = {**row, "uuid": owner, "seconds": seconds}
                # First the flow and then the job, as in all transactions that lock both.
                stored = writing.lock_new_flow(connection, statements, owner)
                is_free = connection.execute(self._statements.lock_new_job, parameters).first()
                if stored is not None and is_free is not None:
                    if owner != flow.uuid:
                        return owner, False
                    connection.execute(self._statements.move, parameters)
                    writing.replace_new_flow(connection, statements, new, stored)
                    return owner, True
                if replaces:
                    return None, False
            writing.take_debounce_key(connection, statements, key, flow.uuid)
            writing.write_new_books(connection, statements, [new])
            delay = self._statements.post_after, key.delay(key.max_seconds)
            self._insert(connection, [row], delay)
            return flow.uuid, True

        return self._transact(f"Submitting flow {flow.name!r}", work, transaction=transaction)

    def _claim_keys(
        self, connection: sa.Connection, uuids: list[str], keys: list[UniqueKey]
    ) -> list[str]:
        """Return the uuids of the flows that have these keys, or the given ones without keys."""
        owners, claimed = list(uuids), dict[str, tuple[str, str]]()
        # In the order of names, so that two transactions do not wait for each other.
        for index in sorted(range(len(keys)), key=lambda index: keys[index].name):
            key = keys[index]
            if key.name in claimed:
                owners[index], digest = claimed[key.name]
                key.check(owners[index], digest)
                continue
            owner = writing.claim_key(connection, self._store.statements, key, uuids[index])
            owners[index], claimed[key.name] = owner, (owner, key.digest)
            if owner != uuids[index]:
                trashed_job = {"board": self.namespace, "uuid": owner}
                connection.execute(self._statements.restore, trashed_job)
        return owners

    def _check_keeps_flows(self) -> None:
        if not self.keeps_flows:
            raise ValueError(
                f"Job board {self.name!r} must be in the store of the flows, got another database"
            )

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[float]:
        added = local_wakeups.of_process().adding(self._store.options.url, wake)
        with added, self._listening(wake) as poll_seconds:
            yield poll_seconds

    def _listening(self, wake: Callable[[], None]) -> contextlib.AbstractContextManager[float]:
        engine = self._store.engine
        if _sql.can_watch(engine):
            return _stored.listening(
                self, lambda ended: self._watch(wake, ended.is_set), _WATCHED_POLL_SECONDS
            )
        if not _sql.can_listen(engine):
            return contextlib.nullcontext(self.POLL_SECONDS)
        return _stored.listening(
            self,
            lambda ended: _sql.listen(engine, _JOBS, self.namespace, wake, ended.is_set),
            self.POLL_SECONDS,
        )

    def _watch(self, wake: Callable[[], None], is_over: Callable[[], bool]) -> None:
        self._store.prepare()  # The query requires the tables.
        parameters = {"board": self.namespace}
        query = self._statements.next_due
        _sql.watch(self._store.engine, query, parameters, wake, self.POLL_SECONDS, is_over)

    def _put(self, job: _stored.NewJob) -> _stored.Posting | None:
        """Return None also if the board has a job of the logbook, which may be about this flow."""
        parameters = self._row(job)

        def work(connection: sa.Connection) -> dict[str, Any] | None:
            if job.is_of_flow and connection.execute(self._statements.has_job, parameters).first():
                return None
            try:
                return self._insert_one(connection, parameters)
            except sa.exc.IntegrityError as error:
                raise _PostedMeanwhileError from error

        try:
            row = self._transact(f"Posting job {job.name!r}", work)
        except _PostedMeanwhileError:
            return None
        return None if row is None else self._parse(row)

    def _find(self, uuid: str) -> dict[str, Any] | None:
        return self._first(f"Reading job {uuid}", self._statements.select_job, uuid)

    def with_jobs(self, flow_uuids: Sequence[str]) -> set[str]:
        """Return those of these flows that have a job outside of the trash."""
        parameters = {"uuids": list(flow_uuids)}
        return self._transact(
            "Reading jobs of flows",
            lambda connection: set(connection.scalars(self._statements.with_jobs, parameters)),
            write=False,
        )

    def ready(self, uuids: Sequence[str]) -> set[str]:
        """Return those of these jobs that conductors may take now."""
        if not uuids:
            return set()
        parameters = {"uuids": list(uuids)}
        return self._transact(
            "Reading jobs that may be taken",
            lambda connection: set(connection.scalars(self._statements.ready, parameters)),
            write=False,
        )

    def _is_trashed(self, uuid: str) -> bool:
        row = self._first(f"Reading job {uuid}", self._statements.trashed, uuid)
        return row is not None

    def make_due(self, uuid: str) -> None:
        self._transact(
            f"Making job {uuid} due",
            lambda connection: writing.make_job_due(
                connection, self._store.statements, uuid, is_first=True
            ),
        )

    def _delete_trashed(self, uuid: str) -> None:
        parameters = {"uuid": uuid, "board": self.namespace}
        self._transact(
            f"Deleting trashed job {uuid}",
            lambda connection: connection.execute(self._statements.delete_trashed, parameters),
        )

    def _row(self, job: _stored.NewJob) -> dict[str, Any]:
        book = job.book
        return {
            "uuid": job.uuid,
            "board": self.namespace,
            "name": rows.storable_text(job.name),
            "priority": job.priority.rank,
            "details": rows.text_of(job.details) if job.details else None,
            "book_uuid": None if book is None else book.uuid,
            "book_name": None if book is None else rows.storable_text(book.name),
            "queue": job.place.queue,
            "fair_key": rows.storable_text(job.place.fair_key),
            "fair_weight": job.place.fair_weight,
        }

    def _delay(self, eta: datetime | float | None) -> tuple[sa.TextClause, float] | None:
        """Return the statement that posts a delayed job, and its `seconds`."""
        if eta is None:
            return None
        if isinstance(eta, datetime):
            if eta.tzinfo is None:
                raise ValueError(f"eta must have a time zone, got {eta}")
            return self._statements.post_at, max(_MIN_NOT_BEFORE, eta.timestamp())
        seconds = named_options.number("eta", eta)
        if seconds > _MAX_DELAY_SECONDS:  # Milliseconds would be the number of another state.
            raise ValueError(
                f"eta must be at most {_MAX_DELAY_SECONDS:.0f} seconds, got {eta!r:.80}"
            )
        return self._statements.post_after, seconds

    def _insert_one(
        self,
        connection: sa.Connection,
        row: dict[str, Any],
        delay: tuple[sa.TextClause, float] | None = None,
    ) -> dict[str, Any]:
        self._insert(connection, [row], delay)
        return dict(connection.execute(self._statements.select_job, row).mappings().one())

    def _insert(
        self,
        connection: sa.Connection,
        job_rows: list[dict[str, Any]],
        delay: tuple[sa.TextClause, float] | None,
    ) -> None:
        if delay is None:
            turns.assign(connection, job_rows)
            connection.execute(self._statements.post, job_rows)
        else:
            statement, seconds = delay
            delayed = {"turn": None, "seconds": seconds}  # A job gets its turn when it is due.
            connection.execute(statement, [{**row, **delayed} for row in job_rows])
        if delay is None or delay[1] == 0:
            writing.notify_job(connection, self._store.statements, job_rows[0]["uuid"])

    def _parse(self, row: Any) -> _stored.Posting:
        content = {
            "name": row["name"],
            "details": row["details"],
            "book": {"uuid": row["book_uuid"], "name": row["book_name"]},
        }
        return _stored.Posting(
            *(row["uuid"], row["priority"], row["id"], content, row["created"], int(row["claims"]))
        )

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        statement = self._statements.unclaimed if only_unclaimed else self._statements.all
        if only_unclaimed and self.refused_codes:
            statement = self._statements.unclaimed_of_codes
        after: dict[str, Any] = {
            "codes": list(self.refused_codes) or [""],
            "board": self.namespace,
            "priority": -1,
            "id": 0,
            "limit": _FIRST_PAGE_SIZE,
        }

        def work(connection: sa.Connection) -> list[Mapping[str, Any]]:
            return [dict(row) for row in connection.execute(statement, after).mappings()]

        if only_unclaimed:
            self._offer_due_jobs()
        while True:
            page = self._transact("Listing jobs", work, write=False)
            for row in page:
                yield row["uuid"], row
            if len(page) < after["limit"]:
                return
            last = page[-1]
            after.update(priority=last["priority"], id=last["id"])
            after["limit"] = min(after["limit"] * 4, MAX_PAGE_SIZE)

    def _offer_due_jobs(self) -> list[str]:
        """Let jobs be taken whose wait or claim has ended. The indexes find only these.

        Return the names of the queues with jobs to take.
        """
        parameters = {"board": self.namespace, "limit": MAX_PAGE_SIZE}
        operation = "Reading due jobs"

        def read(connection: sa.Connection) -> tuple[Sequence[sa.Row[Any]], list[str]]:
            due = connection.execute(self._statements.due, parameters).all()
            return due, list(connection.scalars(self._turns.ready_queues, parameters))

        due, ready = self._transact(operation, read, write=False)
        while due:
            begun = [row.id for row in due if row.turn is not None]
            new = [row._asdict() for row in due if row.turn is None]

            def offer(
                connection: sa.Connection, begun: list[int] = begun, new: list[Any] = new
            ) -> None:
                if begun:
                    connection.execute(self._statements.offer, {"ids": begun})
                if new:
                    self._turns.begin_due(connection, new)

            # If the write is lost, another process repeats it.
            self._transact(operation, offer, durable=False)
            is_last = len(due) < MAX_PAGE_SIZE
            due, ready = self._transact(operation, read, write=False)
            if is_last:
                break
        return ready

    @property
    def job_count(self) -> int:
        row = self._first("Counting jobs", self._statements.count)
        return int(row["count"]) if row else 0

    def take(
        self, who: str, limit: int, except_uuids: Collection[str] = ()
    ) -> Sequence[_stored.StoredJob]:
        """Claim up to `limit` jobs of `queues`: first those of the first queue.

        Within a queue, keys are served in turn, and the first job of a key is that with the highest
        priority, then the oldest one.
        """
        taken: list[_stored.StoredJob] = []
        try:
            if time.monotonic() < self._busy_until:
                taken += self._take_of(self.queues[0], who, limit, except_uuids)
                if len(taken) == limit:
                    return taken
            for queue in _in_order(self.queues, self._offer_due_jobs()):
                taken += self._take_of(queue, who, limit - len(taken), except_uuids)
                if len(taken) == limit:
                    if queue == self.queues[0]:
                        self._busy_until = time.monotonic() + self.POLL_SECONDS
                    break
        except exceptions.JobFailure:
            if not taken:
                raise
        return taken

    def _take_of(
        self, queue: str, who: str, limit: int, except_uuids: Collection[str]
    ) -> Iterator[_stored.StoredJob]:
        """Claim up to `limit` jobs of a queue, and return those that are readable."""
        expiry = self.claim_seconds or base.default_expiry.get()
        wanted = _sql_turns.Wanted(
            *(rows.storable_text(who), limit, expiry),
            *(tuple(self.refused_codes), (*except_uuids, *self._unreadable)),
        )
        claimed = self._claim_next(queue, wanted)
        for row in claimed:
            job = self._readable(row["uuid"], row)
            if job is not None:  # Otherwise its claim expires.
                number = int(row["claims"]) + 1
                job.record_claim(number, number, expiry)
                self.notifier.notify(base.CLAIMED, {"job": job, "who": who})
                yield job

    def _claim_next(self, queue: str, wanted: _sql_turns.Wanted) -> Sequence[Mapping[str, Any]]:
        """Claim the next jobs of a queue, and return their rows as they were before."""
        what, place = f"Taking jobs of queue {queue!r}", (self.namespace, queue)
        at_once = self._turns.take_at_once(*place, wanted)
        found = None if at_once is None else self._execute_alone(what, *at_once)
        if found is not None and all(row.is_taken for row in found):
            return _sql_turns.in_order([row._asdict() for row in found])
        return self._transact(what, lambda connection: self._turns.take(connection, *place, wanted))

    def status_of(self, job: base.Job) -> _stored.Status | None:
        row = self._find(job.uuid)
        return None if row is None else _status(row)

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[int, int] | _stored.Status:
        parameters: dict[str, Any] = {
            "board": self.namespace,
            "uuid": job.uuid,
            "who": rows.storable_text(who),
        }
        statement = self._statements.claim
        if isinstance(job, _stored.StoredJob) and job.block_number is not None:
            statement = self._statements.claim_blocked
            parameters["expiry"] = expiry
        elif expiry is not None:
            statement, parameters["expiry"] = self._statements.claim_for, expiry

        def work(connection: sa.Connection) -> tuple[int, int] | _stored.Status:
            claimed = connection.execute(statement, parameters).rowcount
            row = self._required_row(connection, job)
            number = int(row["claims"])
            return (number, number) if claimed else _status(row, of_free=True)

        return self._transact(f"Claiming job {job.uuid}", work)

    def _end_claim(self, job: base.Job, who: str, action: str) -> _stored.Status | None:
        parameters = {**self._claim_parameters(job), "who": rows.storable_text(who)}
        what = f"Releasing the claim on job {job.uuid}"
        if self._execute_alone(what, self._statements.ends_at_once[action], parameters):
            return None

        def work(connection: sa.Connection) -> _stored.Status | None:
            if connection.execute(self._statements.ends[action], parameters).rowcount:
                return None
            return _status(self._required_row(connection, job))

        return self._transact(what, work)

    @base.check_who
    def park(
        self,
        job: base.Job,
        who: str,
        seconds: float | None,
        signals: int | None,
        pauses: Collection[TaskPause] = (),
        limit: str | None = None,
        has_begun: bool = False,
        ends: int = 0,
        end_delay: float = 0.0,
    ) -> bool:
        """Release a claim and delay the job by a number of seconds (None: a long time).

        With the name of a `limit`, the job waits for `offer_limited`. Jobs of flows that have begun
        then go first, also in paused queues.

        The job becomes due at once if its flow has or receives a command, or more than this number
        of `signals`, or if one of the `pauses` of task types changes or has changed. With None,
        only a signal that arrives later counts. Of the signals, this number of `ends` reports ends
        of child flows; after a further one, the job is due within `end_delay` seconds. Raises the
        errors of `consume`.

        A job of another board is stored here, parked, unless a claimed job of its flow is here.

        :returns: whether it is parked.
        """
        wait = _MAX_PARK_SECONDS if seconds is None else min(seconds, _MAX_PARK_SECONDS)
        is_elsewhere = job.board is not self
        parameters = {
            **self._claim_parameters(job),
            "who": rows.storable_text(who),
            "seconds": wait,
            "limit": limit,
            "turn": turns.FIRST if has_begun else None,
            "end_delay": end_delay,
            "ends": f"{CHILD_PREFIX}%",
        }
        if is_elsewhere:
            parameters["claim"] = 0  # Any.
        park = self._statements.park if limit is None else self._statements.park_for_limit

        def work(connection: sa.Connection) -> bool:
            # First the pauses and then the job, as in all transactions that lock both.
            is_due = self._is_changed(connection, pauses)
            if is_elsewhere:
                self._claim_here(connection, job, parameters)
            if not connection.execute(park, parameters).rowcount:
                return False
            # A concurrent signal is either committed already, and counted here, or it waits for the
            # row and then makes the job due.
            stored = connection.execute(self._statements.signals, parameters).one()
            # The same applies to commands.
            has_command = connection.scalar(
                self._store.statements.has_command, {"flow_uuid": job.uuid}
            )
            is_due = is_due or has_command is not None
            if signals is not None and stored.signals - stored.ends > signals - ends:
                is_due = True
            if is_due:
                writing.make_job_due(connection, self._store.statements, job.uuid)
            elif signals is not None and stored.ends > ends:
                writing.make_job_due(connection, self._store.statements, job.uuid, is_end=True)
            crashpoint("sql.before-park-commit")
            return True

        is_parked = self._transact(f"Parking job {job.uuid}", work)
        if not (is_parked or is_elsewhere):
            self._end(job, who, "abandon")
        return is_parked

    def goes_first(self, uuid: str) -> bool:
        """Return whether a job goes before jobs of flows that have not begun."""
        row = self._find(uuid)
        return row is not None and row["turn"] is not None and row["turn"] < 0

    def _claim_here(
        self, connection: sa.Connection, job: base.Job, parameters: Mapping[str, Any]
    ) -> None:
        """Store the job of a flow that was on another board, and claim it, if it is free."""
        # A concurrent signal or command is either committed, or waits for this and finds the job.
        row = reading.first(connection, self._store.statements.flow_for_update, flow_uuid=job.uuid)
        if row is None:
            return
        _, meta = rows.flow_fields(row)
        place = _places.Place.from_dict(meta.get(models.SUBMITTED) or {})
        details = {"flow_uuid": job.uuid}
        posted = self._row(_stored.NewJob.of(job.uuid, job.name, None, details, place))
        posted |= {"flow_uuid": job.uuid, "rank": posted["priority"]}
        turns.assign(connection, [posted])
        connection.execute(self._store.statements.post_job, posted)
        connection.execute(self._statements.claim_here, parameters)

    def adopt(self, namespaces: str, accepts: Callable[[Mapping[str, Any]], bool]) -> None:
        """Move jobs of other boards to this one.

        :param namespaces: the beginning of the names of these boards.
        :param accepts: decides by the note of a flow's submission.
        """
        parameters = {"board": self.namespace, "boards": f"{namespaces}%"}

        def work(connection: sa.Connection) -> None:
            found = connection.execute(self._statements.of_other_boards, parameters).mappings()
            ours = [
                row["uuid"]
                for row in map(dict, found)
                if accepts(rows.flow_fields(row)[1].get(models.SUBMITTED) or {})
            ]
            for uuid in ours:
                connection.execute(self._statements.adopt, {**parameters, "uuid": uuid})

        self._transact("Looking for parked jobs of this board", work)

    def _is_changed(self, connection: sa.Connection, pauses: Collection[TaskPause]) -> bool:
        """Return whether a pause was removed or replaced. Lock the rows of the others."""
        if not pauses:
            return False
        parameters = {"patterns": [pause.pattern for pause in pauses]}
        stored = connection.execute(self._statements.pauses_for_update, parameters)
        return {TaskPause(*row) for row in stored} != set(pauses)

    def limits_waited_for(self, after: str = "") -> list[tuple[str, str | None]]:
        """Return the limits for which jobs wait, at most 1024 of them, with their first jobs.

        The first job of a limit is that with the highest priority, then the oldest one, in one of
        `queues` that is not paused; None: there is none.

        :param after: the last name of the previous call.
        """
        rows_read = self._read_limited(self._turns.limits, after=after, limit=MAX_PAGE_SIZE)
        return [(row.name, row.uuid) for row in rows_read]

    def jobs_of_limit(self, limit: str, count: int) -> list[str]:
        """Return the uuids of the first jobs that wait for a limit, as in `limits_waited_for`."""
        rows_read = self._read_limited(self._turns.limited, flow_limit=limit, limit=count)
        return [row.uuid for row in rows_read]

    def _read_limited(self, statement: sa.TextClause, **values: Any) -> Sequence[sa.Row[Any]]:
        parameters = {
            "board": self.namespace,
            "queues": list(self.queues),
            "all_queues": int(_places.ALL_QUEUES in self.queues),
            **values,
        }

        return self._transact(
            "Reading limits of flows",
            lambda connection: connection.execute(statement, parameters).all(),
            write=False,
        )

    def offer_limited(self, limit: str, uuids: Collection[str]) -> list[str]:
        """Give jobs their turn that still wait for a limit. Return their uuids."""
        parameters = {"board": self.namespace, "flow_limit": limit, "uuids": list(uuids)}

        def work(connection: sa.Connection) -> list[str]:
            waiting = connection.execute(self._turns.limited_for_update, parameters)
            chosen = waiting.mappings().all()
            if chosen:
                self._turns.begin_limited(connection, [dict(row) for row in chosen])
                writing.notify_job(connection, self._store.statements, chosen[0]["uuid"])
            return [row["uuid"] for row in chosen]

        # If the write is lost, the next call repeats it.
        return self._transact(f"Starting flows of limit {limit!r}", work, durable=False)

    def blocked_jobs(self) -> list[_stored.StoredJob]:
        """Return the jobs of blocked flows that are not claimed, the first blocked ones first.

        `claim` accepts these objects although the jobs are not due.
        """
        parameters: dict[str, Any] = {
            "codes": list(self.refused_codes) or [""],
            "board": self.namespace,
            "blocked": MIN_BLOCKED_NOT_BEFORE,
            "id": 0,
            "limit": MAX_PAGE_SIZE,
        }
        jobs = list[_stored.StoredJob]()

        def work(connection: sa.Connection) -> list[Mapping[str, Any]]:
            rows_read = connection.execute(self._statements.blocked, parameters)
            return [dict(row) for row in rows_read.mappings()]

        while True:
            page = self._transact("Listing blocked jobs", work, write=False)
            for row in page:
                job = self._readable(row["uuid"], row)
                if job is not None:
                    job.block_number = row["not_before"]
                    jobs.append(job)
            if len(page) < MAX_PAGE_SIZE:
                return jobs
            parameters |= {"blocked": page[-1]["not_before"], "id": page[-1]["id"]}

    @base.check_who
    def block(self, job: _stored.StoredJob, who: str) -> float:
        """Release a claim, and delay the job until its flow receives a command or signal.

        Return `StoredJob.block_number` of the job, which it keeps if it was claimed as a blocked
        job; 0 if the job is due, because its flow has a command. Raises the errors of `consume`.
        """
        parameters = {
            **self._claim_parameters(job),
            "who": rows.storable_text(who),
            "blocked": job.block_number,
        }

        def work(connection: sa.Connection) -> float | None:
            if not connection.execute(self._statements.block, parameters).rowcount:
                return None
            # As in `park`.
            if connection.scalar(self._store.statements.has_command, {"flow_uuid": job.uuid}):
                writing.make_job_due(connection, self._store.statements, job.uuid)
            crashpoint("sql.before-block-commit")
            blocked: float = self._required_row(connection, job)["not_before"]
            return blocked

        blocked = self._transact(f"Blocking job {job.uuid}", work)
        if blocked is None:
            self._end(job, who, "abandon")
        return blocked or 0.0

    def extend(self, job: _stored.StoredJob, expiry: float) -> bool:
        parameters = {**self._claim_parameters(job), "expiry": expiry}
        return self._transact(
            f"Extending the claim on job {job.uuid}",
            lambda connection: connection.execute(self._statements.extend, parameters).rowcount > 0,
            durable=False,  # The owner dies with its host.
        )

    def _required_row(self, connection: sa.Connection, job: base.Job) -> dict[str, Any]:
        parameters = {"board": self.namespace, "uuid": job.uuid}
        row = connection.execute(self._statements.select_job, parameters).mappings().first()
        if row is None:
            raise _stored.missing_job_error(job)
        return dict(row)

    def _claim_parameters(self, job: base.Job) -> dict[str, Any]:
        number = _stored.claim_of(job) or 0
        return {"board": self.namespace, "uuid": job.uuid, "claim": number}

    def _first(
        self, what: str, statement: sa.TextClause, uuid: str | None = None
    ) -> dict[str, Any] | None:
        parameters = {"board": self.namespace, "uuid": uuid}

        def work(connection: sa.Connection) -> dict[str, Any] | None:
            row = connection.execute(statement, parameters).mappings().first()
            return None if row is None else dict(row)

        return self._transact(what, work, write=False)

    def _transact(
        self,
        what: str,
        work: Callable[[sa.Connection], _T],
        *,
        write: bool = True,
        durable: bool = True,
        transaction: sa.Connection | None = None,
    ) -> _T:
        self._check_connected(what)
        if transaction is not None:
            with _failures(), _sql.convert_errors(what):
                return work(transaction)
        with _failures():
            return _sql.transact(self._store.engine, what, work, write=write, durable=durable)

    def _execute_alone(
        self, what: str, statement: sa.TextClause, parameters: Mapping[str, Any]
    ) -> Sequence[sa.Row[Any]] | None:
        """Execute a statement of PostgreSQL that is a whole transaction. Return its rows.

        None: the database does not support it, or it failed, so that `_transact` is necessary.
        """
        self._check_connected(what)
        engine = self._store.statement_engine
        if engine is None:
            return None
        with _failures():
            return _sql.transact_statement(engine, what, statement, parameters)

    def _check_connected(self, what: str) -> None:
        if not self._connected:
            raise exceptions.JobFailure(f"{what} failed: job board {self.name!r} is not connected")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} in {self._store!r}>"


class _Statements:
    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        on_board = "board = :board AND trashed = 0"
        free = f"(owner IS NULL OR owner_until <= {now})"
        is_claimed = f"owner IS NOT NULL AND (owner_until IS NULL OR owner_until > {now})"
        # COALESCE prevents the use of the index by board, which PostgreSQL without statistics
        # considers equally good.
        this_job = "uuid = :uuid AND COALESCE(board, '') = :board AND trashed = 0"
        # 0 stands for any claim.
        own_claim = f"{this_job} AND {is_claimed} AND :claim IN (0, claims)"
        until = "CASE WHEN owner IS NULL THEN not_before ELSE owner_until END"
        jobs = tables.select(tables.JOBS, f"{until} - {now} AS remaining")
        after = f"{jobs} WHERE {on_board} AND (priority, id) > (:priority, :id)"
        order = "ORDER BY priority, id LIMIT :limit"
        claim = f"UPDATE {_JOBS} SET owner = :who, claims = claims + 1, updated = {now}"
        unowned = f"owner = NULL, owner_until = NULL, updated = {now}"
        # A flow that has not begun keeps its turn, and is held back by a pause of its queue. MySQL
        # would lock the flow after its job, and deadlocks with other transactions would follow.
        is_new = "1 = 0"
        if dialect != dialects.MYSQL:
            is_new = (
                f"turn >= 0 AND EXISTS (SELECT 1 FROM {tables.FLOWS.name} f"
                f" WHERE f.uuid = {_JOBS}.uuid"
                f" AND COALESCE(f.state, '{states.PENDING}') = '{states.PENDING}')"
            )
        turn_again = f"turn = CASE WHEN {is_new} THEN turn ELSE {turns.FIRST} END"
        freed = f"{unowned}, {turn_again}, end_delay = 0"

        names = ["uuid", "board", "name", "priority", "details", "book_uuid", "book_name"]
        names += ["queue", "fair_key", "fair_weight", "turn"]
        values = ", ".join(f":{name}" for name in names)
        post = f"INSERT INTO {_JOBS} ({', '.join(names)}, created, updated, not_before)"
        post += f" VALUES ({values}, {now}, {now},"
        self.post = sa.text(f"{post} 0)")
        self.post_after = sa.text(f"{post} {now} + :seconds)")
        self.post_at = sa.text(f"{post} :seconds)")
        new_job = f"{this_job} AND owner IS NULL AND claims = 0"
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        self.lock_new_job = sa.text(f"SELECT 1 FROM {_JOBS} WHERE {new_job}{lock}")
        self.move = sa.text(
            f"UPDATE {_JOBS} SET not_before = {now} + :seconds, turn = NULL, flow_limit = NULL,"
            " queue = :queue, fair_key = :fair_key, fair_weight = :fair_weight,"
            f" priority = :priority, name = :name, updated = {now}"
            f" WHERE {new_job}"
        )
        self.park = sa.text(
            f"UPDATE {_JOBS} SET {unowned}, turn = {turns.FIRST}, end_delay = :end_delay,"
            f" not_before = {now} + :seconds WHERE {own_claim} AND owner = :who"
        )
        self.park_for_limit = sa.text(
            f"UPDATE {_JOBS} SET {unowned}, turn = :turn, end_delay = 0, flow_limit = :limit,"
            f" not_before = {tables.LIMITED_NOT_BEFORE}"
            f" WHERE {own_claim} AND owner = :who"
        )
        # A subquery for each row, because few rows are read.
        of_codes = (
            f"NOT EXISTS (SELECT 1 FROM {tables.FLOWS.name} f"
            f" WHERE f.uuid = {_JOBS}.uuid AND f.code IN :codes)"
        )
        codes: sa.BindParameter[Any] = sa.bindparam("codes", expanding=True)
        self.block = sa.text(
            f"UPDATE {_JOBS} SET {freed},"
            f" not_before = COALESCE(:blocked, {MIN_BLOCKED_NOT_BEFORE} + ROUND({now}))"
            f" WHERE {own_claim} AND owner = :who"
        )
        self.blocked = sa.text(
            f"{jobs} WHERE {on_board} AND (not_before, id) > (:blocked, :id) AND {free}"
            f" AND {of_codes} ORDER BY not_before, id LIMIT :limit"
        ).bindparams(codes)
        self.signals = sa.text(
            "SELECT count(*) AS signals, count(CASE WHEN name LIKE :ends THEN 1 END) AS ends"
            f" FROM {tables.SIGNALS.name} WHERE flow_uuid = :uuid"
        )
        pauses, lock = tables.PAUSES, "" if dialect == dialects.SQLITE else " FOR UPDATE"
        self.pauses_for_update = sa.text(
            f"SELECT {', '.join(pauses.c.keys())} FROM {pauses.name} WHERE pattern IN :patterns"
            f" ORDER BY pattern{lock}"
        ).bindparams(sa.bindparam("patterns", expanding=True))
        self.has_job = sa.text(
            f"SELECT 1 FROM {_JOBS} WHERE uuid = :uuid"
            f" UNION ALL SELECT 1 FROM {_JOBS} WHERE {on_board} AND book_uuid = :book_uuid LIMIT 1"
        )
        self.with_jobs = sa.text(
            f"SELECT uuid FROM {_JOBS} WHERE uuid IN :uuids AND trashed = 0"
        ).bindparams(sa.bindparam("uuids", expanding=True, type_=sa.String))
        self.ready = sa.text(
            f"SELECT uuid FROM {_JOBS} WHERE uuid IN :uuids AND {turns.READY}"
        ).bindparams(sa.bindparam("uuids", expanding=True, type_=sa.String))
        self.select_job = sa.text(f"{jobs} WHERE {this_job}")
        self.posted = sa.text(f"{jobs} WHERE uuid IN :uuids AND board = :board").bindparams(
            sa.bindparam("uuids", expanding=True)
        )
        self.count = sa.text(f"SELECT count(*) AS count FROM {_JOBS} WHERE {on_board}")
        self.all = sa.text(f"{after} {order}")
        self.unclaimed = sa.text(f"{after} AND not_before = 0 AND {free} {order}")
        self.unclaimed_of_codes = sa.text(
            f"{after} AND not_before = 0 AND {free} AND {of_codes} {order}"
        ).bindparams(codes)
        # The subquery reads the clock once; otherwise PostgreSQL reads it for each row and uses no
        # index.
        columns = "id, board, queue, fair_key, fair_weight"
        self.due = sa.text(
            f"SELECT {columns}, turn FROM (SELECT {columns}, turn FROM {_JOBS} WHERE {on_board}"
            f" AND not_before > 0 AND not_before <= (SELECT {now}) ORDER BY not_before LIMIT :limit"
            f") AS waited UNION ALL SELECT {columns}, turn FROM (SELECT {columns}, {turns.FIRST}"
            f" AS turn FROM {_JOBS} WHERE board = :board AND COALESCE(trashed, 0) = 0"
            f" AND owner_until <= (SELECT {now}) ORDER BY owner_until LIMIT :limit) AS expired"
        )
        self.offer = sa.text(
            f"UPDATE {dialects.by_primary_key(dialect, _JOBS)} SET not_before = 0, owner = NULL,"
            f" owner_until = NULL, {turn_again} WHERE id IN :ids"
            f" AND (not_before > 0 OR owner_until <= {now}) AND {free} AND not_before <= {now}"
        ).bindparams(sa.bindparam("ids", expanding=True))
        # Seconds until a job can be claimed, or NULL, for SQLite. If no job is free now, those with
        # `not_before` 0 are claimed.
        self.next_due = (
            f"SELECT COALESCE((SELECT 0.0 FROM {_JOBS} WHERE {on_board} AND not_before = 0"
            f" AND {free} LIMIT 1), (SELECT MIN(due) FROM (SELECT MIN(not_before) AS due"
            f" FROM {_JOBS} WHERE {on_board} AND not_before > 0 UNION ALL SELECT MIN(owner_until)"
            f" FROM {_JOBS} WHERE {on_board} AND not_before = 0)) - {now})"
        )
        self.claim_blocked = sa.text(
            f"{claim}, not_before = 0, owner_until = {now} + :expiry"
            f" WHERE {this_job} AND {free} AND not_before >= {MIN_BLOCKED_NOT_BEFORE}"
        )
        unclaimed = free
        free = f"{free} AND not_before <= {now}"
        self.claim = sa.text(f"{claim}, owner_until = NULL WHERE {this_job} AND {free}")
        self.claim_for = sa.text(
            f"{claim}, owner_until = {now} + :expiry WHERE {this_job} AND {free}"
        )
        #: Claims the job of a flow, also in the trash, before its time, or of a former address.
        self.claim_here = sa.text(
            f"{claim}, board = :board, trashed = 0, owner_until = NULL WHERE uuid = :uuid"
            f" AND {unclaimed}"
        )
        self.of_other_boards = sa.text(
            f"{tables.select(tables.FLOWS)} WHERE uuid IN (SELECT uuid FROM {_JOBS}"
            " WHERE board LIKE :boards AND board <> :board)"
        )
        self.adopt = sa.text(f"UPDATE {_JOBS} SET board = :board WHERE uuid = :uuid")
        self.extend = sa.text(f"UPDATE {_JOBS} SET owner_until = {now} + :expiry WHERE {own_claim}")
        ends = {
            "consume": f"DELETE FROM {_JOBS}",
            "abandon": f"UPDATE {_JOBS} SET {freed}",
            "trash": f"UPDATE {_JOBS} SET trashed = 1, {freed}",
        }
        of_owner = f"WHERE {own_claim} AND owner = :who"
        self.ends = {action: sa.text(f"{text} {of_owner}") for action, text in ends.items()}
        self.ends_at_once = {
            action: sa.text(f"{text} {of_owner} RETURNING 1") for action, text in ends.items()
        }
        in_trash = "uuid = :uuid AND board = :board AND trashed = 1"
        self.trashed = sa.text(f"SELECT 1 FROM {_JOBS} WHERE {in_trash}")
        self.delete_trashed = sa.text(f"DELETE FROM {_JOBS} WHERE {in_trash}")
        self.restore = sa.text(f"UPDATE {_JOBS} SET trashed = 0, updated = {now} WHERE {in_trash}")


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except exceptions.StorageFailure as error:
        raise exceptions.JobFailure(str(error)) from error


class _PostedMeanwhileError(Exception):
    """Another process posted the job."""


def _in_order(queues: Sequence[str], ready: Sequence[str]) -> Iterator[str]:
    """Return the queues with jobs, in the order of these names, in which '*' stands for all."""
    left = list(ready)
    for name in queues:
        if name == _places.ALL_QUEUES:
            random.shuffle(left)
            yield from left
            return
        if name in left:
            left.remove(name)
            yield name


def _kind(store: object) -> str:
    return repr(store) if isinstance(store, persistence_base.Backend) else type(store).__name__


def _status(row: Mapping[str, Any], of_free: bool = False) -> _stored.Status:
    """Return the state of a job; `of_free`: `remaining` includes the delay of an unclaimed job."""
    owner, remaining = row["owner"], row["remaining"]
    if owner is not None and remaining is not None and remaining <= 0:
        owner = None
    if owner is None and not of_free:
        remaining = None
    return _stored.Status(
        int(row["claims"]),
        row["updated"],
        owner,
        None if remaining is None else max(remaining, 0.0),
    )
