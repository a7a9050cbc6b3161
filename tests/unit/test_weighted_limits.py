"""Limits whose tasks take several units of a rate: windows, order, corrections and values."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amounts import amount
from wbengine._limits import account_stores
from wbengine._limits.permit_renewer import Member, Membership, PermitRenewer
from wbengine._limits.permit_sharing import (
    HORIZON,
    MAX_COSTS,
    Account,
    Answer,
    Correction,
    PermitRequest,
)
from wbengine._tasks.limit_attributes import Quota
from wbengine._text import rates


def quota(rate: str, concurrency: int | None = None) -> Quota:
    return Quota(rate, rates.interval(rate), concurrency)


MINUTE = quota("600/m")


def settle(
    account: Account,
    now: float,
    costs: tuple[float, ...],
    flow: str = "a",
    *,
    held: int = 0,
    corrections: tuple[Correction, ...] = (),
    limit: Quota = MINUTE,
) -> Answer:
    request = PermitRequest(flow, 1, held, len(costs), 99.0, costs, corrections)
    return account.settle(limit, [request], now)


@pytest.fixture
def account() -> Account:
    return Account()


def membership_of(clock: Callable[[], float]) -> Membership:
    renewer = PermitRenewer(account_stores.MemoryStore(), clock)
    return Membership(renewer, "l", MINUTE, Member("a"), lambda: None)


def test_next_permit_has_distance_of_cost(account: Account) -> None:
    assert settle(account, 100.0, (3.0, 4.0, 50.0)).permits["a"] == pytest.approx([0, 0.3, 0.7])
    answer = settle(account, 101.0, (20.0,))
    assert answer.permits["a"] == []
    assert answer.retry_seconds == pytest.approx(5.7 - 1 - 0 + 0.0, abs=1.1)
    assert account.next == pytest.approx(105.7)


def test_large_costs_wait_until_the_window_has_room() -> None:
    """By the distance alone, the second task would start after 40 s."""
    account, starts, now = Account(), list[float](), 600.0
    while now < 900:
        starts += [now + after for after in settle(account, now, (400.0,)).permits["a"]]
        account = Account.from_dict(account.to_dict())
        now += 0.5
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert len(starts) == 5 and all(60 <= gap <= 62 for gap in gaps)


def test_small_costs_do_not_overtake_a_large_one() -> None:
    """Also those of another flow, which asks more often."""
    account, now = Account(), 600.0
    started: dict[str, float] = {}
    settle(account, now, (500.0,))
    settle(account, now, (), "a")
    while "large" not in started and now < 700:
        if settle(account, now, (400.0,), "large").permits["large"]:
            started["large"] = now
        for _ in range(3):
            now += 0.2
            if settle(account, now, (10.0,) * 20, "small").permits["small"]:
                started.setdefault("small", now)
    assert 650 <= started["large"] <= 662
    assert started.get("small", math.inf) > started["large"] - 2


def test_cost_above_limit_blocks_no_other_flow(account: Account) -> None:
    assert settle(account, 100.0, (601.0, 1.0)).permits["a"] == []
    assert settle(account, 100.0, (1.0,), "b").permits["b"] == [0.0]


def test_free_task_needs_no_units(account: Account) -> None:
    assert settle(account, 100.0, (0.0,) * 5).permits["a"] == [0.0] * 5
    assert settle(account, 100.0, (1.0,)).permits["a"] == [0.0]


def test_concurrency_counts_tasks_and_not_units(account: Account) -> None:
    answer = settle(account, 100.0, (0.1, 0.1, 0.1), limit=quota("600/m", 2))
    assert answer.permits["a"] == pytest.approx([0, 0.01])


def test_additional_units_are_taken_from_next_permits(account: Account) -> None:
    settle(account, 100.0, (10.0,))
    answer = settle(account, 100.5, (10.0,), held=1, corrections=(Correction(1, 100.0, 30.0),))
    assert answer.permits["a"] == [] and account.next == pytest.approx(104.0)
    assert sum(units for _, units in account.log or ()) == pytest.approx(40.0)


def logged(account: Account) -> float:
    return sum(units for _, units in account.log or ())


def test_unused_units_are_given_back_once(account: Account) -> None:
    """A request is repeated if its answer was lost."""
    settle(account, 100.0, (100.0,))
    for _ in range(2):
        settle(account, 100.5, (), held=1, corrections=(Correction(1, 100.0, -90.0),))
        assert logged(account) == pytest.approx(10.0)
        assert account.next == pytest.approx(101.0)
    corrections = (Correction(1, 100.0, -90.0), Correction(2, 100.0, -4.0))
    settle(account, 100.6, (), held=1, corrections=corrections)
    assert logged(account) == pytest.approx(6.0)


def test_units_are_given_back_to_their_own_start(account: Account) -> None:
    """Otherwise they are lost when an earlier start leaves the window, or a later one counts less.

    The log merges the starts in 0.6 s. Units that are not there are those of earlier starts.
    """
    for now in (600.0, 620.0, 640.0):
        settle(account, now, (100.0,))
    ends = [at for at, _ in account.log or ()]
    corrections: tuple[Correction, ...] = (Correction(1, 620.0, -30.0),)
    settle(account, 641.0, (), held=1, corrections=corrections)
    assert account.log == list(zip(ends, (100.0, 70.0, 100.0), strict=True))
    corrections += (Correction(2, 620.0, -90.0),)
    settle(account, 641.0, (), held=1, corrections=corrections)
    assert account.log == list(zip((ends[0], ends[2]), (80.0, 100.0), strict=True))


def test_units_of_an_old_start_are_not_given_back(account: Account) -> None:
    settle(account, 600.0, (100.0,))
    settle(account, 650.0, (200.0,), held=1)
    expected = account.next
    settle(account, 665.0, (), held=2, corrections=(Correction(1, 600.0, -100.0),))
    assert logged(account) == pytest.approx(200.0) and account.next == expected


def test_correction_is_counted_when_flow_leaves(account: Account) -> None:
    settle(account, 100.0, (10.0,))
    corrections = (Correction(1, 100.0, 50.0),)
    account.settle(MINUTE, [PermitRequest("a", 1, 0, 0, 0, (), corrections)], 100.5)
    assert account.flows == {} and account.next == pytest.approx(106.0)


def test_first_correction_of_a_later_run_is_counted(account: Account) -> None:
    settle(account, 100.0, (10.0,))
    settle(account, 100.1, (), held=1, corrections=(Correction(7, 100.0, 50.0),))
    corrections = (Correction(1, 100.0, 60.0),)
    account.settle(MINUTE, [PermitRequest("a", 2, 1, 0, 15.0, (), corrections)], 100.2)
    assert account.next == pytest.approx(112.0)


def test_answered_corrections_are_not_sent_again() -> None:
    membership = membership_of(lambda: 0.0)
    membership.correct(5.0, -3.0)
    first = membership.request()
    membership.correct(6.0, 2.0)
    assert membership.request().corrections == (Correction(1, 5.0, -3.0), Correction(2, 6.0, 2.0))
    membership.add(first, Answer({"a": []}, None, MINUTE, 0.0), 0.0)
    assert membership.request().corrections == (Correction(2, 6.0, 2.0),)


def test_lowered_limit_counts_units_of_earlier_starts(account: Account) -> None:
    settle(account, 600.0, (300.0,))
    low = quota("200/m")
    answer = account.settle(MINUTE, [PermitRequest("a", 1, 1, 1, 15, (150.0,))], 650.0, low)
    assert answer.permits["a"] == []
    answer = account.settle(MINUTE, [PermitRequest("a", 1, 1, 1, 15, (150.0,))], 700.0, low)
    assert len(answer.permits["a"]) == 1


costs = st.one_of(st.integers(0, 600), st.floats(0, 40), st.sampled_from([1, 599, 600]))


@pytest.mark.slow
@settings(max_examples=amount(20, 60))
@given(
    tasks=st.lists(st.tuples(st.integers(0, 2), costs, st.floats(0, 1.6)), min_size=1, max_size=40),
    step=st.sampled_from([0.4, 0.9]),
    runtime=st.sampled_from([0.0, 2.0, 45.0, 100.0]),
    changes=st.lists(st.sampled_from(["600/m", "10/s", "1200/m", "2000/h"]), max_size=2),
)
def test_no_window_contains_more_units_than_the_limit(
    tasks: list[tuple[int, float, float]], step: float, runtime: float, changes: list[str]
) -> None:
    """Tasks of three flows report less or more than their costs when they end.

    Units above the cost are corrections, which the limit may exceed.
    """
    account, now, limit = Account(), 6e4, MINUTE
    queues = {
        str(flow): [(float(cost), part) for each, cost, part in tasks if each == flow]
        for flow in range(3)
    }
    running: dict[str, list[tuple[float, float]]] = {flow: [] for flow in queues}
    corrections: dict[str, list[Correction]] = {flow: [] for flow in queues}
    starts: list[tuple[float, float]] = []
    # Begin, end and limit of each part. Permits of an earlier limit start until `begin`.
    parts: list[tuple[float, float, Quota]] = []
    begin, turns = now, 0
    while any(queues.values()) and turns < 500:
        turns += 1
        now += step
        if changes and turns % 40 == 0:
            parts.append((begin, now, limit))
            limit, begin = quota(changes.pop()), now + HORIZON
        assert limit.window is not None
        for flow in queues if turns % 2 else reversed(queues):
            ended = [each for each in running[flow] if each[0] + runtime <= now]
            running[flow] = [each for each in running[flow] if each not in ended]
            for at, units in ended:
                corrections[flow].append(Correction(len(corrections[flow]) + 1, at, units))
            queues[flow] = [each for each in queues[flow] if each[0] <= limit.window[0]]
            wanted = tuple(cost for cost, _ in queues[flow])
            request = PermitRequest(
                flow, 1, len(running[flow]), len(wanted), 15.0, wanted, tuple(corrections[flow])
            )
            answer = account.settle(MINUTE, [request], now, limit)
            for after in answer.permits.get(flow, ()):
                cost, part = queues[flow].pop(0)
                running[flow].append((now + after, cost * (part - 1)))
                starts.append((now + after, min(cost, cost * part)))
        account = Account.from_dict(account.to_dict())
    starts.sort()
    times = [at for at, _ in starts]
    sums = [0.0, *itertools.accumulate(units for _, units in starts)]
    parts.append((begin, math.inf, limit))
    for begin, end, each_limit in parts:
        assert each_limit.window is not None
        units, period = each_limit.window
        for first in range(bisect.bisect_left(times, begin), bisect.bisect_left(times, end)):
            last = bisect.bisect_left(times, min(end, times[first] + period - 1e-6))
            assert sums[last] - sums[first] <= units * (1 + 1e-5)


@settings(max_examples=amount(20, 60))
@given(st.lists(costs.filter(lambda cost: cost <= 60), min_size=50, max_size=200))
def test_small_costs_use_nearly_the_whole_rate(found: list[float]) -> None:
    account, now, rest = Account(), 6e4, tuple(map(float, found))
    total, last = sum(rest), now
    while rest and now < 6e4 + 1e4:
        answer = settle(account, now, rest[:MAX_COSTS])
        granted = answer.permits["a"]
        rest = rest[len(granted) :]
        last = max([last, *(now + after for after in granted)])
        now += answer.retry_seconds or 0.5
    assert last - 6e4 <= (total / 600 * 60) * 1.04 + 66


def grant(membership: Membership, permits: list[float]) -> None:
    membership.add(membership.request(), Answer({"a": permits}, None, MINUTE, 1e9), 0.0)


def test_permit_is_used_only_for_its_cost() -> None:
    """A task of another cost may have come first meanwhile."""
    membership = membership_of(lambda: 0.0)
    membership.set_wanted(2, (5.0, 7.0))
    assert membership.request().costs == (5.0, 7.0)
    grant(membership, [0.0])
    assert membership.ready == 1
    membership.set_wanted(3, (9.0, 5.0, 7.0))
    assert membership.request()[2:6] == (1, 2, 15.0, (9.0, 7.0))
    assert membership.use_permit(9.0) is None and membership.use_permit(5.0) == 1e9
    assert (membership.held, membership.ready, membership.wanted) == (1, 0, 2)


def test_permit_of_withdrawn_task_is_released() -> None:
    membership = membership_of(lambda: 0.0)
    membership.set_wanted(2, (5.0, 7.0))
    grant(membership, [0.0, 0.5])
    membership.set_wanted(1, (7.0,))
    assert (membership.held, membership.spare) == (1, 1)
    assert membership.request().costs == ()


def test_costs_of_later_tasks_follow() -> None:
    now = 0.0
    membership = membership_of(lambda: now)
    membership.set_wanted(5, (1.0, 2.0))
    grant(membership, [0.0, 0.1])
    assert membership.request()[3] == 0
    now = 0.1
    assert membership.use_permit(1.0) == 1e9 and membership.use_permit(2.0) == 1e9 + 0.1
    membership.set_wanted(3, (3.0, 4.0))
    assert membership.request()[3:6] == (3, 15.0, (3.0, 4.0))
