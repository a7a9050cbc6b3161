"""Schedules as they are kept: rows in the database of the flows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _codec, _sql, exceptions
from wbengine._sql import dialects
from wbengine.engines import loading, submission
from wbengine.persistence import base as persistence
from wbengine.persistence import macs, models
from wbengine.persistence.backends import sql
from wbengine.persistence.backends.sql import rows, tables
from wbengine.schedules.ticks import Schedule, Step, iso

__all__ = ["Entry", "Schedules", "add"]

_T = TypeVar("_T")

_TABLE: Final = tables.SCHEDULES.name
#: Characters of why a firing failed.
_LONGEST: Final = 500
#: So many schedules that are due are read at a time.
_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule as it is kept.

    `next_tick` is fired at `due` (both in unix seconds) unless it is paused; `last_flow` is the
    uuid of the flow that was fired for `last_tick` (None: nothing yet).  `wanted` is the uuid of a
    flow that is to be fired at once, besides the ticks.  `noted` says why the latest try to fire
    failed.  `unreadable` says why this host cannot read the schedule, of which `schedule` then
    tells what it can, unchecked.
    """

    schedule: Schedule
    paused: bool
    next_tick: int
    due: float
    last_tick: int | None
    last_flow: str | None
    wanted: str | None
    noted: str | None
    revision: int
    unreadable: str | None = None
    mac: str | None = None

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def trouble(self) -> str | None:
        """Why it is not fired; None: nothing is wrong."""
        return self.unreadable or self.noted

    @property
    def fires_at(self) -> float | None:
        """When it is fired next, in unix seconds; None: that cannot be told, or it is paused."""
        return None if self.paused or self.unreadable else self.due

    def check_readable(self) -> None:
        """:raises InvalidFormat: this host cannot read the schedule."""
        if self.unreadable is not None:
            raise exceptions.InvalidFormat(f"Schedule {self.name!r} {self.unreadable}")

    def check_trusted(self) -> None:
        """:raises NotTrusted: there are keys, and it does not bear their MAC."""
        macs.verify(macs.SCHEDULE, self.name, {**self.schedule.to_dict(), macs.MAC: self.mac})

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: ticks in ISO 8601, and of inputs the names only."""
        return {
            "name": self.name,
            **self.schedule.to_dict(),
            "inputs": sorted(self.schedule.inputs),
            "paused": self.paused,
            "next": None if self.fires_at is None else iso(self.next_tick),
            "due": self.fires_at,
            "last": None if self.last_tick is None else iso(self.last_tick),
            "last_flow": self.last_flow,
            "wanted": self.wanted,
            "trouble": self.trouble,
        }


class Schedules:
    """The schedules in the database of a backend; any thread may call any method.

    Times are those of the database's clock, or of `clock`, which returns unix seconds.

    :raises ValueError: the backend is no database.
    """

    def __init__(
        self, backend: persistence.Backend | None, *, clock: Callable[[], float] | None = None
    ) -> None:
        if not isinstance(backend, sql.SQLBackend):
            raise ValueError(f"Schedules need a database to be kept in, not {backend!r}")
        self.backend: Final = backend
        self._clock = clock
        self._sql = _Statements(backend.options.dialect)

    def add(self, schedule: Schedule, *, replace: bool = False) -> Entry:
        """Keep a schedule; its first tick is the first one from now.

        Its flow is made once, to see that it can be, and that no inputs are missing.

        :param replace: where there is one of this name, this one takes its place; whether it is
            paused stays, and so do the ticks that are due, unless their times change.
        :raises Duplicate: there is one of this name.
        :raises Exception: what `engines.submit` raises about a factory and its inputs.
        """
        _, given = submission.new_flow(
            schedule.factory, inputs=schedule.inputs_at(0), tags=schedule.tags_at(0)
        )
        _codec.pack(given, "inputs")
        return self.declare(schedule, replace=replace)

    def declare(self, schedule: Schedule, *, replace: bool = True) -> Entry:
        """As `add`, where what makes the flow need not be importable here."""
        text = _text(schedule, macs.sign(macs.SCHEDULE, schedule.name, schedule.to_dict()))

        def work(connection: sa.Connection) -> None:
            now = self._now(connection)
            tick = schedule.after(now)
            row = {"name": schedule.name, "text": text, "tick": tick, "due": schedule.due(tick)}
            kept = self._find(connection, schedule.name, lock=True)
            is_new = kept is None
            if kept is None:
                connection.execute(self._sql.add, row)
                kept = self._find(connection, schedule.name, lock=True)
                assert kept is not None
            is_same = not kept.unreadable and _text(kept.schedule, kept.mac) == text
            if not replace and not (is_new and is_same):
                raise exceptions.Duplicate(f"There is a schedule {schedule.name!r} already")
            if not is_same:
                if _times(kept.schedule) == _times(schedule):
                    row["tick"] = kept.next_tick
                    row["due"] = schedule.due(kept.next_tick)
                connection.execute(self._sql.replace, row)

        self._transact(f"Keeping schedule {schedule.name!r}", work)
        return self.get(schedule.name)

    def get(self, name: str) -> Entry:
        """:raises NotFound: there is none of this name."""
        found = None
        if self.backend.is_there():
            found = self._transact(
                f"Reading schedule {name!r}", lambda it: self._find(it, name), write=False
            )
        if found is None:
            raise _missing(name)
        return found

    def all(self) -> list[Entry]:
        """All of them, by name."""
        if not self.backend.is_there():
            return []
        return self._transact(
            "Listing schedules",
            lambda it: [_entry(row) for row in it.execute(self._sql.all).mappings()],
            write=False,
        )

    def page(self, limit: int, after: str = "") -> tuple[list[Entry], str | None]:
        """So many of them, by name, of those behind `after`; what the next page is asked for with.

        :raises ValueError: `limit` is no number above 0.
        """
        if limit < 1:
            raise ValueError(f"limit={limit} is no number above 0")
        if not self.backend.is_there():
            return [], None
        told = {"after": after, "limit": limit + 1}
        found = self._transact(
            "Listing schedules",
            lambda it: [_entry(row) for row in it.execute(self._sql.page, told).mappings()],
            write=False,
        )
        return found[:limit], found[limit - 1].name if len(found) > limit else None

    def pause(self, name: str) -> None:
        """Fire no more ticks; those that come while it is paused are not caught up.

        :raises NotFound: there is none of this name.
        """
        self._set(name, self._sql.pause, {})

    def resume(self, name: str) -> None:
        """Go on with the next tick; nothing happens to one that is not paused.

        :raises NotFound: there is none of this name.
        :raises InvalidFormat: this host cannot read it.
        """

        def work(connection: sa.Connection) -> None:
            kept = self._find(connection, name, lock=True)
            if kept is None:
                raise _missing(name)
            kept.check_readable()
            tick = kept.schedule.after(self._now(connection))
            told = {"name": name, "tick": tick, "due": kept.schedule.due(tick)}
            connection.execute(self._sql.resume, told)

        self._transact(f"Resuming schedule {name!r}", work)

    def run(self, name: str) -> str:
        """Have it fired once, now, besides its ticks, be it paused or not; the flow's uuid.

        A `wbengine serve` does so, whatever the policy of overlaps says.  Until then, to ask again
        is to ask for the same flow.

        :raises NotFound: there is none of this name.
        """

        def work(connection: sa.Connection) -> str:
            connection.execute(self._sql.want, {"name": name, "uuid": models.new_uuid()})
            kept = self._find(connection, name)
            if kept is None:
                raise _missing(name)
            return str(kept.wanted)

        return self._transact(f"Asking for a firing of schedule {name!r}", work)

    def remove(self, name: str) -> None:
        """Forget it; flows that were fired stay.

        :raises NotFound: there is none of this name.
        """
        self._set(name, self._sql.remove, {})

    # -- for those who fire ---------------------------------------------------------------------

    def due(self, within: float) -> Iterator[tuple[float, list[Entry]]]:
        """Those that are due in so many seconds, by when, in batches, each with the time now.

        A batch begins with those that were asked for until then.
        """
        place: dict[str, Any] = {"due": -1.0, "name": "", "limit": _BATCH}

        def work(connection: sa.Connection) -> tuple[float, list[Entry], list[Entry]]:
            now = self._now(connection)
            place.setdefault("until", now + within)
            wanted = connection.execute(self._sql.wanted).mappings()
            return (
                now,
                [_entry(row) for row in wanted],
                [_entry(row) for row in connection.execute(self._sql.due, place).mappings()],
            )

        while True:
            what = "Looking for schedules that are due"
            now, wanted, found = self._transact(what, work, write=False)
            yield now, wanted + found
            if len(found) < _BATCH:
                return
            place.update(due=found[-1].due, name=found[-1].name)

    def is_unfinished(self, flow: str) -> bool:
        """Whether a flow is kept, and has not ended."""
        return self._transact(
            f"Looking at flow {flow}",
            lambda it: it.execute(self._sql.unfinished, {"uuid": flow}).first() is not None,
            write=False,
        )

    def advance(
        self, connection: sa.Connection, entry: Entry, step: Step, flow: str | None
    ) -> bool:
        """Note that a step is done, in a transaction; whether its flow is to be kept with that.

        False: another process has done so before, or there is such a flow.
        """
        told = {
            "name": entry.name, "was": entry.next_tick, "revision": entry.revision,
            "tick": step.next_tick, "due": entry.schedule.due(step.next_tick),
        }  # fmt: skip
        if flow is None:
            return connection.execute(self._sql.skip, told).rowcount > 0
        return self._fired(
            connection, self._sql.advance, {**told, "fired": step.tick, "uuid": flow}
        )

    def grant(self, connection: sa.Connection, entry: Entry) -> bool:
        """Note that the flow that was asked for is fired, in a transaction; as `advance` says."""
        return self._fired(connection, self._sql.grant, {"name": entry.name, "uuid": entry.wanted})

    def _fired(
        self, connection: sa.Connection, statement: sa.TextClause, told: Mapping[str, Any]
    ) -> bool:
        done = connection.execute(statement, told).rowcount > 0
        return done and connection.execute(self._sql.flow, told).first() is None

    def skip(self, entry: Entry, step: Step) -> None:
        """Leave a tick out."""
        self._transact(
            f"Advancing schedule {entry.name!r}",
            lambda connection: self.advance(connection, entry, step, None),
        )

    def note_trouble(self, entry: Entry, why: str) -> None:
        """Note why it could not be fired."""
        if why[:_LONGEST] != entry.noted:
            self._set(entry.name, self._sql.trouble, {"why": rows.kept(why[:_LONGEST])}, True)

    # -------------------------------------------------------------------------------------------

    def _now(self, connection: sa.Connection) -> float:
        return float(connection.scalar(self._sql.now) if self._clock is None else self._clock())

    def _find(self, connection: sa.Connection, name: str, lock: bool = False) -> Entry | None:
        statement = self._sql.find_locked if lock else self._sql.find
        row = connection.execute(statement, {"name": name}).mappings().first()
        return None if row is None else _entry(row)

    def _set(
        self, name: str, statement: sa.TextClause, told: Mapping[str, Any], gone_ok: bool = False
    ) -> None:
        def work(connection: sa.Connection) -> None:
            changed = connection.execute(statement, {"name": name, **told}).rowcount
            if not (changed or gone_ok):
                raise _missing(name)

        self._transact(f"Changing schedule {name!r}", work)

    def _transact(
        self, what: str, work: Callable[[sa.Connection], _T], *, write: bool = True
    ) -> _T:
        self.backend.prepare()
        return _sql.transact(self.backend.engine, what, work, write=write)


class _Statements:
    """The SQL of schedules, made once for its kind of database."""

    def __init__(self, dialect: str) -> None:
        one = "WHERE name = :name"
        select = tables.select(tables.SCHEDULES)
        changed = "revision = revision + 1"
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        self.now = sa.text(f"SELECT {dialects.now(dialect)}")
        self.find = sa.text(f"{select} {one}")
        self.find_locked = sa.text(f"{select} {one}{lock}")
        self.all = sa.text(f"{select} ORDER BY name")
        self.page = sa.text(f"{select} WHERE name > :after ORDER BY name LIMIT :limit")
        self.wanted = sa.text(f"{select} WHERE wanted IS NOT NULL ORDER BY name")
        self.due = sa.text(
            f"{select} WHERE paused = 0 AND due <= :until AND wanted IS NULL"
            " AND (due, name) > (:due, :name) ORDER BY due, name LIMIT :limit"
        )
        columns = {"definition": ":text", "next_tick": ":tick", "due": ":due"}
        #: Unless another process has just done so.
        self.add = dialects.upsert(
            dialect, _TABLE, ["name", *columns], ["name"], keep=columns, given=columns
        )
        times = "next_tick = :tick, due = :due"
        self.replace = sa.text(
            f"UPDATE {_TABLE} SET definition = :text, {times}, {changed}, trouble = NULL {one}"
        )
        self.pause = sa.text(f"UPDATE {_TABLE} SET paused = 1, {changed} {one}")
        self.resume = sa.text(
            f"UPDATE {_TABLE} SET paused = 0, {times}, {changed}, trouble = NULL"
            f" {one} AND paused = 1"
        )
        self.want = sa.text(f"UPDATE {_TABLE} SET wanted = COALESCE(wanted, :uuid) {one}")
        self.remove = sa.text(f"DELETE FROM {_TABLE} {one}")
        self.trouble = sa.text(f"UPDATE {_TABLE} SET trouble = :why {one}")
        ours = f"{one} AND paused = 0 AND next_tick = :was AND revision = :revision"
        self.skip = sa.text(f"UPDATE {_TABLE} SET {times} {ours}")
        fired = "last_tick = :fired, last_flow = :uuid, trouble = NULL"
        self.advance = sa.text(f"UPDATE {_TABLE} SET {times}, {fired} {ours}")
        # What the policy of overlaps looks at are flows of ticks.
        self.grant = sa.text(
            f"UPDATE {_TABLE} SET wanted = NULL, trouble = NULL {one} AND wanted = :uuid"
        )
        flows, kept = tables.FLOWS.name, "WHERE uuid = :uuid"
        self.flow = sa.text(f"SELECT 1 FROM {flows} {kept}")
        self.unfinished = sa.text(
            f"SELECT 1 FROM {flows} {kept}"
            " AND (state IS NULL OR state NOT IN ('SUCCESS', 'FAILURE', 'REVERTED'))"
        )


def add(
    name: str, factory: str, *, backend: loading.Backend, replace: bool = False, **options: Any
) -> Entry:
    """Keep a schedule in a database: `Schedules(backend).add(Schedule(...))`.

    `backend` may be a URI, which is closed afterwards; `options` are those of `Schedule`.
    """
    schedule = Schedule(name=name, factory=factory, **options)
    with loading.lent(backend) as kept:
        return Schedules(kept).add(schedule, replace=replace)


def _entry(row: sa.RowMapping) -> Entry:
    told: Any = {}
    mac = unreadable = None
    try:
        told = _codec.unpack(json.loads(row["definition"]))
        mac = told.pop(macs.MAC, None) if isinstance(told, dict) else None
        schedule = Schedule.from_dict(row["name"], told)
    except Exception as error:  # of a newer version, of a zone that is not here, or damaged
        unreadable = f"cannot be read here: {error}"
        schedule = Schedule.unchecked(row["name"], told)
    return Entry(
        schedule,
        paused=bool(row["paused"]),
        noted=row["trouble"],
        unreadable=unreadable,
        mac=mac,
        **{
            name: row[name]
            for name in ("next_tick", "due", "last_tick", "last_flow", "wanted", "revision")
        },
    )


def _text(schedule: Schedule, mac: str | None) -> str:
    told = schedule.to_dict()
    return rows.text_of(_codec.pack({**told, macs.MAC: mac} if mac else told, "schedule"))


def _times(schedule: Schedule) -> tuple[Any, ...]:
    """What its ticks follow from."""
    return schedule.cron, schedule.every, schedule.time_zone


def _missing(name: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"There is no schedule {name!r}")
