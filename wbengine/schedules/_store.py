"""Schedules in the database of the flows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _sql, exceptions, states
from wbengine._configuration import named_options
from wbengine._security import sealing
from wbengine._sql import dialects
from wbengine.engines import _allowed, _loading, _submission
from wbengine.jobs import base as jobs
from wbengine.persistence import _macs, _sealed_fields, models
from wbengine.persistence import base as persistence
from wbengine.persistence.backends import _sql as sql
from wbengine.persistence.backends._sql import caller_transactions, rows, tables
from wbengine.schedules import _firing
from wbengine.schedules._ticks import Pauses, Schedule, Step, iso
from wbengine.types import codec
from wbengine.types._encrypted import ENCRYPTED

__all__ = ["Entry", "Schedules", "add"]

_T = TypeVar("_T")

_TABLE: Final = tables.SCHEDULES.name
_MAX_ERROR_LENGTH: Final = 500
_BATCH_SIZE: Final = 100
_MAX_TICKS_READ: Final = 10_000
#: Time after which another process may continue a backfill whose process died.
_BACKFILL_CLAIM_SECONDS: Final = 30
#: Pause between two polls of the unfinished flows of a backfill.
_BACKFILL_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored schedule.

    :ivar next_tick: the next tick, fired at `due` unless the schedule is paused; both in Unix
        seconds.
    :ivar last_flow: uuid of the flow that was fired for `last_tick`, or None.
    :ivar wanted: uuid of a flow to fire at once, in addition to the ticks, or None.
    :ivar last_error: error of the latest attempt to fire, or None.
    :ivar unreadable: reason why this host cannot read the schedule, or None. In that case
        `schedule` contains the readable parts, without validation.
    :ivar pauses: earlier pauses that began after `next_tick`, and the present one, whose end is its
        start.
    """

    schedule: Schedule
    paused: bool
    next_tick: int
    due: float
    last_tick: int | None
    last_flow: str | None
    wanted: str | None
    last_error: str | None
    revision: int
    unreadable: str | None = None
    mac: str | None = None
    pauses: Pauses = ()

    @property
    def name(self) -> str:
        return self.schedule.name

    @property
    def trouble(self) -> str | None:
        """Reason why the schedule is not fired, or None."""
        return self.unreadable or self.last_error

    @property
    def fires_at(self) -> float | None:
        """Time of the next firing in Unix seconds; None if unknown or paused."""
        return None if self.paused or self.unreadable else self.due

    def check_readable(self) -> None:
        """Check that this host can read the schedule.

        :raises InvalidFormat: if it cannot.
        """
        if self.unreadable is not None:
            raise exceptions.InvalidFormat(f"Schedule {self.name!r} {self.unreadable}")

    def check_trusted(self) -> None:
        """Verify the MAC of the schedule, if there are keys.

        :raises NotTrusted: if the MAC is missing or wrong.
        """
        _macs.verify(_macs.SCHEDULE, self.name, {**self.schedule.to_dict(), _macs.MAC: self.mac})

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON: ticks are in ISO 8601, and inputs are only names."""
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
    """The schedules in the database of a backend. Thread-safe.

    :param clock: returns Unix seconds; replaces the clock of the database.
    :raises ValueError: if the backend is not a database.
    """

    def __init__(
        self, backend: persistence.Backend | None, *, clock: Callable[[], float] | None = None
    ) -> None:
        if not isinstance(backend, sql.SQLBackend):
            raise ValueError(f"Store of schedules must be a database, got {backend!r}")
        self.backend: Final = backend
        self._clock = clock
        self._sql = _Statements(backend.options.dialect)

    def add(self, schedule: Schedule, *, replace: bool = False, connection: Any = None) -> Entry:
        """Save a schedule. Its first tick is the first one after now.

        The factory is called once, in order to find errors and missing inputs. Inputs for annotated
        parameters must be instances of their classes, as in `engines.submit`.

        :param replace: replace a schedule with this name. Its pause stays, and its due ticks too,
            unless the times change.
        :param connection: save it in your transaction, as in `engines.submit`.
        :raises Duplicate: if a schedule with this name exists.
        :raises Exception: errors of `engines.submit` about the factory and its inputs.
        """
        new = _submission.new_flow(
            schedule.factory,
            inputs=schedule.new_inputs_at(0),
            tags=schedule.tags_at(0),
            payloads=None,
        )
        codec.pack(new.inputs, "inputs")
        inputs = {name: new.inputs.get(name, value) for name, value in schedule.inputs.items()}
        schedule = dataclasses.replace(schedule, inputs=inputs)
        return self.declare(schedule, replace=replace, connection=connection)

    def declare(self, schedule: Schedule, *, replace: bool = True, connection: Any = None) -> Entry:
        """Save a schedule like `add`, without importing its factory.

        :raises ValueError: if the schedule is new, and paths of the API cannot contain its name.
        """
        text = _text(schedule, _macs.sign(_macs.SCHEDULE, schedule.name, schedule.to_dict()))

        def work(transaction: sa.Connection) -> Entry:
            now = self._now(transaction)
            tick = schedule.after(now)
            row = {"name": schedule.name, "text": text, "tick": tick, "due": schedule.due(tick)}
            stored = self._find(transaction, schedule.name, lock=True)
            is_new = stored is None
            if stored is None:
                _check_addressable(schedule.name)
                transaction.execute(self._sql.add, row)
                stored = self._find(transaction, schedule.name, lock=True)
                assert stored is not None
            is_same = not stored.unreadable and _text(stored.schedule, stored.mac) == text
            if not replace and not (is_new and is_same):
                raise exceptions.Duplicate(f"Schedule {schedule.name!r} already exists")
            if not is_same:
                if _times(stored.schedule) == _times(schedule):
                    row["tick"] = stored.next_tick
                    row["due"] = schedule.due(stored.next_tick)
                transaction.execute(self._sql.replace, row)
                stored = self._find(transaction, schedule.name)
                assert stored is not None
            return stored

        what = f"Saving schedule {schedule.name!r}"
        if connection is None:
            return self._transact(what, work)
        with caller_transactions.joined(self.backend, connection, what) as transaction:
            return work(transaction)

    def get(self, name: str) -> Entry:
        """Return a schedule.

        :raises NotFound: if no schedule has this name.
        """
        entry = None
        if self.backend.has_tables():
            entry = self._transact(
                f"Reading schedule {name!r}", lambda it: self._find(it, name), write=False
            )
        if entry is None:
            raise _missing(name)
        return entry

    def all(self) -> list[Entry]:
        """Return all schedules, ordered by name."""
        if not self.backend.has_tables():
            return []
        return self._transact(
            "Listing schedules",
            lambda it: [_entry(row) for row in it.execute(self._sql.all).mappings()],
            write=False,
        )

    def page(self, limit: int, after: str = "") -> tuple[list[Entry], str | None]:
        """Return a page of schedules by name, and the name to pass as `after` for the next page.

        :raises ValueError: if `limit` is less than 1.
        """
        if limit < 1:
            raise ValueError(f"limit must be a number above 0, got {limit}")
        if not self.backend.has_tables():
            return [], None
        parameters = {"after": after, "limit": limit + 1}
        entries = self._transact(
            "Listing schedules",
            lambda it: [_entry(row) for row in it.execute(self._sql.page, parameters).mappings()],
            write=False,
        )
        return entries[:limit], entries[limit - 1].name if len(entries) > limit else None

    def pause(self, name: str) -> None:
        """Pause a schedule. Ticks during the pause are not caught up.

        :raises NotFound: if no schedule has this name.
        """

        def work(connection: sa.Connection) -> None:
            entry = self._find(connection, name, lock=True)
            if entry is None:
                raise _missing(name)
            if not entry.paused:
                now = self._now(connection)
                pauses = json.dumps([*entry.pauses, (now, now)])
                connection.execute(self._sql.pause, {"name": name, "pauses": pauses})

        self._transact(f"Pausing schedule {name!r}", work)

    def resume(self, name: str) -> None:
        """Resume a paused schedule. Ticks that were due before the pause are still due.

        :raises NotFound: if no schedule has this name.
        :raises InvalidFormat: if this host cannot read it.
        """

        def work(connection: sa.Connection) -> None:
            entry = self._find(connection, name, lock=True)
            if entry is None:
                raise _missing(name)
            entry.check_readable()
            if not entry.paused:
                return
            # A process of release 0.1 stores no pause: its times are left out.
            *pauses, (start, _) = entry.pauses or ((entry.next_tick - 1, 0),)
            pauses.append((start, self._now(connection)))
            tick = entry.schedule.after(entry.next_tick - 1, pauses)
            pauses = [pause for pause in pauses if pause[0] >= tick]
            parameters = {
                "name": name, "tick": tick, "due": entry.schedule.due(tick),
                "pauses": json.dumps(pauses),
            }  # fmt: skip
            connection.execute(self._sql.resume, parameters)

        self._transact(f"Resuming schedule {name!r}", work)

    def run(self, name: str) -> str:
        """Request one firing now and return the flow's uuid.

        A `wbengine serve` process fires it in addition to the ticks, regardless of a pause and of
        the overlap policy. Until then, another call returns the same uuid.

        :raises NotFound: if no schedule has this name.
        """

        def work(connection: sa.Connection) -> str:
            connection.execute(self._sql.want, {"name": name, "uuid": models.new_uuid()})
            entry = self._find(connection, name)
            if entry is None:
                raise _missing(name)
            return str(entry.wanted)

        return self._transact(f"Requesting a firing of schedule {name!r}", work)

    def remove(self, name: str) -> None:
        """Delete a schedule. Its flows stay.

        :raises NotFound: if no schedule has this name.
        """
        self._set(name, self._sql.remove, {})

    def due(self, within: float) -> Iterator[tuple[float, list[Entry]]]:
        """Yield the current time and batches of schedules that are due within a number of seconds.

        Each batch starts with the requested firings.
        """
        parameters: dict[str, Any] = {"due": -1.0, "name": "", "limit": _BATCH_SIZE}

        def work(connection: sa.Connection) -> tuple[float, list[Entry], list[Entry]]:
            now = self._now(connection)
            parameters.setdefault("until", now + within)
            requested = connection.execute(self._sql.wanted).mappings()
            return (
                now,
                [_entry(row) for row in requested],
                [_entry(row) for row in connection.execute(self._sql.due, parameters).mappings()],
            )

        while True:
            operation = "Reading due schedules"
            now, requested, due_entries = self._transact(operation, work, write=False)
            yield now, requested + due_entries
            if len(due_entries) < _BATCH_SIZE:
                return
            parameters.update(due=due_entries[-1].due, name=due_entries[-1].name)

    def missed(
        self, name: str, start: datetime | float, end: datetime | float | None = None
    ) -> Iterator[int]:
        """Yield the past times of a schedule without a flow, in Unix seconds, oldest first.

        The times are those of the present definition. A time whose flow was deleted counts, too.

        :param start: first possible time: a `datetime` with a time zone, or Unix seconds.
        :param end: last possible time (default: now).
        :raises NotFound: if no schedule has this name.
        :raises ValueError: if `start` or `end` is invalid.
        """
        for tick, flow_state in self._past_ticks(name, start, end):
            if flow_state is None:
                yield tick

    def missed_page(
        self,
        name: str,
        start: datetime | float,
        end: datetime | float | None = None,
        *,
        limit: int,
    ) -> tuple[list[int], int | None]:
        """Return at most `limit` times of `missed`, and the first time that was not read.

        This reads at most 10,000 times of the schedule.

        :returns: the times, and None if all were read.
        :raises NotFound, ValueError: as `missed`.
        """
        missed: list[int] = []
        for number, (tick, flow_state) in enumerate(self._past_ticks(name, start, end)):
            if len(missed) == limit or number == _MAX_TICKS_READ:
                return missed, tick
            if flow_state is None:
                missed.append(tick)
        return missed, None

    def backfill(
        self,
        name: str,
        start: datetime | float,
        end: datetime | float | None = None,
        *,
        limit: int | None = 1,
        priority: str = jobs.JobPriority.VERY_LOW.value,
        board: _submission.Board = None,
    ) -> Iterator[tuple[int, str]]:
        """Submit a flow for each time of `missed`. Yield each time and the uuid of its flow.

        The inputs and tags of a flow are those of a firing, and a time that the schedule fires
        meanwhile has one flow. The policies of the schedule, and its pause, do not apply. If this
        is interrupted, repeat it: times that have a flow are left out.

        :param limit: number of unfinished flows of times from `start` to `end`, at which this
            waits before it submits the next one. None: it does not wait.
        :param priority: priority of the flows: by default, other flows begin first.
        :param board: as in `engines.submit`.
        :raises NotFound: if no schedule has this name.
        :raises InvalidState: if another process backfills the schedule.
        :raises ValueError: if an argument is invalid.
        :raises Exception: errors of the factory.
        """
        jobs.JobPriority.convert(priority)
        limit = None if limit is None else named_options.whole("limit", limit, 1)
        duty, owner = f"backfill {name}"[: dialects.MAX_KEY_LENGTH], models.new_uuid()
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(contextlib.closing(self.backend.get_connection()))
            ticks = self._past_ticks(name, start, end)
            entry = self.get(name)
            entry.check_trusted()
            open_board = _submission.connect_board(board, self.backend, stack)
            firing = _firing.Firing(self.backend, open_board, _allowed.of_process(None))

            def claim() -> None:
                if not connection.claim_duty(duty, owner, _BACKFILL_CLAIM_SECONDS):
                    raise exceptions.InvalidState(
                        f"Another process backfills schedule {name!r}; if it died, repeat this in"
                        f" {_BACKFILL_CLAIM_SECONDS} seconds"
                    )

            claim()
            stack.callback(connection.end_duty, duty, owner, 0, {})
            unfinished: list[str] = []
            for tick, flow_state in ticks:
                uuid = entry.schedule.flow_id(tick)
                if flow_state is not None:
                    unfinished += [] if flow_state in states.FLOW_ENDED else [uuid]
                    continue
                while limit is not None and len(unfinished) >= limit:
                    claim()
                    unfinished = [
                        each for each in self.unfinished(unfinished) if firing.is_busy(each)
                    ]
                    if len(unfinished) >= limit:
                        time.sleep(_BACKFILL_POLL_SECONDS)
                claim()
                if firing.fire(
                    entry.schedule,
                    tick,
                    uuid,
                    functools.partial(self._is_missed, name, uuid),
                    priority,
                ):
                    yield tick, uuid
                unfinished.append(uuid)

    def _past_ticks(
        self, name: str, start: datetime | float, end: datetime | float | None
    ) -> Iterator[tuple[int, str | None]]:
        """Return past times with the states of their flows; None: there is no flow."""
        entry = self.get(name)
        entry.check_readable()
        now = self._transact("Reading the time", self._now, write=False)
        first = _unix_seconds("start", start)
        last = min(now, _unix_seconds("end", now if end is None else end))
        if first > last:  # The next tick may lie beyond the years of `datetime`.
            return iter(())
        ticks = itertools.takewhile(lambda tick: tick <= last, entry.schedule.from_time(first))
        return self._with_states(entry.schedule, ticks)

    def _with_states(
        self, schedule: Schedule, ticks: Iterator[int]
    ) -> Iterator[tuple[int, str | None]]:
        while batch := list(itertools.islice(ticks, _BATCH_SIZE)):
            uuids = [schedule.flow_id(tick) for tick in batch]
            stored = self._states(uuids)
            yield from zip(batch, map(stored.get, uuids), strict=True)

    def _states(self, flow_uuids: Sequence[str]) -> dict[str, str]:
        """Return the states of those flows that exist."""
        uuids = {"uuids": list(flow_uuids)}

        def work(connection: sa.Connection) -> dict[str, str]:
            found = connection.execute(self._sql.states, uuids)
            return {uuid: state or states.PENDING for uuid, state in found}

        return self._transact("Reading flows of a schedule", work, write=False)

    def _is_missed(self, name: str, uuid: str, connection: sa.Connection) -> bool:
        """Lock the schedule, which a firing changes, and return True if the flow does not exist."""
        if self._find(connection, name, lock=True) is None:
            raise _missing(name)
        return connection.execute(self._sql.flow, {"uuid": uuid}).first() is None

    def unfinished(self, flow_uuids: Sequence[str]) -> list[str]:
        """Return those flows that exist and have not ended."""
        stored = self._states(flow_uuids)
        return [uuid for uuid, state in stored.items() if state not in states.FLOW_ENDED]

    def advance(
        self, connection: sa.Connection, entry: Entry, step: Step, flow: str | None
    ) -> bool:
        """Advance a schedule inside a transaction. Return True if the caller must save the flow.

        Return False if another process advanced it before, or the flow exists.
        """
        parameters = {
            "name": entry.name, "was": entry.next_tick, "revision": entry.revision,
            "tick": step.next_tick, "due": entry.schedule.due(step.next_tick),
        }  # fmt: skip
        if flow is None:
            return connection.execute(self._sql.skip, parameters).rowcount > 0
        return self._fired(
            connection, self._sql.advance, {**parameters, "fired": step.tick, "uuid": flow}
        )

    def grant(self, connection: sa.Connection, entry: Entry) -> bool:
        """Record a requested firing inside a transaction. The result is that of `advance`."""
        return self._fired(connection, self._sql.grant, {"name": entry.name, "uuid": entry.wanted})

    def _fired(
        self, connection: sa.Connection, statement: sa.TextClause, parameters: Mapping[str, Any]
    ) -> bool:
        is_advanced = connection.execute(statement, parameters).rowcount > 0
        return is_advanced and connection.execute(self._sql.flow, parameters).first() is None

    def skip(self, entry: Entry, step: Step) -> None:
        """Leave out a tick."""
        self._transact(
            f"Advancing schedule {entry.name!r}",
            lambda connection: self.advance(connection, entry, step, None),
        )

    def note_trouble(self, entry: Entry, error: str) -> None:
        """Record the error of a firing."""
        text = rows.storable_text(error[:_MAX_ERROR_LENGTH])
        if text != entry.last_error:
            self._set(
                entry.name,
                self._sql.trouble,
                {"why": sealing.sealed(text, *_sealed_fields.place_of_trouble(entry.name))},
                True,
            )

    def _now(self, connection: sa.Connection) -> float:
        return float(connection.scalar(self._sql.now) if self._clock is None else self._clock())

    def _find(self, connection: sa.Connection, name: str, lock: bool = False) -> Entry | None:
        statement = self._sql.find_locked if lock else self._sql.find
        row = connection.execute(statement, {"name": name}).mappings().first()
        return None if row is None else _entry(row)

    def _set(
        self, name: str, statement: sa.TextClause, values: Mapping[str, Any], gone_ok: bool = False
    ) -> None:
        def work(connection: sa.Connection) -> None:
            changed = connection.execute(statement, {"name": name, **values}).rowcount
            if not (changed or gone_ok):
                raise _missing(name)

        self._transact(f"Changing schedule {name!r}", work)

    def _transact(
        self, what: str, work: Callable[[sa.Connection], _T], *, write: bool = True
    ) -> _T:
        self.backend.prepare()
        return _sql.transact(self.backend.engine, what, work, write=write)


class _Statements:
    def __init__(self, dialect: str) -> None:
        by_name = "WHERE name = :name"
        select = tables.select(tables.SCHEDULES)
        changed = "revision = revision + 1"
        lock = "" if dialect == dialects.SQLITE else " FOR UPDATE"
        self.now = sa.text(f"SELECT {dialects.now(dialect)}")
        self.find = sa.text(f"{select} {by_name}")
        self.find_locked = sa.text(f"{select} {by_name}{lock}")
        self.all = sa.text(f"{select} ORDER BY name")
        self.page = sa.text(f"{select} WHERE name > :after ORDER BY name LIMIT :limit")
        self.wanted = sa.text(f"{select} WHERE wanted IS NOT NULL ORDER BY name")
        self.due = sa.text(
            f"{select} WHERE paused = 0 AND due <= :until AND wanted IS NULL"
            " AND (due, name) > (:due, :name) ORDER BY due, name LIMIT :limit"
        )
        columns = {"definition": ":text", "next_tick": ":tick", "due": ":due"}
        #: Insert the schedule unless another process has just inserted it.
        self.add = dialects.upsert(
            dialect, _TABLE, ["name", *columns], ["name"], keep=columns, given=columns
        )
        times = "next_tick = :tick, due = :due"
        self.replace = sa.text(
            f"UPDATE {_TABLE} SET definition = :text, {times}, {changed}, trouble = NULL {by_name}"
        )
        self.pause = sa.text(
            f"UPDATE {_TABLE} SET paused = 1, pauses = :pauses, {changed} {by_name}"
        )
        self.resume = sa.text(
            f"UPDATE {_TABLE} SET paused = 0, pauses = :pauses, {times}, {changed}, trouble = NULL"
            f" {by_name}"
        )
        self.want = sa.text(f"UPDATE {_TABLE} SET wanted = COALESCE(wanted, :uuid) {by_name}")
        self.remove = sa.text(f"DELETE FROM {_TABLE} {by_name}")
        self.trouble = sa.text(f"UPDATE {_TABLE} SET trouble = :why {by_name}")
        unchanged = f"{by_name} AND paused = 0 AND next_tick = :was AND revision = :revision"
        self.skip = sa.text(f"UPDATE {_TABLE} SET {times} {unchanged}")
        fired = "last_tick = :fired, last_flow = :uuid, trouble = NULL"
        self.advance = sa.text(f"UPDATE {_TABLE} SET {times}, {fired} {unchanged}")
        # `last_flow` stays, because the overlap policy applies only to flows of ticks.
        self.grant = sa.text(
            f"UPDATE {_TABLE} SET wanted = NULL, trouble = NULL {by_name} AND wanted = :uuid"
        )
        flows, by_uuid = tables.FLOWS.name, "WHERE uuid = :uuid"
        self.flow = sa.text(f"SELECT 1 FROM {flows} {by_uuid}")
        self.states = sa.text(f"SELECT uuid, state FROM {flows} WHERE uuid IN :uuids").bindparams(
            sa.bindparam("uuids", expanding=True)
        )


def add(
    name: str, factory: str, *, backend: _loading.Backend, replace: bool = False, **options: Any
) -> Entry:
    """Save a schedule in a database: `Schedules(backend).add(Schedule(...))`.

    :param backend: a backend, or a URI, which is closed afterwards.
    :param options: fields of `Schedule`.
    """
    schedule = Schedule(name=name, factory=factory, **options)
    with _loading.opened_backend(backend) as store:
        return Schedules(store).add(schedule, replace=replace)


def _check_addressable(name: str) -> None:
    """Check that a part of a path can be this name.

    :raises ValueError: if it cannot.
    """
    if "/" in name or name in (".", ".."):
        raise ValueError(f"Schedule name must not contain '/', or be '.' or '..', got {name!r:.80}")


def _unix_seconds(name: str, value: datetime | float) -> float:
    """Return a Unix time. Earlier times than 1970 have no ticks and are 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name} must have a time zone, got {value!r}")
        return max(0.0, value.timestamp())
    is_early = isinstance(value, int | float) and value < 0
    return 0.0 if is_early else named_options.number(name, value)


def _entry(row: sa.RowMapping) -> Entry:
    definition: Any = {}
    mac = unreadable = None
    pauses: Pauses = ()
    try:
        pauses = tuple((start, end) for start, end in json.loads(row["pauses"] or "[]"))
        definition = codec.unpack(
            _sealed_fields.opened(
                json.loads(row["definition"]), *_sealed_fields.place_of_inputs(row["name"])
            )
        )
        mac = definition.pop(_macs.MAC, None) if isinstance(definition, dict) else None
        schedule = Schedule.from_dict(row["name"], definition)
    except Exception as error:  # From a newer version, in an unknown time zone, or damaged.
        unreadable = f"cannot be read on this host: {error}"
        schedule = Schedule.unchecked(row["name"], definition)
    return Entry(
        schedule,
        paused=bool(row["paused"]),
        last_error=_opened_error(row["trouble"], row["name"]),
        unreadable=unreadable,
        mac=mac,
        pauses=pauses,
        **{
            name: row[name]
            for name in ("next_tick", "due", "last_tick", "last_flow", "wanted", "revision")
        },
    )


def _text(schedule: Schedule, mac: str | None) -> str:
    fields = schedule.to_dict()
    packed = codec.pack({**fields, _macs.MAC: mac} if mac else fields, "schedule")
    place = _sealed_fields.place_of_inputs(schedule.name)
    packed = _sealed_fields.sealed_parts(packed, ["inputs"], *place)
    return rows.text_of(packed)


def _opened_error(stored: str | None, name: str) -> str | None:
    if stored is None:
        return None
    try:
        text = sealing.opened(stored, *_sealed_fields.place_of_trouble(name))
    except exceptions.NotTrusted:
        text = stored
    return repr(ENCRYPTED) if sealing.is_sealed(text) else text


def _times(schedule: Schedule) -> tuple[Any, ...]:
    return schedule.cron, schedule.every, schedule.time_zone


def _missing(name: str) -> exceptions.NotFound:
    return exceptions.NotFound(f"Unknown schedule {name!r}")
