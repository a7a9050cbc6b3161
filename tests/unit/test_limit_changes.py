"""Limits that change while permits are in use: maxima in all windows, names and values."""

from __future__ import annotations

import bisect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine._limits import limit_changes
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_sharing import HORIZON, Account, PermitRequest
from wbengine._tasks.limit_attributes import Quota
from wbengine._text import rates

SLOW = Quota("10/h", 360.0, None)
FAST = Quota("100/s", 0.01, None)


def ask(flow: str, held: int, wanted: int) -> PermitRequest:
    return PermitRequest(flow, 1, held, wanted, 15.0)


def test_raised_rate_does_not_wait_for_old_interval() -> None:
    account = Account()
    assert account.settle(SLOW, [ask("a", 0, 3)], 100.0).permits == {"a": [0.0]}
    answer = account.settle(SLOW, [ask("a", 1, 2)], 101.0, FAST)
    assert answer.quota == FAST
    assert answer.permits["a"] == pytest.approx([0.0, 0.01])


def test_lowered_rate_waits_for_new_interval_from_last_permit() -> None:
    account = Account()
    account.settle(FAST, [ask("a", 0, 1)], 100.0)
    answer = account.settle(FAST, [ask("a", 1, 1)], 101.0, SLOW)
    assert answer.permits == {"a": []}
    assert answer.retry_seconds == pytest.approx(359 - HORIZON / 2)
    assert account.next_permit(101.0) == pytest.approx(359)


def test_lowered_rate_of_idle_limit_permits_a_start_at_once() -> None:
    account = Account()
    account.settle(FAST, [ask("a", 0, 1)], 100.0)
    account.settle(FAST, [ask("a", 1, 0)], 900.0)
    assert account.settle(FAST, [ask("a", 1, 1)], 901.0, SLOW).permits == {"a": [0.0]}


def test_lowered_concurrency_grants_nothing_until_enough_permits_are_free() -> None:
    account, five, two = Account(), Quota(None, None, 5), Quota(None, None, 2)
    assert account.settle(five, [ask("a", 0, 9)], 1.0).permits == {"a": [0.0] * 5}
    for held, granted in ((5, 0), (3, 0), (2, 0), (1, 1)):
        answer = account.settle(five, [ask("a", held, 9)], 2.0, two)
        assert len(answer.permits["a"]) == granted
    assert len(account.settle(five, [ask("a", 2, 9)], 3.0).permits["a"]) == 3


quotas = st.builds(
    lambda rate, concurrency: Quota(rate, rates.interval(rate), concurrency),
    st.sampled_from(["1/s", "3/s", "20/s", "90/m", "7/m", "400/s", "30/h"]),
    st.sampled_from([None, 1, 4, 50]),
)


@given(
    changes=st.lists(st.tuples(st.floats(0.1, 40), quotas), min_size=1, max_size=5),
    runtime=st.sampled_from([0.0, 0.3, 5.0]),
    flows=st.integers(1, 4),
)
def test_changed_limit_is_never_exceeded_in_any_window(
    changes: list[tuple[float, Quota]], runtime: float, flows: int
) -> None:
    """A window begins after the change was taken over; flows return unused permits of others."""
    account, code = Account(), changes[0][1]
    names = [f"flow {number}" for number in range(flows)]
    granted: dict[str, list[float]] = {name: [] for name in names}
    running: dict[str, list[float]] = {name: [] for name in names}
    in_force: dict[str, Quota] = {}
    now, turn = 1000.0, 0
    for seconds, quota in changes:
        starts: list[float] = []
        end, requests = now + seconds, 0
        while now < end and requests < 100:
            requests += 1
            is_taken_over = [in_force.get(each) for each in names] == [quota] * flows
            name = names[turn := (turn + 1) % flows]
            for each in names:  # Permits that are due are used at once.
                due = [at for at in granted[each] if at <= now]
                granted[each] = [at for at in granted[each] if at > now]
                starts += due
                running[each] = [*(at for at in running[each] if at + runtime > now), *due]
            spare = granted[name]
            if in_force.get(name, quota) != quota:
                granted[name] = spare = []
            held = len(running[name]) + len(spare)
            wanted = 50 - len(spare)
            answer = account.settle(code, [ask(name, held, wanted)], now, quota)
            granted[name] = [*spare, *(now + after for after in answer.permits[name])]
            in_force[name] = quota
            account = Account.from_dict(account.to_dict())
            if answer.permits[name] and quota.concurrency is not None:
                assert sum(row.held for row in account.flows.values()) <= quota.concurrency
            if not is_taken_over:
                starts = []
            now += 0.23
        assert quota.interval is not None
        starts.sort()
        for first, begin in enumerate(starts):
            for width in (1.0, 5.0, 60.0):
                count = bisect.bisect_left(starts, begin + width - 1e-6) - first
                assert count <= math.ceil(width / quota.interval - 1e-6)


@pytest.mark.parametrize(
    ("changes", "limit", "expected"),
    [
        ([LimitChange("shop", "5/s")], "shop", ("5/s", 3)),
        ([LimitChange("shop", None, 9)], "shop[eve]", ("1/s", 9)),
        ([LimitChange("shop", "5/s", 8), LimitChange("shop[eve]", "7/s")], "shop[eve]", ("7/s", 8)),
        ([LimitChange("shop[eve]", "7/s")], "shop[bob]", ("1/s", 3)),
        ([LimitChange("shop[eve]", "7/s")], "shop", ("1/s", 3)),
        ([LimitChange("shop", "5/s")], "shop2", ("1/s", 3)),
        ([LimitChange("", "5/s")], "[x]", ("1/s", 3)),
    ],
    ids=["name", "all-keys", "key-first", "other-key", "name-of-key", "longer-name", "no-name"],
)
def test_change_applies_to_its_name_and_keys(
    changes: list[LimitChange], limit: str, expected: tuple[str, int]
) -> None:
    quota = limit_changes.apply(
        limit, Quota("1/s", 1.0, 3), {change.name: change for change in changes}
    )
    assert (quota.rate, quota.concurrency) == expected
    assert quota.interval == rates.interval(expected[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (LimitChange("l"), "requires rate or concurrency"),
        (LimitChange("", "1/s"), "printable text with at most 200 characters, got ''"),
        (LimitChange("x" * 201, "1/s"), "at most 200 characters"),
        (LimitChange("a\nb", "1/s"), "printable"),
        (LimitChange("l", "0/s"), "a number from 1 per s, m, h or d, such as '100/m', got '0/s'"),
        (LimitChange("l", None, 0), "a whole number from 1, got 0"),
        (LimitChange("l", "1/s", reason="\udc80"), "valid Unicode"),
    ],
    ids=["nothing", "no-name", "long-name", "newline", "rate", "concurrency", "reason"],
)
def test_invalid_change_is_rejected(change: LimitChange, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        change.check()
