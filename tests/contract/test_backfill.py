"""Backfill of the past times of a schedule."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.contract import places
from tests.support.killed import is_killed
from tests.support.schedule_site import START, ScheduleSite
from tests.support.waiting import until
from wbengine import exceptions
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends, models
from wbengine.schedules import Schedule, _store

FIRST = START - 600  # Ten ticks before now.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ScheduleSite]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        yield ScheduleSite(backend)


def execute(site: ScheduleSite, statement: str) -> Any:
    with site.backend.engine.begin() as connection:
        return connection.execute(sa.text(statement))


def end_flows(site: ScheduleSite) -> None:
    execute(site, "UPDATE wbe_flowdetails SET state = 'SUCCESS'")


def fired(site: ScheduleSite) -> list[int]:
    """Return the times of all flows, in seconds from the start."""
    with site.backend.get_connection() as connection:
        rows = connection.list_flows(limit=500).flows
    times = [datetime.fromisoformat(row.tags["scheduled"]) for row in rows]
    return sorted(int(time.timestamp() - START) for time in times)


def offsets(ticks: Iterator[int]) -> list[int]:
    return [tick - int(START) for tick in ticks]


def test_missed_times_are_those_without_a_flow(site: ScheduleSite) -> None:
    site.add(every=60)
    assert offsets(site.schedules.missed("s", FIRST)) == [*range(-600, 1, 60)]
    assert offsets(site.schedules.missed("s", FIRST + 1, START - 480)) == [-540, -480]
    assert offsets(site.schedules.missed("s", START + 1)) == []  # later than now
    start = datetime.fromtimestamp(FIRST, UTC)
    assert offsets(site.schedules.missed("s", start, start)) == [-600]
    site.now += 60
    site.fire()
    assert offsets(site.schedules.missed("s", START)) == [0]
    site.schedules.pause("s")
    site.now += 120
    assert offsets(site.schedules.missed("s", START)) == [0, 120, 180]
    first_tick = next(site.schedules.missed("s", 0.0))
    for early in (-1e10, datetime(1000, 1, 1, tzinfo=UTC)):
        assert next(site.schedules.missed("s", early)) == first_tick
    with pytest.raises(exceptions.NotFound):
        next(site.schedules.missed("other", START))
    with pytest.raises(ValueError, match="start must be a number of 0 or more, got nan"):
        next(site.schedules.missed("s", float("nan")))
    with pytest.raises(ValueError, match="start must have a time zone"):
        next(site.schedules.missed("s", datetime(2027, 1, 1)))


def test_many_missed_times_are_read_in_batches(site: ScheduleSite) -> None:
    site.add(every=1)
    assert len(list(site.schedules.missed("s", START - 499))) == 500


def test_page_of_missed_times_ends_at_its_limit(site: ScheduleSite) -> None:
    site.add(every=60)
    page = functools.partial(site.schedules.missed_page, "s", FIRST)
    ticks, unread = page(START - 480, limit=2)
    assert (offsets(iter(ticks)), unread) == ([-600, -540], START - 480)
    assert page(START - 540, limit=2) == (ticks, None)
    list(site.schedules.backfill("s", FIRST, START - 480, limit=None))
    assert page(START - 480, limit=2) == ([], None)
    assert page(limit=1)[0] == [START - 420]


def test_page_of_missed_times_reads_a_bounded_number_of_times(
    site: ScheduleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "_MAX_TICKS_READ", 3)
    site.add(every=60)
    list(site.schedules.backfill("s", FIRST, START - 420, limit=None))
    assert site.schedules.missed_page("s", FIRST, limit=9) == ([], START - 420)
    ticks, unread = site.schedules.missed_page("s", START - 420, limit=9)
    assert (offsets(iter(ticks)), unread) == ([-360, -300], START - 240)


def test_backfill_without_a_limit_does_not_wait(site: ScheduleSite) -> None:
    site.add()
    assert len(list(site.schedules.backfill("s", FIRST, limit=None))) == 11


def test_backfilled_flow_is_that_of_its_time_below_live_work(site: ScheduleSite) -> None:
    site.add(every=60, priority="HIGH", tags={"team": "billing"}, overlap="skip", catch_up="skip")
    ((tick, uuid),) = site.schedules.backfill("s", START - 60, START - 60)
    site.now += 60
    site.fire()
    with site.backend.get_connection() as connection:
        live, old = connection.list_flows().flows
        (injector,) = [
            atom
            for atom in connection.get_flow_details(uuid)
            if isinstance(atom, models.TaskDetail) and atom.name == models.INJECTOR
        ]
    assert (tick, old.uuid) == (START - 60, uuid) and live.uuid != uuid
    assert old.tags == {"team": "billing", "schedule": "s", "scheduled": "2027-01-15T07:59:00Z"}
    assert injector.results == {"scheduled_at": "2027-01-15T07:59:00Z", "name": "Ada"}
    jobs = [(job.uuid, job.priority.value) for job in site.board.iterjobs()]
    assert jobs == [(live.uuid, "HIGH"), (uuid, "VERY_LOW")]


def test_repeated_backfill_submits_only_the_rest(site: ScheduleSite) -> None:
    site.add()
    backfill = site.schedules.backfill("s", FIRST, limit=99)
    first = [next(backfill)[1] for _ in range(3)]
    backfill.close()  # type: ignore[attr-defined]
    rest = [uuid for _, uuid in site.schedules.backfill("s", FIRST, limit=99)]
    assert len({*first, *rest}) == 11 and len(rest) == 8
    assert list(site.schedules.backfill("s", FIRST, limit=99)) == []
    assert len(fired(site)) == 11


def test_time_that_is_fired_meanwhile_has_one_flow(site: ScheduleSite) -> None:
    """The schedule was due when the conductors stopped."""
    site.add(catch_up="all")
    site.now += 180
    backfill = site.schedules.backfill("s", START + 60, limit=99)
    assert next(backfill)[0] == START + 60
    site.fire()  # also of the times that the backfill has read as missed
    assert list(backfill) == []
    assert fired(site) == [60, 120, 180]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2])
def test_backfill_waits_while_the_limit_is_reached(site: ScheduleSite, limit: int) -> None:
    site.add()
    submitted: list[int] = []

    def work() -> None:
        submitted.extend(tick for tick, _ in site.schedules.backfill("s", FIRST, limit=limit))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for step in range(limit, 11, limit):
        until(lambda step=step: len(fired(site)) == step)  # type: ignore[misc]
        assert len(list(site.board.iterjobs())) == step
        end_flows(site)
    until(lambda: len(fired(site)) == 11)
    thread.join(60)
    assert submitted == [int(FIRST) + 60 * number for number in range(11)]


def test_unfinished_flow_of_an_interrupted_backfill_counts(site: ScheduleSite) -> None:
    site.add()
    next(site.schedules.backfill("s", FIRST, limit=2))
    backfill = site.schedules.backfill("s", FIRST, limit=2)
    next(backfill)
    thread = threading.Thread(target=lambda: list(backfill), daemon=True)
    thread.start()
    assert len(fired(site)) == 2
    while thread.is_alive():
        end_flows(site)
        thread.join(0.01)
    assert len(fired(site)) == 11


def test_second_process_cannot_backfill_at_the_same_time(site: ScheduleSite) -> None:
    site.add()
    first = site.schedules.backfill("s", FIRST, limit=99)
    next(first)
    with pytest.raises(exceptions.InvalidState, match="Another process backfills schedule 's'"):
        next(site.schedules.backfill("s", FIRST, limit=99))
    execute(site, "UPDATE wbe_duties SET until = 0")  # the first process died
    next(site.schedules.backfill("s", FIRST, limit=99))


@pytest.mark.slow
def test_killed_backfill_can_be_repeated_without_doubles(tmp_path: Path) -> None:
    url, number = f"sqlite:///{tmp_path}/flows.db", 1
    with backends.backend(url) as backend:
        ScheduleSite(backend).add(every=300)

    def backfill() -> None:
        with backends.backend(url) as backend:
            list(ScheduleSite(backend).schedules.backfill("s", FIRST, limit=99))

    while is_killed(number, backfill):
        number += 1
        with backends.backend(url) as backend:
            site = ScheduleSite(backend)
            execute(site, "UPDATE wbe_duties SET until = 0")
            jobs = {job.uuid for job in site.board.iterjobs()}
            with backend.get_connection() as connection:
                assert jobs == {row.uuid for row in connection.list_flows().flows}
    assert number > 3
    with backends.backend(url) as backend:
        site = ScheduleSite(backend)
        assert fired(site) == [-600, -300, 0]


def test_backfill_posts_jobs_on_its_board(site: ScheduleSite) -> None:
    site.add()
    with backends.backend(site.backend.options.url.render_as_string()) as other:
        board = impl_sql.SQLJobBoard("other", persistence=other)
        board.connect()
        with pytest.raises(ValueError, match="limit"):
            next(site.schedules.backfill("s", FIRST, limit=0))
        assert len(list(site.schedules.backfill("s", FIRST, limit=99, board=board))) == 11
        assert len(list(board.iterjobs())) == 11


@places.durable_dialects
def test_databases_backfill_and_fire_each_time_once(backend: Any) -> None:
    """The transactions lock the row of the schedule; each database does this differently."""
    site, name = ScheduleSite(backend), models.new_uuid()
    site.schedules.add(
        Schedule(
            name=name, factory="tests.support.conducted:greeting", every=60, catch_up="all",
            overlap="allow", inputs={"name": "Ada"},
        )
    )  # fmt: skip
    site.now += 120
    backfill = site.schedules.backfill(name, FIRST, limit=99)
    ticks = [next(backfill)[0] for _ in range(11)]
    site.fire()
    assert list(backfill) == [] and list(site.schedules.missed(name, FIRST)) == []
    assert ticks == [int(FIRST) + 60 * number for number in range(11)]
    assert fired(site) == [*range(-600, 121, 60)]
    site.schedules.remove(name)
