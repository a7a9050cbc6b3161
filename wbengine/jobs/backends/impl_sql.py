"""A job board in a database: SQLite, MariaDB and MySQL, PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _options, _sql, exceptions
from wbengine._sql import dialects
from wbengine.jobs import base, stored
from wbengine.persistence import backends, models
from wbengine.persistence import base as persistence_base
from wbengine.persistence.backends import sql
from wbengine.persistence.backends.sql import reading, rows, tables, writing
from wbengine.runtime import control

__all__ = ["SQLJobBoard"]

_T = TypeVar("_T")

_JOBS: Final = tables.JOBS.name
#: So many jobs are read at first, and at most, at a time.
_FIRST_PAGE: Final = 16
_LARGEST_PAGE: Final = 1024
#: For so many seconds a job waits that nothing but a signal is to hasten.
_LONG: Final = 1e9
#: The time of a job, at least: 0 says that it has come.
_EARLIEST: Final = 1.0


class SQLJobBoard(stored.KeptJobBoard):
    """Keeps jobs in the table `wbe_jobs` of a database, beside the flows that may be there.

    Options:

    `connection`: the URL of the database (or of a folder, 'dir:///...'), and with it what else
    `persistence.backends.fetch` takes for one; without it the jobs are in the database of
    `persistence`.
    `namespace` ('default'): boards of one namespace of a database are one board.

    Claims end by the clock of the database.  A step of it lets them end early, or late: then a job
    is claimed twice, or later; the lease of its flow sees to it that no more comes of that.

    :raises ValueError: an option is wrong, or there is no database.
    """

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        persistence: persistence_base.Backend | None = None,
    ) -> None:
        super().__init__(name, conf, persistence)
        told = dict(self._conf)
        namespace = _options.text("namespace", told.pop("namespace", "default"))
        if len(namespace) > dialects.MAX_KEY:
            raise ValueError(f"Option namespace has more than {dialects.MAX_KEY} characters")
        self.namespace: Final = namespace
        store = backends.fetch(told) if told else persistence
        if not isinstance(store, sql.SQLBackend):
            raise ValueError(
                f"Job board {name!r} needs a database: connection='postgresql://...' (or another"
                f" database), or persistence= with the backend of one, not {_kind(store)}"
            )
        self._store = store
        self._statements = _Statements(store.options.dialect)
        self._connected = False

    @property
    def keeps_flows(self) -> bool:
        """Whether its jobs are in the database of the flows."""
        return self._store is self.persistence

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

    # -- posting and listing --------------------------------------------------------------------

    def post_flow(
        self,
        name: str,
        book: models.LogBook,
        flow: models.FlowDetail,
        priority: base.JobPriority | str = base.JobPriority.NORMAL,
        *,
        eta: datetime | float | None = None,
        first: Callable[[sa.Connection], bool] | None = None,
    ) -> stored.StoredJob | str | None:
        """Keep a new flow in its book, and post a job with the flow's uuid, in one transaction.

        Where the meta of `book` says that it stands for a key (`models.UNIQUE`) and the latest flow
        of that key has not ended, nothing is kept, and the uuid of that flow is returned; its job,
        if it was trashed, is to be claimed again.

        :param eta: the job is not to be claimed before: a moment with a time zone, or seconds from
            now, by the clock of the database.
        :param first: what the transaction begins with; where it returns False nothing else is done,
            and None is returned.
        :raises ValueError: the flows of `persistence` are in another database, or `eta` is wrong.
        """
        self._check_keeps_flows()
        new, statements = writing.NewBook(book), self._store.statements
        told = self._row(stored.NewJob.of_flow(flow.uuid, name, book, priority))
        later = self._later(eta)

        def work(connection: sa.Connection) -> dict[str, Any] | str | None:
            if first is not None and not first(connection):
                return None
            if models.UNIQUE in book.meta:
                other = new.unfinished(connection, statements)
                if other is not None:
                    again = {"board": self.namespace, "uuid": other}
                    connection.execute(self._statements.restore, again)
                    return other
            new.put(connection, statements)
            return self._insert_one(connection, told, later)

        found = self._transact(f"Submitting flow {flow.name!r}", work)
        return self._posted(self._parse(found)) if isinstance(found, dict) else found

    def post_flows(
        self,
        flows: Iterable[tuple[models.FlowDetail, models.LogBook]],
        priority: base.JobPriority | str = base.JobPriority.NORMAL,
        *,
        eta: datetime | float | None = None,
    ) -> list[stored.StoredJob]:
        """Keep new flows, each in a book of its own, and post their jobs, in one transaction.

        :raises ValueError: what it is of `post_flow`.
        """
        self._check_keeps_flows()
        new, told = [], []
        for flow, book in flows:
            new.append(writing.NewBook(book))
            told.append(self._row(stored.NewJob.of_flow(flow.uuid, flow.name, book, priority)))
        later = self._later(eta)

        def work(connection: sa.Connection) -> list[stored.Posting]:
            writing.put_new_books(connection, self._store.statements, new)
            self._insert(connection, told, later)
            found = dict[str, stored.Posting]()
            for begun in range(0, len(told), _LARGEST_PAGE):
                uuids = [row["uuid"] for row in told[begun : begun + _LARGEST_PAGE]]
                asked = {"board": self.namespace, "uuids": uuids}
                for row in connection.execute(self._statements.posted, asked).mappings():
                    found[row["uuid"]] = self._parse(row)
            return [found[row["uuid"]] for row in told]

        if not new:
            return []
        return [self._posted(one) for one in self._transact(f"Submitting {len(new)} flows", work)]

    def _check_keeps_flows(self) -> None:
        if not self.keeps_flows:
            raise ValueError(
                f"Job board {self.name!r} keeps no flows: it has a database of its own"
            )

    def waking(self, wake: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        engine = self._store.engine
        if not _sql.can_listen(engine):
            return contextlib.nullcontext()
        return stored.listening(
            self, lambda ended: _sql.listen(engine, _JOBS, self.namespace, wake, ended)
        )

    def _put(self, job: stored.NewJob) -> stored.Posting | None:
        """Also None where the board has a job of its book, which may be about this flow."""
        told = self._row(job)

        def work(connection: sa.Connection) -> dict[str, Any] | None:
            if job.is_of_flow and connection.execute(self._statements.has_job, told).first():
                return None
            try:
                return self._insert_one(connection, told)
            except sa.exc.IntegrityError as error:
                raise _PostedMeanwhileError from error

        try:
            found = self._transact(f"Posting job {job.name!r}", work)
        except _PostedMeanwhileError:
            return None
        return None if found is None else self._parse(found)

    def _find(self, uuid: str) -> dict[str, Any] | None:
        return self._first(f"Looking for job {uuid}", self._statements.look, uuid)

    def _is_trashed(self, uuid: str) -> bool:
        found = self._first(f"Looking for job {uuid}", self._statements.trashed, uuid)
        return found is not None

    def _row(self, job: stored.NewJob) -> dict[str, Any]:
        book = job.book
        return {
            "uuid": job.uuid,
            "board": self.namespace,
            "name": rows.kept(job.name),
            "priority": job.priority.rank,
            "details": rows.text_of(job.details) if job.details else None,
            "book_uuid": None if book is None else book.uuid,
            "book_name": None if book is None else rows.kept(book.name),
        }

    def _later(self, eta: datetime | float | None) -> tuple[sa.TextClause, float] | None:
        """How to have a job wait for its time."""
        if eta is None:
            return None
        if isinstance(eta, datetime):
            if eta.tzinfo is None:
                raise ValueError(f"eta={eta} has no time zone")
            return self._statements.wait_until, max(_EARLIEST, eta.timestamp())
        return self._statements.wait_for, _options.number("eta", eta)

    def _insert_one(
        self,
        connection: sa.Connection,
        told: dict[str, Any],
        later: tuple[sa.TextClause, float] | None = None,
    ) -> dict[str, Any]:
        self._insert(connection, [told], later)
        return dict(connection.execute(self._statements.look, told).mappings().one())

    def _insert(
        self,
        connection: sa.Connection,
        told: list[dict[str, Any]],
        later: tuple[sa.TextClause, float] | None,
    ) -> None:
        connection.execute(self._statements.post, told)
        if later is not None:
            connection.execute(later[0], [{**row, "seconds": later[1]} for row in told])
        else:
            writing.tell_job(connection, self._store.statements, told[0]["uuid"])

    def _parse(self, row: Any) -> stored.Posting:
        told = {
            "name": row["name"],
            "details": row["details"],
            "book": {"uuid": row["book_uuid"], "name": row["book_name"]},
        }
        return stored.Posting(
            *(row["uuid"], row["priority"], row["id"], told, row["created"], int(row["claims"]))
        )

    def _rows(self, only_unclaimed: bool, ensure_fresh: bool) -> Iterator[tuple[str, Any]]:
        statement = self._statements.unclaimed if only_unclaimed else self._statements.all
        after: dict[str, Any] = {
            "board": self.namespace,
            "priority": -1,
            "id": 0,
            "limit": _FIRST_PAGE,
        }

        def work(connection: sa.Connection) -> list[Mapping[str, Any]]:
            return [dict(row) for row in connection.execute(statement, after).mappings()]

        if only_unclaimed:
            self._offer_due_jobs()
        while True:
            found = self._transact("Listing jobs", work, write=False)
            for row in found:
                yield row["uuid"], row
            if len(found) < after["limit"]:
                return
            last = found[-1]
            after.update(priority=last["priority"], id=last["id"])
            after["limit"] = min(after["limit"] * 4, _LARGEST_PAGE)

    def _offer_due_jobs(self) -> None:
        """Let jobs be found whose time has come."""
        told = {"board": self.namespace, "limit": _LARGEST_PAGE}
        what = "Looking for jobs whose time has come"
        while True:
            due = self._transact(
                what,
                lambda connection: connection.scalars(self._statements.due, told).all(),
                write=False,
            )
            if due:
                self._transact(
                    what,
                    lambda connection, due=due: connection.execute(  # type: ignore[misc]
                        self._statements.offer, {"ids": due}
                    ),
                    durable=False,  # others would find them, too
                )
            if len(due) < _LARGEST_PAGE:
                return

    @property
    def job_count(self) -> int:
        found = self._first("Counting jobs", self._statements.count)
        return int(found["count"]) if found else 0

    def look(self, job: base.Job) -> stored.Status | None:
        row = self._find(job.uuid)
        return None if row is None else _status(row)

    # -- claims ---------------------------------------------------------------------------------

    def _claim(
        self, job: base.Job, who: str, expiry: float | None
    ) -> tuple[int, int] | stored.Status:
        told: dict[str, Any] = {"board": self.namespace, "uuid": job.uuid, "who": rows.kept(who)}
        statement = self._statements.claim
        if expiry is not None:
            statement, told["expiry"] = self._statements.claim_for, expiry

        def work(connection: sa.Connection) -> tuple[int, int] | stored.Status:
            claimed = connection.execute(statement, told).rowcount
            row = self._looked(connection, job)
            number = int(row["claims"])
            return (number, number) if claimed else _status(row, of_free=True)

        return self._transact(f"Claiming job {job.uuid}", work)

    def _end_claim(self, job: base.Job, who: str, how: str) -> stored.Status | None:
        told = {**self._claim_of(job), "who": rows.kept(who)}

        def work(connection: sa.Connection) -> stored.Status | None:
            if connection.execute(self._statements.ends[how], told).rowcount:
                return None
            return _status(self._looked(connection, job))

        return self._transact(f"Ending the claim on job {job.uuid}", work)

    @base.check_who
    def park(self, job: base.Job, who: str, seconds: float | None, signals: int | None) -> None:
        """Give a claim up; the job is not to be claimed for so many seconds (None: a long time).

        But at once when its flow has, or gets, more than so many signals (None: whatever it gets),
        or was cancelled.
        Raises what `consume` does.
        """
        wait = _LONG if seconds is None else min(seconds, _LONG)
        told = {**self._claim_of(job), "who": rows.kept(who), "seconds": wait}

        def work(connection: sa.Connection) -> bool:
            if not connection.execute(self._statements.park, told).rowcount:
                return False
            # A signal comes before this, and is counted, or waits for the row, and hastens the job.
            given = connection.scalar(self._statements.signals, told) or 0
            # So does whoever cancels the flow, after noting that in it.
            if (signals is not None and given > signals) or _is_given_up(connection, job.uuid):
                writing.hasten_job(connection, self._store.statements, job.uuid)
            return True

        if not self._transact(f"Parking job {job.uuid}", work):
            self._end(job, who, "abandon")

    def extend(self, job: stored.StoredJob, expiry: float) -> bool:
        told = {**self._claim_of(job), "expiry": expiry}
        return self._transact(
            f"Extending the claim on job {job.uuid}",
            lambda connection: connection.execute(self._statements.extend, told).rowcount > 0,
            durable=False,  # an owner does not outlive its host
        )

    def _looked(self, connection: sa.Connection, job: base.Job) -> dict[str, Any]:
        """:raises NotFound: it is not on the board any more."""
        told = {"board": self.namespace, "uuid": job.uuid}
        row = connection.execute(self._statements.look, told).mappings().first()
        if row is None:
            raise stored.gone(job)
        return dict(row)

    def _claim_of(self, job: base.Job) -> dict[str, Any]:
        number = stored.claim_of(job) or 0
        return {"board": self.namespace, "uuid": job.uuid, "claim": number}

    # -------------------------------------------------------------------------------------------

    def _first(
        self, what: str, statement: sa.TextClause, uuid: str | None = None
    ) -> dict[str, Any] | None:
        """The row that a statement finds on this board, of the job with this uuid."""
        told = {"board": self.namespace, "uuid": uuid}

        def work(connection: sa.Connection) -> dict[str, Any] | None:
            row = connection.execute(statement, told).mappings().first()
            return None if row is None else dict(row)

        return self._transact(what, work, write=False)

    def _transact(
        self,
        what: str,
        work: Callable[[sa.Connection], _T],
        *,
        write: bool = True,
        durable: bool = True,
    ) -> _T:
        if not self._connected:
            raise exceptions.JobFailure(f"{what} failed: job board {self.name!r} is not connected")
        with _failures():
            return _sql.transact(self._store.engine, what, work, write=write, durable=durable)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} in {self._store!r}>"


class _Statements:
    """The SQL of a board, made once for its kind of database."""

    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        here = "board = :board AND trashed = 0"
        free = f"(owner IS NULL OR owner_until <= {now})"
        held = f"owner IS NOT NULL AND (owner_until IS NULL OR owner_until > {now})"
        # Not by the board's index, which a PostgreSQL without statistics takes for as good.
        this = "uuid = :uuid AND COALESCE(board, '') = :board AND trashed = 0"
        # A number of 0 is that of no claim.
        ours = f"{this} AND {held} AND :claim IN (0, claims)"
        until = "CASE WHEN owner IS NULL THEN not_before ELSE owner_until END"
        jobs = tables.select(tables.JOBS, f"{until} - {now} AS remaining")
        after = f"{jobs} WHERE {here} AND (priority, id) > (:priority, :id)"
        order = "ORDER BY priority, id LIMIT :limit"
        claim = f"UPDATE {_JOBS} SET owner = :who, claims = claims + 1, updated = {now}"
        freed = f"owner = NULL, owner_until = NULL, updated = {now}"

        names = ["uuid", "board", "name", "priority", "details", "book_uuid", "book_name"]
        values = ", ".join(f":{name}" for name in names)
        self.post = sa.text(
            f"INSERT INTO {_JOBS} ({', '.join(names)}, created, updated)"
            f" VALUES ({values}, {now}, {now})"
        )
        wait = f"UPDATE {_JOBS} SET not_before"
        self.wait_for = sa.text(f"{wait} = {now} + :seconds WHERE {this}")
        self.wait_until = sa.text(f"{wait} = :seconds WHERE {this}")
        self.park = sa.text(
            f"UPDATE {_JOBS} SET {freed}, not_before = {now} + :seconds"
            f" WHERE {ours} AND owner = :who"
        )
        self.signals = sa.text(
            f"SELECT count(*) FROM {tables.SIGNALS.name} WHERE flow_uuid = :uuid"
        )
        self.has_job = sa.text(
            f"SELECT 1 FROM {_JOBS} WHERE uuid = :uuid"
            f" UNION ALL SELECT 1 FROM {_JOBS} WHERE {here} AND book_uuid = :book_uuid LIMIT 1"
        )
        self.look = sa.text(f"{jobs} WHERE {this}")
        self.posted = sa.text(f"{jobs} WHERE uuid IN :uuids AND board = :board").bindparams(
            sa.bindparam("uuids", expanding=True)
        )
        self.count = sa.text(f"SELECT count(*) AS count FROM {_JOBS} WHERE {here}")
        self.all = sa.text(f"{after} {order}")
        self.unclaimed = sa.text(f"{after} AND not_before = 0 AND {free} {order}")
        # The clock is read once, or PostgreSQL would read it for each row, and use no index.
        self.due = sa.text(
            f"SELECT id FROM {_JOBS} WHERE {here} AND not_before > 0"
            f" AND not_before <= (SELECT {now}) ORDER BY not_before LIMIT :limit"
        )
        self.offer = sa.text(
            f"UPDATE {_JOBS} SET not_before = 0 WHERE id IN :ids AND not_before > 0"
        ).bindparams(sa.bindparam("ids", expanding=True))
        free = f"{free} AND not_before <= {now}"
        self.claim = sa.text(f"{claim}, owner_until = NULL WHERE {this} AND {free}")
        self.claim_for = sa.text(f"{claim}, owner_until = {now} + :expiry WHERE {this} AND {free}")
        self.extend = sa.text(f"UPDATE {_JOBS} SET owner_until = {now} + :expiry WHERE {ours}")
        ends = {
            "consume": f"DELETE FROM {_JOBS}",
            "abandon": f"UPDATE {_JOBS} SET {freed}",
            "trash": f"UPDATE {_JOBS} SET trashed = 1, {freed}",
        }
        self.ends = {
            how: sa.text(f"{text} WHERE {ours} AND owner = :who") for how, text in ends.items()
        }
        aside = "uuid = :uuid AND board = :board AND trashed = 1"
        self.trashed = sa.text(f"SELECT 1 FROM {_JOBS} WHERE {aside}")
        self.restore = sa.text(f"UPDATE {_JOBS} SET trashed = 0, updated = {now} WHERE {aside}")


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Raise what is wrong with the database as what is wrong with the board."""
    try:
        yield
    except exceptions.StorageFailure as error:
        raise exceptions.JobFailure(str(error)) from error


def _is_given_up(connection: sa.Connection, flow_uuid: str) -> bool:
    try:
        meta = reading.flow(connection, flow_uuid, lazy=True).meta
    except exceptions.NotFound:
        return False
    return control.recorded(meta) is not None


class _PostedMeanwhileError(Exception):
    """Another one has posted the job."""


def _kind(store: object) -> str:
    """What was given for a store, without passwords that may be in it."""
    return repr(store) if isinstance(store, persistence_base.Backend) else type(store).__name__


def _status(row: Mapping[str, Any], of_free: bool = False) -> stored.Status:
    """What becomes of a job; with `of_free`, also until when a free one waits for its time."""
    owner, left = row["owner"], row["remaining"]
    if owner is not None and left is not None and left <= 0:
        owner = None
    if owner is None and not of_free:
        left = None
    return stored.Status(
        int(row["claims"]), row["updated"], owner, None if left is None else max(left, 0.0)
    )
