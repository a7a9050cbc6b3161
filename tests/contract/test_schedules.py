"""Contract of schedules in all databases."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.contract import places
from tests.seams import stores
from tests.support import conducted, servers
from tests.support.schedule_site import GREETING, START, ScheduleSite
from tests.support.threads import call_in_threads
from tests.support.waiting import until
from wbengine import exceptions, states
from wbengine.conductors import backends as conductors
from wbengine.conductors import service
from wbengine.persistence import backends, models
from wbengine.schedules import Schedule, Schedules
from wbengine.schedules._service import ScheduleService

KINDS = stores.DURABLE
#: Mark of tests for a database in memory, which has one connection, and for variants, too.
everywhere = pytest.mark.parametrize(
    "conf", (*KINDS, "memory", "dir", "mysql"), indirect=True, scope="module"
)

PLAIN = "tests.support.conducted:plain"


@functools.cache
def ticks_by_flow(name: str) -> dict[str, int]:
    """Return the ticks of two hours, in seconds from the start, by the uuid of their flows."""
    schedule = Schedule(name=name, factory="f", every=1)
    return {schedule.flow_id(int(START) + tick): tick for tick in range(7200)}


class Site(ScheduleSite):
    """Site whose flows are listed by their schedules."""

    def fired(self, name: str = "s") -> list[int]:
        """Return the fired times, in seconds from the start, of the stored flows."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            rows = connection.list_flows(tags={"schedule": name}, limit=500).flows
        ticks = ticks_by_flow(name)
        return sorted(ticks[row.uuid] for row in rows)

    def end_flows(self) -> None:
        """Run all submitted flows."""
        while self.board.job_count:
            conductor = conductors.fetch("blocking", "c", self.board, persistence=self.backend)
            conductor.run(max_dispatches=1)

    def execute(self, statement: str, **values: Any) -> None:
        with self.backend.engine.begin() as connection:
            connection.execute(sa.text(statement), values)


@pytest.fixture(scope="module", params=KINDS)
def conf(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_servers: servers.Databases,
) -> Iterator[dict[str, Any]]:
    kind: str = request.param
    if kind == "memory":
        yield {"connection": "sqlite://"}
        return
    with places.place(kind, tmp_path_factory.mktemp("schedules"), database_servers) as options:
        yield dict(options)


@pytest.fixture
def site(conf: dict[str, Any]) -> Iterator[Site]:
    with backends.backend(conf) as backend:
        site = Site(backend)
        yield site
        for table in ("wbe_schedules", "wbe_jobs", "wbe_logbooks"):
            site.execute(f"DELETE FROM {table}")


@pytest.fixture
def another(conf: dict[str, Any], site: Site) -> Iterator[Site]:
    """Another process with the same database (in memory there is only one)."""
    if conf == {"connection": "sqlite://"}:
        yield Site(site.backend)
        return
    with backends.backend(conf) as backend:
        yield Site(backend)


# Storage.


@everywhere
def test_added_schedule_is_stored_until_removed(site: Site, another: Site) -> None:
    site.add("b", every=90, jitter=5, tags={"team": "π"}, priority="HIGH", catch_up="all")
    site.add("a")
    assert [entry.name for entry in another.schedules.all()] == ["a", "b"]
    entry = another.schedules.get("b")
    assert entry == site.schedules.get("b")
    assert entry.schedule.inputs == {"name": "Ada"} and entry.schedule.tags == {"team": "π"}
    assert entry.next_tick == START + 90 and START + 90 <= entry.due < START + 95
    assert not entry.paused and entry.last_flow is entry.wanted is entry.trouble is None
    site.schedules.remove("b")
    for what in (another.schedules.get, another.schedules.remove, another.schedules.pause,
                 another.schedules.resume, another.schedules.run):  # fmt: skip
        with pytest.raises(exceptions.NotFound, match="Unknown schedule 'b'"):
            what("b")


def test_schedule_with_unusable_flow_is_rejected(site: Site) -> None:
    with pytest.raises(ValueError, match="cannot be imported"):
        site.add(factory="tests.support.conducted:nothing")
    with pytest.raises(exceptions.MissingDependencies, match="name"):
        site.add(inputs={})
    assert site.schedules.all() == []


def test_duplicate_schedule_name_is_rejected_unless_replaced(site: Site, another: Site) -> None:
    site.add(every=60)
    with pytest.raises(exceptions.Duplicate, match="Schedule 's' already exists"):
        another.add(every=60)
    site.now += 100
    changed = Schedule(name="s", factory=GREETING, every=60, inputs={"name": "Bob"})
    assert site.schedules.add(changed, replace=True).next_tick == START + 60  # it is due
    other_times = Schedule(name="s", factory=GREETING, every=61, inputs={"name": "Bob"})
    assert site.schedules.declare(other_times).next_tick > site.now


@everywhere
def test_concurrent_declarations_create_one_schedule(conf: dict[str, Any], site: Site) -> None:
    if conf == {"connection": "sqlite://"}:
        pytest.skip("there is one program")
    schedule = Schedule(name="s", factory=GREETING, every=60)
    begin = threading.Barrier(4)

    def declare(_: int) -> None:
        with backends.backend(conf) as backend:
            begin.wait()
            Schedules(backend).declare(schedule)

    call_in_threads(declare, range(4))
    assert [entry.schedule for entry in site.schedules.all()] == [schedule]


# Firing.


def test_schedule_is_fired_when_due(site: Site) -> None:
    site.add(tags={"team": "billing"}, priority="LOW", undo_until="2d")
    assert site.service.fire_due() == site.service.POLL_SECONDS
    site.now += 57
    assert site.service.fire_due() == 3
    assert site.fired() == []
    site.now += 3.5
    site.fire()
    assert site.fired() == [60]
    entry = site.schedules.get("s")
    assert (entry.last_tick, entry.next_tick) == (START + 60, START + 120)
    [job] = site.board.iterjobs()
    assert job.uuid == entry.last_flow and job.priority.value == "LOW"
    site.end_flows()
    with contextlib.closing(site.backend.get_connection()) as connection:
        flow = connection.get_flow_details(str(entry.last_flow))
        [row] = connection.list_flows(tags={"schedule": "s", "team": "billing"}).flows
    assert row.uuid == flow.uuid and flow.state == states.SUCCESS
    assert flow.meta[models.UNDO_UNTIL] == 2 * 86_400.0
    values: dict[str, Any] = {}
    for atom in flow:
        values |= atom.results if isinstance(atom.results, dict) else {}
    assert values["scheduled_at"] == "2027-01-15T08:01:00Z" and values["name"] == "Ada"


@pytest.mark.parametrize(("catch_up", "fired"), [("skip", []), ("one", [600]), ("all", None)])
def test_missed_times_are_handled_by_catch_up_policy(
    site: Site, catch_up: str, fired: list[int] | None
) -> None:
    site.add(catch_up=catch_up)
    site.now += 600
    site.now += 61
    site.fire()
    every = [*range(60, 661, 60)]
    assert site.fired() == (every if fired is None else [660])
    site.now = START + 3600 + 59
    site.schedules.declare(Schedule(name="t", factory=GREETING, every=120, catch_up=catch_up,
                                    inputs={"name": "x"}))  # fmt: skip
    site.now = START + 3600 + 120 + 119.5
    site.fire()
    assert site.fired("t") == ([] if catch_up == "skip" else [3720])


@everywhere
def test_each_time_is_fired_once_by_many_programs(conf: dict[str, Any], site: Site) -> None:
    site.add(catch_up="all")
    site.add("one")
    sites = [site]
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            backend: Any = site.backend
            if conf != {"connection": "sqlite://"}:
                backend = stack.enter_context(backends.backend(conf))
            sites.append(Site(backend))
        for moment in (61, 121, 600):
            begin = threading.Barrier(len(sites))

            def look(each: Site, moment: int = moment, begin: Any = begin) -> None:
                each.now = START + moment
                begin.wait()
                each.fire()

            call_in_threads(look, sites)
    assert site.fired() == [*range(60, 601, 60)]
    assert site.fired("one") == [60, 120, 600]
    assert site.board.job_count == 13


@everywhere
def test_firing_is_one_transaction(
    site: Site, another: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies within it has no effect."""
    site.add(catch_up="all")
    site.now += 60

    def fail(*args: Any, **kwargs: Any) -> None:
        raise exceptions.StorageFailure("the host dies")

    with monkeypatch.context() as patch:
        patch.setattr(site.board, "_insert", fail)  # the job is written last
        site.service.fire_due()
    assert site.fired() == [] and site.board.job_count == 0
    entry = site.schedules.get("s")
    assert entry.next_tick == START + 60 and "the host dies" in str(entry.trouble)
    another.now = site.now
    another.fire()
    assert site.fired() == [60] and site.board.job_count == 1


def test_changed_clock_fires_no_time_twice(site: Site) -> None:
    site.add(catch_up="all")
    chance = random.Random(5)
    latest = 0.0
    for _ in range(12):
        site.now = START + chance.uniform(0, 900)
        latest = max(latest, site.now - START)
        site.fire()
        assert site.fired() == [*range(60, int(latest) + 1, 60)]
    assert site.board.job_count == len(site.fired())


def test_restored_schedule_fires_no_time_again(site: Site) -> None:
    """As after a restore of its table."""
    site.add(catch_up="all")
    site.now += 200
    site.fire()
    site.execute("UPDATE wbe_schedules SET next_tick = :tick, due = :tick", tick=int(START) + 60)
    site.end_flows()
    site.fire()
    assert site.fired() == [60, 120, 180] and site.board.job_count == 0
    assert site.schedules.get("s").next_tick == START + 240


@pytest.mark.parametrize("change", ["pause", "replace", "remove"])
def test_outdated_schedule_fires_nothing(site: Site, change: str) -> None:
    site.add(catch_up="all")
    site.now += 60
    [(_, [before])] = site.schedules.due(0)
    if change == "pause":
        site.schedules.pause("s")
    elif change == "remove":
        site.schedules.remove("s")
    else:
        news = Schedule(name="s", factory=PLAIN, every=60, overlap="allow")
        site.schedules.declare(news)
    site.service._handle(before, site.now)
    assert site.fired() == [] and site.board.job_count == 0


# Overlap policies.


@pytest.mark.parametrize(
    ("overlap", "meanwhile", "afterwards"),
    [
        ("skip", [60], [60, 240]),
        ("queue", [60], [60, 120, 180, 240]),
        ("cancel", [60], [60, 120, 180, 240]),
        ("allow", [60, 120, 180], [60, 120, 180, 240]),
    ],
)
def test_unfinished_flow_is_handled_by_overlap_policy(
    site: Site, overlap: str, meanwhile: list[int], afterwards: list[int]
) -> None:
    site.add(overlap=overlap, catch_up="all")
    for moment in (60, 120, 180):
        site.now = START + moment
        site.fire()
    assert site.fired() == meanwhile
    site.end_flows()
    for _ in range(4):
        site.now = START + 240
        site.fire()
        site.end_flows()
    assert site.fired() == afterwards
    with contextlib.closing(site.backend.get_connection()) as connection:
        states_by_flow = {row.uuid: row.state for row in connection.list_flows().flows}
    first = states_by_flow[Schedule(name="s", factory="f", every=60).flow_id(int(START) + 60)]
    assert first == (states.REVERTED if overlap == "cancel" else states.SUCCESS)


def test_trashed_flow_does_not_delay_queued_firing(site: Site) -> None:
    site.add(overlap="queue")
    site.now += 60
    site.fire()
    [job] = site.board.iterjobs()
    site.board.claim(job, "me")
    site.now += 60
    assert site.service.fire_due() == site.service.BUSY_POLL_SECONDS
    site.board.trash(job, "me")
    site.fire()
    assert site.fired() == [60, 120]


# Pausing, manual runs and errors.


def test_paused_schedule_fires_nothing_and_does_not_catch_up(site: Site) -> None:
    site.add(catch_up="all")
    site.schedules.pause("s")
    site.schedules.pause("s")
    site.now += 330
    site.fire()
    assert site.fired() == []
    site.schedules.resume("s")
    site.schedules.resume("s")
    site.fire()
    site.now += 30
    site.fire()
    assert site.fired() == [360]


@pytest.mark.parametrize(
    ("catch_up", "fired"), [("skip", []), ("one", [240]), ("all", [60, 120, 180, 240])]
)
def test_times_due_before_a_pause_are_due_after_it(
    site: Site, catch_up: str, fired: list[int]
) -> None:
    site.add(catch_up=catch_up)
    site.now += 250
    site.schedules.pause("s")
    site.now += 400
    site.schedules.resume("s")
    site.fire()
    assert site.fired() == fired
    site.now += 20
    site.fire()
    assert site.fired() == [*fired, 660]


def test_times_of_a_pause_of_release_0_1_are_left_out(site: Site) -> None:
    """That release does not store when a pause begins."""
    site.add(catch_up="all")
    site.execute("UPDATE wbe_schedules SET paused = 1")
    site.now += 150
    site.schedules.resume("s")
    site.now += 60
    site.fire()
    assert site.fired() == [180]


@everywhere
def test_times_between_two_pauses_are_due_after_them(site: Site) -> None:
    site.add(catch_up="all")
    site.add("one", catch_up="one")
    for moment in (130, 310):  # Pauses from 130 to 250 and from 310 to 430.
        for name in ("s", "one"):
            site.now = START + moment
            site.schedules.pause(name)
            site.now += 120
            site.schedules.resume(name)
    site.fire()
    assert (site.fired(), site.fired("one")) == ([60, 120, 300], [300])
    assert site.schedules.get("s").next_tick == START + 480


def test_time_with_delay_is_due_after_a_pause_within_the_delay(site: Site) -> None:
    site.add(jitter=60)
    due = site.schedules.get("s").due
    assert due > START + 65
    site.now = START + 62
    site.schedules.pause("s")
    site.now = START + 64
    site.schedules.resume("s")
    assert site.schedules.get("s").due == due


@everywhere
def test_manual_run_submits_one_flow(site: Site, another: Site) -> None:
    """This includes a paused schedule."""
    site.add(overlap="skip")
    site.schedules.pause("s")
    uuid = site.schedules.run("s")
    assert another.schedules.run("s") == uuid
    another.fire()
    site.fire()
    [job] = site.board.iterjobs()
    assert job.uuid == uuid
    entry = site.schedules.get("s")
    assert (entry.wanted, entry.last_flow, entry.next_tick) == (None, None, START + 60)
    assert site.schedules.run("s") != uuid


def test_schedule_that_fails_here_is_fired_by_another_process(
    site: Site, another: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.add(factory=PLAIN, inputs={"folder": str(tmp_path), "mark": "m"}, name="broken")
    site.add("fine")
    site.now += 60
    another.now = site.now
    with monkeypatch.context() as patch:
        patch.delattr(conducted, "plain")
        site.fire()
        assert site.fired("broken") == [] and site.fired("fine") == [60]
        trouble = site.schedules.get("broken").trouble
        assert trouble is not None and "tests.support.conducted:plain" in trouble
    assert site.service.fire_due() > 0 and site.fired("broken") == []  # not retried for a while
    another.fire()
    assert site.fired("broken") == [60] and site.schedules.get("broken").trouble is None


@pytest.mark.parametrize(
    "error",
    [SystemExit, KeyboardInterrupt, asyncio.CancelledError,
     exceptions.StorageFailure, exceptions.JobFailure],
)  # fmt: skip
def test_error_of_a_factory_is_recorded_as_trouble_and_others_are_fired(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    site.add(factory=PLAIN, inputs={"folder": "x", "mark": "m"}, name="a")
    site.add("b")
    site.now += 60

    def leave() -> None:
        raise error("enough")

    monkeypatch.setattr(conducted, "plain", leave)
    site.fire()
    assert site.fired("b") == [60] and site.fired("a") == []
    assert site.schedules.get("a").trouble == f"{error.__name__}: enough"


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (f'{{"factory": "{GREETING}", "every": 60, "colour": 5}}', "unknown option 'colour'"),
        (f'{{"factory": "{GREETING}", "cron": "* * * * *", "time_zone": "A/B"}}', "time_zone"),
        ('{"every": [1], "inputs": 7, "factory": "f"}', "whole number"),
        ("{", "Expecting"),
        ("[]", "list"),
    ],
)
def test_unreadable_schedule_is_reported_and_others_are_fired(
    site: Site, another: Site, definition: str, message: str
) -> None:
    site.add("a")
    site.add("b")
    site.execute("UPDATE wbe_schedules SET definition = :text WHERE name = 'a'", text=definition)
    site.now += 60
    site.fire()
    assert site.fired("b") == [60] and site.fired("a") == []
    a, b = site.schedules.all()
    assert a.name == "a" and message in str(a.trouble)
    assert "cannot be read on this host" in str(a.trouble)
    assert message in str(a.last_error) and b.trouble is None  # visible to other processes
    assert a.to_dict()["trouble"] == a.trouble and a.to_dict()["next"] is None
    site.schedules.pause("a")
    with pytest.raises(exceptions.InvalidFormat, match="Schedule 'a' cannot be read on this host"):
        site.schedules.resume("a")
    again = Schedule(name="a", factory=GREETING, every=60, inputs={"name": "Ada"}, overlap="allow")
    site.schedules.declare(again)
    site.schedules.resume("a")
    another.now = site.now = site.now + 60
    another.fire()
    assert site.fired("a") == [120] and site.schedules.get("a").trouble is None


@pytest.mark.parametrize(
    ("overlap", "fired"), [("skip", [60]), ("queue", [60]), ("cancel", [60]), ("allow", [60, 120])]
)
def test_manually_run_flow_does_not_count_as_overlap(
    site: Site, overlap: str, fired: list[int]
) -> None:
    site.add(overlap=overlap)
    site.now += 60
    site.fire()
    first = site.schedules.get("s").last_flow
    by_hand = site.schedules.run("s")
    site.fire()
    assert site.schedules.get("s").last_flow == first
    site.execute("UPDATE wbe_flowdetails SET state = 'SUCCESS' WHERE uuid = :uuid", uuid=by_hand)
    site.now += 60
    site.fire()
    with contextlib.closing(site.backend.get_connection()) as connection:
        rows = connection.list_flows(tags={"schedule": "s"}).flows
    assert len(rows) == 1 + len(fired)


def declare_many(site: Site, count: int) -> None:
    for number in range(count):
        site.schedules.declare(
            Schedule(name=f"m{number:03}", factory=GREETING, every=3600, inputs={"name": "x"})
        )


def test_fire_due_stops_between_schedules_on_request(site: Site) -> None:
    declare_many(site, 12)
    site.now += 3600
    site.service.fire_due(lambda: site.board.job_count == 5)
    assert site.board.job_count == 5
    site.fire()
    assert site.board.job_count == 12


def test_slow_factory_does_not_delay_other_schedules(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fired once its flow is created, and not polled until then."""
    conducted.GATES["factory"], conducted.BEGUN["factory"] = threading.Event(), threading.Event()
    monkeypatch.setattr(ScheduleService, "SLOW_SECONDS", 0.2)
    given = {"folder": "x", "mark": "x"}
    slow = "tests.support.conducted:slowly_made"
    site.schedules.declare(
        Schedule(name="a", factory=slow, every=60, inputs=given, overlap="allow")
    )
    site.add(overlap="allow")
    site.now += 60
    try:
        until(lambda: site.service.fire_due() >= 0 and site.fired() == [60])
        assert conducted.BEGUN["factory"].is_set()
        assert site.fired("a") == []
        until(lambda: site.service.fire_due() == site.service.BUSY_POLL_SECONDS)
    finally:
        conducted.GATES.pop("factory").set()
    until(lambda: site.board.job_count == 2)
    assert site.fired("a") == [60]
    site.now += 60
    until(lambda: site.service.fire_due() > site.service.BUSY_POLL_SECONDS)
    assert site.fired("a") == site.fired() == [60, 120]


@pytest.mark.slow
def test_manual_run_is_fired_before_due_schedules(site: Site) -> None:
    """This includes a request while many schedules are being fired."""
    site.add(every=7200)
    declare_many(site, 105)
    site.now += 3600
    uuids: list[str] = []

    def is_ended() -> bool:
        count = site.board.job_count
        if count == 50:
            uuids.append(site.schedules.run("s"))
        return count == 102

    site.service.fire_due(is_ended)
    assert uuids[0] in [job.uuid for job in site.board.iterjobs()]
    assert site.board.job_count == 102


def test_unreadable_schedules_do_not_delay_others(site: Site) -> None:
    """There are more of them than one query returns."""
    declare_many(site, 130)
    site.execute("UPDATE wbe_schedules SET definition = '{'")
    site.add(every=3600)
    site.now += 3600
    site.execute("UPDATE wbe_schedules SET due = :due WHERE name = 's'", due=site.now - 1)
    site.fire()
    assert site.fired() == [3600]


def test_declaring_same_nan_input_again_does_not_change_revision(site: Site) -> None:
    schedule = Schedule(name="s", factory=GREETING, every=60, inputs={"name": float("nan")})
    before = site.schedules.declare(schedule)
    assert site.schedules.declare(schedule).revision == before.revision


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_service_with_dead_thread_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = threading.Event()

    def fire_due(*args: Any) -> float:
        died.wait()
        raise GeneratorExit

    monkeypatch.setattr(ScheduleService, "fire_due", fire_due)
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        conductor = service.ConductorService(backend)
        with conducted.running(conductor), contextlib.ExitStack() as stack:
            stack.callback(died.set)
            until(lambda: conductor.responds(1) and conductor.trouble is None)
            died.set()
            until(lambda: conductor.trouble == "thread wbengine-schedules has ended")
