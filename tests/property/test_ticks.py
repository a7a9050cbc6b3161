"""Ticks of schedules, against an oracle that looks at every minute of the wall clock."""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wbengine.schedules import ticks
from wbengine.schedules.ticks import Schedule, Step

#: Zones, and days about which their clocks are set, forward and back: by an hour at night, by half
#: an hour, at midnight; and some that are not.
ZONES = {
    "Europe/Berlin": (datetime(2026, 3, 29), datetime(2026, 10, 25)),
    "America/New_York": (datetime(2026, 3, 8), datetime(2026, 11, 1)),
    "Australia/Lord_Howe": (datetime(2026, 10, 4), datetime(2026, 4, 5)),
    "America/Havana": (datetime(2026, 3, 8), datetime(2026, 11, 1)),
    "Asia/Kolkata": (datetime(2026, 2, 28), datetime(2026, 12, 31)),
    "UTC": (datetime(2028, 2, 28), datetime(2026, 12, 31)),
}
MINUTE = timedelta(minutes=1)


@functools.lru_cache
def values(text: str, first: int, last: int) -> frozenset[int]:
    """What a field means: '*', '*/5', '3', '1-4', '1,4'."""
    if text.startswith("*"):
        step = int(text.partition("/")[2] or 1)
        return frozenset(range(first, last + 1, step))
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return frozenset(found)


def fits(cron: str, local: datetime) -> bool:
    """Whether a time of the wall clock is meant."""
    minute, hour, day, month, weekday = cron.split()
    on_day = local.day in values(day, 1, 31)
    on_weekday = local.isoweekday() % 7 in {each % 7 for each in values(weekday, 0, 7)}
    either = not (day.startswith("*") or weekday.startswith("*"))
    return (
        local.minute in values(minute, 0, 59)
        and local.hour in values(hour, 0, 23)
        and local.month in values(month, 1, 12)
        and (on_day or on_weekday if either else on_day and on_weekday)
    )


def oracle(cron: str, zone: zoneinfo.ZoneInfo, begin: float, end: float) -> list[int]:
    """The ticks later than `begin`, until `end`.

    Times with a star for their minute or hour come as often as the wall clock shows them; others
    once a day: the first time they are shown, or when the clock has jumped over them.
    """
    found = set()
    if has_star(cron):
        moment = datetime.fromtimestamp(int(begin) // 60 * 60, timezone.utc)
        while moment.timestamp() <= end:
            if fits(cron, moment.astimezone(zone)):
                found.add(int(moment.timestamp()))
            moment += MINUTE
    else:
        shown = datetime.fromtimestamp(begin, zone).replace(tzinfo=None, second=0)
        naive = shown - timedelta(hours=3)
        stop = datetime.fromtimestamp(end, zone).replace(tzinfo=None) + timedelta(hours=3)
        while naive < stop:
            if fits(cron, naive):
                shown = naive
                while not exists(shown, zone):
                    shown += MINUTE
                found.add(int(shown.replace(tzinfo=zone, fold=0).timestamp()))
            naive += MINUTE
    return sorted(tick for tick in found if begin < tick <= end)


def has_star(cron: str) -> bool:
    minute, hour, *_ = cron.split()
    return minute.startswith("*") or hour.startswith("*")


def exists(naive: datetime, zone: zoneinfo.ZoneInfo) -> bool:
    there = naive.replace(tzinfo=zone).astimezone(timezone.utc).astimezone(zone)
    return there.replace(tzinfo=None) == naive


def field(first: int, last: int) -> st.SearchStrategy[str]:
    one = st.integers(first, last)
    ranges = st.tuples(one, one).map(lambda pair: f"{min(pair)}-{max(pair)}")
    lists = st.lists(one, min_size=1, max_size=3).map(lambda many: ",".join(map(str, many)))
    steps = st.integers(1, last).map(lambda step: f"*/{step}")
    return st.one_of(st.just("*"), lists, ranges, steps)


crons = st.tuples(
    field(0, 59), field(0, 5), st.one_of(st.just("*"), field(1, 31)), st.just("*"), field(0, 7)
).map(" ".join)


def until(schedule: Schedule, begin: float, end: float) -> Iterator[int]:
    """Its ticks, each asked for by the one before."""
    tick = schedule.after(begin)
    while tick <= end:
        yield tick
        tick = schedule.after(tick)


@given(
    cron=crons,
    zone=st.sampled_from(sorted(ZONES)),
    which=st.integers(0, 1),
    offset=st.integers(0, 50_000),
)
@example(cron="30 2 * * *", zone="Europe/Berlin", which=0, offset=0)
@example(cron="30 2 * * *", zone="Europe/Berlin", which=1, offset=0)
@example(cron="0 2,3 * * *", zone="Europe/Berlin", which=0, offset=0)
@example(cron="*/30 * * * *", zone="Europe/Berlin", which=1, offset=0)
@example(cron="15 0 * * *", zone="America/Havana", which=0, offset=0)
@example(cron="* 1 * * 0", zone="America/Havana", which=0, offset=0)
@example(cron="* */2 * * *", zone="Australia/Lord_Howe", which=1, offset=0)
@example(cron="* 0 * * 0", zone="America/Havana", which=0, offset=0)
@example(cron="* 0,1 * * 0", zone="America/Havana", which=0, offset=0)
@example(cron="45 1 * * *", zone="Australia/Lord_Howe", which=1, offset=50_000 - 3600)
def test_ticks_are_those_of_the_wall_clock(cron: str, zone: str, which: int, offset: int) -> None:
    """Wherever one begins to ask, be it within the hour that comes twice."""
    known = zoneinfo.ZoneInfo(zone)
    day = ZONES[zone][which].replace(tzinfo=known)
    begin = day.timestamp() - 21_600 + offset
    end = begin + 100_000
    expected = oracle(cron, known, begin, end)
    schedule = Schedule(name="s", factory="f", cron=cron, time_zone=zone)
    assert expected == list(until(schedule, begin, end))


@given(every=st.integers(1, 10_000), begin=st.integers(0, 2**33), part=st.floats(0, 0.999))
def test_intervals_tick_at_their_multiples(every: int, begin: int, part: float) -> None:
    schedule = Schedule(name="s", factory="f", every=every)
    tick = schedule.after(begin + part)
    assert tick % every == 0 and begin + part < tick <= begin + part + every
    assert schedule.after(tick) == tick + every


# What is done at a time. --------------------------------------------------------------------------

policies = st.one_of(
    st.tuples(st.sampled_from(["one", "all"]), st.sampled_from(["queue", "cancel"])),
    st.tuples(st.sampled_from(["skip", "one", "all"]), st.sampled_from(["skip", "allow"])),
)


def expected_step(schedule: Schedule, tick: int, now: float, busy: bool) -> Step | None:
    """By a look at all ticks there are."""
    all_ticks = list(until(schedule, tick - 1, now + 4000))
    due = [each for each in all_ticks if schedule.due(each) <= now]
    if tick not in due:
        return None
    chosen = tick if schedule.catch_up == "all" else due[-1]
    then = all_ticks[all_ticks.index(chosen) + 1]
    late = now - schedule.due(chosen) > ticks.GRACE
    if (late and schedule.catch_up == "skip") or (busy and schedule.overlap == "skip"):
        return Step(None, then)
    if busy and schedule.overlap in ("queue", "cancel"):
        return None
    return Step(chosen, then)


@given(
    policy=policies,
    times=st.sampled_from(
        [{"every": 7}, {"every": 90}, {"cron": "*/3 * * * *"}, {"cron": "5 * * * *"}]
    ),
    jitter=st.sampled_from([0.0, 5.0, 100.0]),
    moves=st.lists(
        st.tuples(st.floats(-300, 900, width=32), st.booleans()), min_size=1, max_size=12
    ),
)
def test_steps_are_those_of_the_policies(
    policy: tuple[str, str],
    times: dict[str, Any],
    jitter: float,
    moves: list[tuple[float, bool]],
) -> None:
    """The clock goes on, jumps, and is set back; flows end, and do not."""
    catch_up, overlap = policy
    jitter = min(jitter, times.get("every", jitter))
    schedule = Schedule(
        name="s", factory="f", catch_up=catch_up, overlap=overlap, jitter=jitter, **times
    )
    now = 1_790_000_000.0
    tick = schedule.after(now)
    fired: list[int] = []
    for seconds, busy in moves:
        now += seconds
        for _ in range(3):
            step = schedule.step(tick, now, busy=busy)
            assert step == expected_step(schedule, tick, now, busy)
            if step is None:
                break
            if step.tick is not None:
                fired.append(step.tick)
            assert step.next_tick > tick
            tick = step.next_tick
    assert fired == sorted(set(fired))  # none twice, whatever the clock does


def test_jitter_is_the_same_wherever_it_is_asked_for() -> None:
    one, two = (Schedule(name="s", factory=factory, every=60, jitter=30) for factory in ("f", "g"))
    delays = [one.due(tick) - tick for tick in range(0, 60_000, 60)]
    assert delays == [two.due(tick) - tick for tick in range(0, 60_000, 60)]
    assert 0 <= min(delays) < 1 and 29 < max(delays) < 30
    assert one.flow_id(60) == two.flow_id(60) != one.flow_id(120)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs cron= or every="),
        ({"cron": "* * * * *", "every": 5}, "needs cron= or every="),
        ({"every": 0}, "every=0 is no whole number"),
        ({"every": 0.5}, "every=0.5 is no whole number"),
        ({"cron": "61 * * * *"}, "cron='61 .*Bad minute"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "0 0 31 4 *"}, "Bad day-of-month"),
        ({"cron": "0 0 * * *", "time_zone": "Mars/Olympus"}, "time_zone='Mars/Olympus' is no zone"),
        ({"cron": "0 0 * * *", "time_zone": "../etc"}, "is no zone"),
        ({"every": 5, "jitter": -1}, "jitter=-1"),
        ({"every": 3650 * 86_400 + 1}, "every= is more than 315360000 seconds, which are ten"),
        ({"every": 10**25}, "every= is more than 315360000 seconds"),
        ({"every": 5, "jitter": 6}, "jitter=6 is more than the 5 seconds between two ticks"),
        ({"cron": "*/5 * * * *", "jitter": 301}, "jitter=301 is more than the 300 seconds"),
        ({"every": 5, "time_zone": "Europe/Berlin"}, "time_zone='Europe/Berlin' is for cron="),
        ({"cron": "0 0 * * *", "time_zone": None}, "Option time_zone=None is no text"),
        ({"every": 5, "inputs": {"scheduled_at": 1}}, "'scheduled_at' is the time of the tick"),
        ({"every": 5, "catch_up": "some"}, "catch_up is one of skip, one, all"),
        ({"every": 5, "overlap": "alow"}, "overlap is one of .*did you mean 'allow'"),
        ({"every": 5, "overlap": "queue", "catch_up": "skip"}, "take catch_up='one' or 'all'"),
        ({"every": 5, "priority": "urgent"}, "'urgent' is no priority"),
        ({"every": 5, "tags": {"a b": "c"}}, "tag 'a b'"),
        ({"every": 5, "tags": ["a"]}, "tags is a dict of texts"),
        ({"every": 5, "inputs": ["a"]}, "inputs are values by name"),
        ({"every": 5, "name": " a"}, "single blanks"),
        ({"every": 5, "name": "x" * 201}, "up to 200 characters"),
        ({"every": 5, "factory": ""}, "factory=''"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule(**{"name": "s", "factory": "f", **options})


def test_longest_interval_and_jitter() -> None:
    schedule = Schedule(name="s", factory="f", every=3650 * 86_400, jitter=3650 * 86_400)
    assert ticks.iso(schedule.after(4e9)) == "2099-11-30T00:00:00Z"


def test_what_is_kept_of_a_schedule_makes_it_again() -> None:
    schedule = Schedule(
        name="s", factory="f", cron="0 0 * * *", jitter=3, inputs={"a": 1}, overlap="allow"
    )
    assert Schedule.from_dict("s", schedule.to_dict()) == schedule
    assert schedule.to_dict().keys() == {"factory", "cron", "jitter", "inputs", "overlap"}
    with pytest.raises(ValueError, match=r"Schedule 's' has no option 'crn'.*did you mean 'cron'"):
        Schedule.from_dict("s", {"crn": "* * * * *"})
