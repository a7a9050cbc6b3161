"""Claims of the next jobs of a queue, in SQL. `persistence.backends._sql.turns` has the order."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from wbengine._sql import dialects
from wbengine.jobs._places import ALL_QUEUES
from wbengine.persistence.backends._sql import tables, turns

__all__ = ["JobTurns", "Wanted", "in_order"]

_JOBS: Final = tables.JOBS.name
_QUEUES: Final = tables.JOB_QUEUES.name

_Row = Mapping[str, Any]
_R = TypeVar("_R", bound=_Row)

#: Turns that differ by less are equal.
_TOLERANCE: Final = 1e-6
#: Maximum number of jobs that a claim moves.
_MAX_MOVED: Final = 64


class Wanted(NamedTuple):
    """What a conductor takes: at most `limit` jobs, except those of some codes and uuids."""

    who: str
    limit: int
    expiry: float | None
    codes: Sequence[str] = ()
    except_uuids: Sequence[str] = ()


class JobTurns:
    """The statements that take jobs in their order, for one kind of database."""

    def __init__(self, dialect: str) -> None:
        now = dialects.now(dialect)
        in_queue = "board = :board AND queue = :queue"
        of_key = f"{in_queue} AND fair_key = :fair_key"
        lock = self._lock = "" if dialect == dialects.SQLITE else " FOR UPDATE SKIP LOCKED"
        ids: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
        self._exceptions = {
            # A scalar subquery, which databases evaluate for the few rows that they read.
            # PostgreSQL would join a NOT EXISTS with all flows.
            "codes": f" AND COALESCE((SELECT f.code FROM {tables.FLOWS.name} f"
            f" WHERE f.uuid = {_JOBS}.uuid), '') NOT IN :codes",
            "except_uuids": " AND uuid NOT IN :except_uuids",
        }
        pause = (
            f"SELECT 1 FROM {_QUEUES} WHERE board = :board AND name IN (:queue, '{ALL_QUEUES}')"
            " AND paused_at IS NOT NULL LIMIT 1"
        )
        # The first turn that the next waiting job of the key may have.
        next_start = (
            f"SELECT b.turn - 1.0 / b.fair_weight FROM {_JOBS} b WHERE b.board = :board"
            f" AND b.queue = :queue AND b.fair_key = {_JOBS}.fair_key AND b.owner IS NULL"
            f" AND b.turn >= {_JOBS}.turn AND (b.turn > {_JOBS}.turn OR b.id > {_JOBS}.id)"
            " ORDER BY b.turn LIMIT 1"
        )
        preceded = _preceded(dialect, _JOBS)
        columns = f"{preceded} AS preceded, ({next_start}) AS next_start, ({pause}) AS paused"
        self._heads = f"{tables.select(tables.JOBS, columns)} WHERE {in_queue} AND {turns.READY}"
        self._first_of_key = (
            f"{tables.select(tables.JOBS)} WHERE {of_key} AND {turns.READY}"
            " AND turn >= 0 AND (priority, id) < (:priority, :id)"
        )
        jobs = dialects.by_primary_key(dialect, _JOBS)
        claim = f"UPDATE {jobs} SET owner = :who, claims = claims + 1, updated = {now}"
        heads = f"{self._heads} ORDER BY turn, id LIMIT {{limit}} FOR UPDATE SKIP LOCKED"
        no_head = "id NOT IN (SELECT id FROM heads)"
        # A job with a lower turn is no head only if another process is claiming it.
        later = f" AND b.{no_head} AND b.turn > heads.turn"
        has_others = (
            f"(SELECT id FROM {_JOBS} WHERE {in_queue} AND {turns.READY} AND {no_head}"
            " ORDER BY turn, id LIMIT 1) IS NOT NULL"  # The order makes it use the index.
        )
        changes_turns = (
            f"paused IS NOT NULL OR preceded AND {_preceded(dialect, 'heads', later)}"
            f" OR turn >= 0 AND COALESCE(next_start < turn - {_TOLERANCE}, {has_others})"
        )
        self._is_at_once: Final = dialect == dialects.POSTGRESQL
        self._take_at_once = (
            f"WITH heads AS MATERIALIZED ({heads}), claimed AS ({claim},"
            f" owner_until = {now} + CAST(:expiry AS DOUBLE PRECISION)"
            " WHERE id IN (SELECT id FROM heads)"
            f" AND NOT EXISTS (SELECT 1 FROM heads WHERE {changes_turns}) RETURNING id)"
            " SELECT heads.*, claimed.id IS NOT NULL AS is_taken"
            " FROM heads LEFT JOIN claimed ON claimed.id = heads.id ORDER BY turn, heads.id"
        )
        self._claim = sa.text(f"{claim}, owner_until = NULL WHERE id IN :ids").bindparams(ids)
        self._claim_for = sa.text(
            f"{claim}, owner_until = {now} + :expiry WHERE id IN :ids"
        ).bindparams(ids)
        self._exchange = sa.text(f"UPDATE {_JOBS} SET turn = :turn WHERE id = :id")
        self._has_any = sa.text(f"SELECT 1 FROM {_JOBS} WHERE {in_queue} AND {turns.READY} LIMIT 1")
        self._lowest = sa.text(
            f"SELECT turn FROM {_JOBS} WHERE {in_queue} AND {turns.READY} AND turn >= 0"
            " ORDER BY turn LIMIT 1"
        )
        waits = f"SELECT 1 FROM {_JOBS} WHERE {in_queue} AND {turns.READY} AND fair_key"
        self._has_others = sa.text(
            f"SELECT COALESCE(({waits} > :fair_key ORDER BY fair_key LIMIT 1),"
            f" ({waits} < :fair_key ORDER BY fair_key LIMIT 1))"
        )
        self._early = sa.text(
            f"SELECT id, board, queue, fair_key, fair_weight FROM {_JOBS} WHERE {of_key}"
            f" AND {turns.READY} AND turn >= :first AND turn < :end"
            " AND turn - 1.0 / fair_weight < :start"
            f" ORDER BY turn, id LIMIT {_MAX_MOVED}{lock}"
        )
        keys = tables.FAIR_KEYS
        names = [column.name for column in keys.columns]
        self._note_served = dialects.upsert(dialect, keys.name, names, names[:3])
        #: Names of the queues with jobs that may be taken.
        self.ready_queues = turns.queue_names(
            f"SELECT queue FROM {_JOBS} WHERE board = :board AND {turns.READY}"
        )
        waiting = f"board = :board AND not_before = {tables.LIMITED_NOT_BEFORE} AND trashed = 0"
        limit = f"SELECT flow_limit FROM {_JOBS} WHERE board = :board AND flow_limit IS NOT NULL"
        next_one = "ORDER BY flow_limit LIMIT 1"
        paused = f"SELECT name FROM {_QUEUES} WHERE board = :board AND paused_at IS NOT NULL"
        # A pause holds back flows that have not begun. The sum keeps PostgreSQL without statistics
        # from using the index of `not_before`, whose rows have all limits.
        in_queues = (
            f"board = :board AND not_before + 0 = {tables.LIMITED_NOT_BEFORE} AND trashed = 0"
            " AND (:all_queues = 1 OR queue IN :queues) AND (turn < 0 OR NOT"
            f" (queue IN ({paused}) OR EXISTS ({paused} AND name = '{ALL_QUEUES}')))"
        )
        queues: sa.BindParameter[Any] = sa.bindparam("queues", expanding=True)
        by_priority = "ORDER BY priority, id LIMIT"
        #: Names of limits for which jobs wait, and the first job of each in the queues, or NULL.
        #: Lookups for each limit, as one may have many jobs.
        self.limits = sa.text(
            f"WITH RECURSIVE names (name) AS (SELECT ({limit} AND flow_limit > :after {next_one})"
            f" UNION ALL SELECT ({limit} AND flow_limit > names.name {next_one}) FROM names"
            " WHERE names.name IS NOT NULL)"
            f" SELECT name, (SELECT uuid FROM {_JOBS} WHERE {in_queues} AND flow_limit = names.name"
            f" {by_priority} 1) AS uuid FROM names WHERE name IS NOT NULL LIMIT :limit"
        ).bindparams(queues)
        self.limited = sa.text(
            f"SELECT uuid FROM {_JOBS} WHERE {in_queues} AND flow_limit = :flow_limit"
            f" {by_priority} :limit"
        ).bindparams(queues)
        self.limited_for_update = sa.text(
            f"SELECT id, uuid, board, queue, fair_key, fair_weight, turn FROM {_JOBS}"
            f" WHERE {waiting} AND flow_limit = :flow_limit AND uuid IN :uuids"
            f" ORDER BY priority, id{lock}"
        ).bindparams(sa.bindparam("uuids", expanding=True))
        begin = f"UPDATE {_JOBS} SET not_before = 0, flow_limit = NULL, turn = :turn WHERE id = :id"
        self._begin_due = sa.text(
            f"{begin} AND turn IS NULL AND not_before > 0 AND not_before <= {now}"
        )
        self._begin_limited = sa.text(f"{begin} AND not_before = {tables.LIMITED_NOT_BEFORE}")

    def begin_due(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """Give jobs their turns whose time has come, in this order."""
        turns.assign(connection, rows)
        connection.execute(self._begin_due, rows)

    def begin_limited(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """Give jobs that wait for a limit their turns, in this order, unless they have one."""
        turns.assign(connection, [row for row in rows if row["turn"] is None])
        connection.execute(self._begin_limited, rows)

    def take_at_once(
        self, board: str, queue: str, wanted: Wanted
    ) -> tuple[sa.TextClause, dict[str, Any]] | None:
        """Return a statement that claims the next jobs of a queue, with its parameters.

        It returns their rows as they were before, by turn, with `is_taken`. If this is false,
        nothing was claimed, because turns must change or the queue is paused: `take` claims them.

        :returns: None if only `take` can claim these jobs: in other databases than PostgreSQL, or
            if jobs are left out.
        """
        if not self._is_at_once or wanted.codes or wanted.except_uuids:
            return None
        place = {"board": board, "queue": queue}
        statement = _statement(self._take_at_once.format(limit=wanted.limit))
        return statement, {**place, "who": wanted.who, "expiry": wanted.expiry}

    def take(
        self, connection: sa.Connection, board: str, queue: str, wanted: Wanted
    ) -> list[dict[str, Any]]:
        """Claim the next jobs of a queue, and return their rows as they were before."""
        place = {"board": board, "queue": queue}
        lists = {"codes": list(wanted.codes), "except_uuids": list(wanted.except_uuids)}
        given = {name: values for name, values in lists.items() if values}
        is_allowed = "".join(self._exceptions[name] for name in given)

        def read(
            condition: str, order: str, limit: int, **parameters: object
        ) -> list[dict[str, Any]]:
            # PostgreSQL plans a statement with a number as its limit only once.
            text = f"{condition}{is_allowed} ORDER BY {order} LIMIT {limit}{self._lock}"
            rows = connection.execute(_statement(text), {**place, **given, **parameters})
            return [dict(row) for row in rows.mappings()]

        heads = read(self._heads, "turn, id", wanted.limit)
        if heads and heads[0]["paused"]:
            # A pause holds back flows that have not begun, and have no command.
            heads = read(f"{self._heads} AND turn < 0", "turn, id", wanted.limit)
        if not heads:
            return []

        def read_first(key: str, before: _Row, limit: int) -> list[dict[str, Any]]:
            rank = {"priority": before["priority"], "id": before["id"]}
            return read(self._first_of_key, "priority, id", limit, fair_key=key, **rank)

        chosen = self._choose(connection, heads, read_first)
        claimed = {"ids": [row["id"] for row in chosen], "who": wanted.who}
        if wanted.expiry is None:
            connection.execute(self._claim, claimed)
        else:
            connection.execute(self._claim_for, {**claimed, "expiry": wanted.expiry})
        self._settle_turns(connection, heads, place)
        if given:
            self._keep_time(connection, heads, place)
        return chosen

    def _choose(
        self,
        connection: sa.Connection,
        heads: list[dict[str, Any]],
        read_first: Callable[[str, _Row, int], list[dict[str, Any]]],
    ) -> list[dict[str, Any]]:
        """Return the jobs that take the places of these, and give their places to the others.

        Jobs of flows that have begun keep their places.

        :param read_first: returns the first jobs of a key that come before a job.
        """
        if not any(row["preceded"] for row in heads):
            return heads
        taken = {row["id"] for row in heads}
        chosen = dict[str, list[dict[str, Any]]]()
        changes: list[dict[str, Any]] = []
        for key, own in _by_key(heads).items():
            rows = read_first(key, max(own, key=_rank), 2 * len(own))
            added = [row for row in rows if row["id"] not in taken]
            best = sorted([*own, *added], key=_rank)[: len(own)]
            ids = {row["id"] for row in best}
            left = [row for row in own if row["id"] not in ids]
            free = [row["turn"] for row in best if row["id"] not in taken]
            changes += [
                {"id": row["id"], "turn": turn} for row, turn in zip(left, free, strict=True)
            ]
            chosen[key] = best
        if changes:
            connection.execute(self._exchange, changes)
        return in_order(heads, chosen)

    def _settle_turns(
        self, connection: sa.Connection, heads: Iterable[_Row], place: Mapping[str, str]
    ) -> None:
        """Keep the turns of keys without further jobs, and correct those of keys with too many.

        Without a note, such a key would get the next turn with each of its jobs.
        """
        ended: list[dict[str, Any]] = []
        for key, own in sorted(_by_key(heads).items()):
            last = own[0]["turn"]
            for row in own[1:]:
                last = max(row["turn"], last + 1.0 / row["fair_weight"])
            next_start, step = own[-1]["next_start"], 1.0 / own[-1]["fair_weight"]
            if next_start is None:
                ended.append({**place, "fair_key": key, "served": last + step})
            elif next_start < last - _TOLERANCE:
                early = {
                    "first": own[0]["turn"],
                    "start": last - _TOLERANCE,
                    "end": last + step - _TOLERANCE,
                }
                self._move_to_end(connection, {**place, "fair_key": key}, early)
        if ended and connection.execute(self._has_any, place).first():
            connection.execute(self._note_served, ended)

    def _keep_time(
        self, connection: sa.Connection, heads: Iterable[_Row], place: Mapping[str, str]
    ) -> None:
        """Keep the turn that is due for new keys, if a job with a lower turn was left out."""
        served = [row["turn"] for row in heads if not _has_begun(row)]
        if served:
            lowest = connection.scalar(self._lowest, place)
            if lowest is not None and lowest < served[-1] - _TOLERANCE:
                clock = {**place, "fair_key": turns.CLOCK, "served": served[-1]}
                connection.execute(self._note_served, [clock])

    def _move_to_end(
        self, connection: sa.Connection, key: Mapping[str, str], early: Mapping[str, float]
    ) -> None:
        """Give later turns to jobs of a key with the turns of others.

        Transactions that add jobs of one key at the same time give them the same turns.
        """
        if connection.scalar(self._has_others, key):
            rows = connection.execute(self._early, {**key, **early}).mappings()
            moved = [dict(row) for row in rows]
            if moved:
                turns.assign(connection, moved)
                connection.execute(self._exchange, moved)


def in_order(heads: Sequence[_R], chosen: Mapping[str, Iterable[_R]] | None = None) -> list[_R]:
    """Return the jobs that take these places: of each key, that with the highest priority first.

    Jobs of flows that have begun keep their places.

    :param chosen: the jobs of each key; by default those that have the places.
    """
    of_keys = {
        key: iter(sorted(rows, key=_rank)) for key, rows in (chosen or _by_key(heads)).items()
    }
    return [row if _has_begun(row) else next(of_keys[row["fair_key"]]) for row in heads]


def _by_key(heads: Iterable[_R]) -> dict[str, list[_R]]:
    """Return the jobs of each key, except those of flows that have begun."""
    of_keys = defaultdict[str, list[_R]](list)
    for row in heads:
        if not _has_begun(row):
            of_keys[row["fair_key"]].append(row)
    return of_keys


@functools.lru_cache(maxsize=256)
def _statement(text: str) -> sa.TextClause:
    lists: list[sa.BindParameter[Any]] = [
        sa.bindparam(name, expanding=True)
        for name in ("codes", "except_uuids")
        if f":{name}" in text
    ]
    return sa.text(text).bindparams(*lists)


def _preceded(dialect: str, of: str, condition: str = "") -> str:
    """Return the SQL condition that a job of the same key comes before a row.

    :param of: the table of the row.
    :param condition: a further condition for the other job, whose table is `b`.
    """
    ready = (
        f"FROM {_JOBS} b WHERE b.board = :board AND b.queue = :queue"
        f" AND b.{turns.READY.replace(' AND ', ' AND b.')}{condition}"
    )
    if dialect == dialects.MYSQL:  # Two conditions, as each uses the index.
        exists = f"EXISTS (SELECT b.id {ready} AND b.fair_key = {of}.fair_key AND b.priority"
        return f"({exists} < {of}.priority) OR {exists} = {of}.priority AND b.id < {of}.id))"
    # The first job of the key. With "=", PostgreSQL may search it in an index without keys.
    return (
        f"COALESCE((SELECT (b.priority, b.id) < ({of}.priority, {of}.id) {ready}"
        f" AND b.fair_key BETWEEN {of}.fair_key AND {of}.fair_key"
        " ORDER BY b.fair_key, b.priority, b.id LIMIT 1), 1 = 0)"
    )


def _has_begun(row: _Row) -> bool:
    # An earlier release leaves the turn of some jobs empty.
    return row["turn"] is None or row["turn"] < 0


def _rank(row: _Row) -> tuple[int, int]:
    return row["priority"], row["id"]
