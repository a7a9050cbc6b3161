"""Ticks of schedules, compared with an oracle that checks each minute of the wall clock."""

from __future__ import annotations

import contextlib
import functools
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import cronsim
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wbengine.schedules import _cron_fields, _ticks
from wbengine.schedules._ticks import Schedule, Step

#: Zone -> days on which its clock moves forward and back: by an hour at night, by half an hour or
#: at midnight.  The last two zones have no such days.
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
    """Return the values of a field such as '*', '*/5', '3', '1-4' or '1,4'."""
    if text.startswith("*"):
        step = int(text.partition("/")[2] or 1)
        return frozenset(range(first, last + 1, step))
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return frozenset(found)


def fits(cron: str, local: datetime) -> bool:
    """Return True if the cron expression matches a time of the wall clock."""
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
    """Return the ticks after `begin` until `end`.

    A time with a star for its minute or hour occurs whenever the wall clock shows it.  Other times
    occur once a day: at the first occurrence, or after the clock has skipped them.
    """
    found = set()
    if has_star(cron):
        moment = datetime.fromtimestamp(int(begin) // 60 * 60, UTC)
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
    there = naive.replace(tzinfo=zone).astimezone(UTC).astimezone(zone)
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
    """Yield the ticks, each computed from the previous one."""
    tick = schedule.after(begin)
    while tick <= end:
        yield tick
        tick = schedule.after(tick)


@pytest.mark.slow
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
def test_cron_ticks_match_wall_clock_oracle(cron: str, zone: str, which: int, offset: int) -> None:
    """The start may be within the repeated hour."""
    known = zoneinfo.ZoneInfo(zone)
    day = ZONES[zone][which].replace(tzinfo=known)
    begin = day.timestamp() - 21_600 + offset
    end = begin + 100_000
    expected = oracle(cron, known, begin, end)
    schedule = Schedule(name="s", factory="f", cron=cron, time_zone=zone)
    assert expected == list(until(schedule, begin, end))


@given(every=st.integers(1, 10_000), begin=st.integers(0, 2**33), part=st.floats(0, 0.999))
def test_interval_ticks_are_multiples_of_interval(every: int, begin: int, part: float) -> None:
    schedule = Schedule(name="s", factory="f", every=every)
    tick = schedule.after(begin + part)
    assert tick % every == 0 and begin + part < tick <= begin + part + every
    assert schedule.after(tick) == tick + every


# Steps. -------------------------------------------------------------------------------------------

policies = st.one_of(
    st.tuples(st.sampled_from(["one", "all"]), st.sampled_from(["queue", "cancel"])),
    st.tuples(st.sampled_from(["skip", "one", "all"]), st.sampled_from(["skip", "allow"])),
)


def expected_step(schedule: Schedule, tick: int, now: float, busy: bool) -> Step | None:
    """Return the step, computed from the list of all ticks."""
    all_ticks = list(until(schedule, tick - 1, now + 4000))
    due = [each for each in all_ticks if schedule.due(each) <= now]
    if tick not in due:
        return None
    chosen = tick if schedule.catch_up == "all" else due[-1]
    then = all_ticks[all_ticks.index(chosen) + 1]
    late = now - schedule.due(chosen) > _ticks.GRACE_SECONDS
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
def test_steps_follow_catch_up_and_overlap_policies(
    policy: tuple[str, str],
    times: dict[str, Any],
    jitter: float,
    moves: list[tuple[float, bool]],
) -> None:
    """The clock advances, jumps and is set back while flows end or continue."""
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
    assert fired == sorted(set(fired))  # no tick fires twice


def test_jitter_depends_only_on_name_and_tick() -> None:
    one, two = (Schedule(name="s", factory=factory, every=60, jitter=30) for factory in ("f", "g"))
    delays = [one.due(tick) - tick for tick in range(0, 60_000, 60)]
    assert delays == [two.due(tick) - tick for tick in range(0, 60_000, 60)]
    assert 0 <= min(delays) < 1 and 29 < max(delays) < 30
    assert one.flow_id(60) == two.flow_id(60) != one.flow_id(120)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "must have either cron or every"),
        ({"cron": "* * * * *", "every": 5}, "must have either cron or every"),
        ({"every": 0}, "every must be a whole number of 1 or more, got 0"),
        ({"every": 0.5}, "every must be a whole number of 1 or more, got 0.5"),
        ({"cron": "61 * * * *"}, "cron must be .*got '61 .*the minute must be 0 to 59, got '61'"),
        ({"cron": "0 22-4 * * *"}, "range of the hour .* got '22-4': write 22-23,0-4"),
        ({"cron": "0 0 * * fri-MON"}, "range of the day of the week .*: write fri-7,0-MON"),
        ({"cron": "*/100 * * * *"}, r"step of the minute in '\*/100' must be 1 to 60"),
        ({"cron": "50/20 * * * *"}, "step of the minute in '50/20' must be 1 to 10"),
        ({"cron": "0 0 * * 7/2"}, "step of the day of the week in '7/2' must be 1 to 1"),
        ({"cron": "0 9-17/10 * * *"}, "step of the hour in '9-17/10' must be 1 to 9"),
        ({"cron": "0 */0 * * *"}, "step of the hour"),
        ({"cron": "0 0 L/2 * *"}, "values of the day of the month must be 1 to 31, got 'L'"),
        ({"cron": "0 0 * * MONDAY"}, "must be 0 to 7 or SUN to SAT, got 'MONDAY'"),
        ({"cron": "0 0 ? * *"}, r"day of the month must be 1 to 31, got '\?'"),
        ({"cron": "0,, 0 * * *"}, "values of the minute must be 0 to 59, got ''"),
        ({"cron": "@reboot"}, "five fields, or be one of @yearly, @annually, @monthly"),
        ({"cron": "@every 5m"}, "five fields, or be one of"),
        ({"cron": "* * * *"}, "five fields"),
        ({"cron": "* * * * * *"}, "five fields"),
        ({"cron": "0 0 31 4 *"}, "cron must match a date"),
        (
            {"cron": "0 0 * * *", "time_zone": "Mars/Olympus"},
            "time_zone must be .* got 'Mars/Olympus'",
        ),
        ({"cron": "0 0 * * *", "time_zone": "Europe/Berln"}, "did you mean 'Europe/Berlin'"),
        ({"cron": "0 0 * * *", "time_zone": "../etc"}, "got '../etc'"),
        ({"every": 5, "jitter": -1}, "jitter must be a number of 0 or more, got -1"),
        ({"every": 3650 * 86_400 + 1}, "every must be at most 315360000 seconds .ten years"),
        ({"every": 10**25}, "every must be at most 315360000 seconds"),
        ({"every": 5, "jitter": 6}, "jitter must be at most 5 seconds"),
        ({"cron": "*/5 * * * *", "jitter": 301}, "jitter must be at most 300 seconds"),
        ({"every": 5, "time_zone": "Europe/Berlin"}, "time_zone can be used only with cron"),
        ({"cron": "0 0 * * *", "time_zone": None}, "time_zone must be a non-empty string"),
        ({"every": 5, "inputs": {"scheduled_at": 1}}, "must not contain 'scheduled_at'"),
        ({"every": 5, "catch_up": "some"}, "catch_up must be one of skip, one, all"),
        ({"every": 5, "overlap": "alow"}, "overlap must be one of .*did you mean 'allow'"),
        ({"every": 5, "overlap": "queue", "catch_up": "skip"}, "catch_up must be 'one' or 'all'"),
        ({"every": 5, "priority": "urgent"}, "priority must be one of .* got 'urgent'"),
        ({"every": 5, "tags": {"a b": "c"}}, "key of a tag .* got 'a b'"),
        ({"every": 5, "tags": ["a"]}, "tags must be a dict of str"),
        ({"every": 5, "inputs": ["a"]}, "inputs must be a dict with str keys"),
        ({"every": 5, "name": " a"}, "single spaces"),
        ({"every": 5, "name": "x" * 256}, "at most 255 characters, got 256"),
        ({"every": 5, "factory": "x" * 256}, "at most 255 characters, got 256"),
        ({"every": 5, "factory": ""}, "factory must be a non-empty string"),
    ],
)
def test_invalid_schedule_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schedule(**{"name": "s", "factory": "f", **options})


def test_longest_interval_and_jitter_are_accepted() -> None:
    schedule = Schedule(name="s", factory="f", every=3650 * 86_400, jitter=3650 * 86_400)
    assert _ticks.iso(schedule.after(4e9)) == "2099-11-30T00:00:00Z"


@pytest.mark.parametrize(
    ("nickname", "fields"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        (" @Midnight ", "0 0 * * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 JAN *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_nickname_has_the_ticks_of_its_fields(nickname: str, fields: str) -> None:
    one, two = (
        Schedule(name="s", factory="f", cron=cron, time_zone="Europe/Berlin")
        for cron in (nickname, fields)
    )
    assert [one.after(time) for time in (0, 1e9, 2e9)] == [
        two.after(time) for time in (0, 1e9, 2e9)
    ]
    assert one.to_dict()["cron"] == nickname


#: Texts that may be a part of a field.
terms = st.one_of(
    st.from_regex(r"\A[0-9*LW#/,\-]{1,6}\Z"),
    st.from_regex(r"\A(\*|[0-9]{1,2}|SUN|sat|JAN)(-([0-9]{1,2}|MON))?(/[0-9]{1,3})?\Z"),
)


@given(st.integers(0, 4), terms)
def test_field_that_passes_the_check_is_read_by_the_iterator(place: int, term: str) -> None:
    fields = ["*"] * 5
    fields[place] = term
    with contextlib.suppress(ValueError):
        cronsim.CronSim(_cron_fields.expand(" ".join(fields)), datetime(2000, 1, 1))


def test_schedule_survives_conversion_to_dict_and_back() -> None:
    schedule = Schedule(
        name="s", factory="f", cron="0 0 * * *", jitter=3, inputs={"a": 1}, overlap="allow"
    )
    assert Schedule.from_dict("s", schedule.to_dict()) == schedule
    assert schedule.to_dict().keys() == {"factory", "cron", "jitter", "inputs", "overlap"}
    with pytest.raises(ValueError, match=r"'s': unknown option 'crn'.*did you mean 'cron'"):
        Schedule.from_dict("s", {"crn": "* * * * *"})
