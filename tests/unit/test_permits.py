"""Accounts of limits: maxima, equal shares, expiry, renewal and reservation of permits."""

from __future__ import annotations

import bisect
import math
import random
import threading
import time
from typing import Any

import pytest

from tests.support.waiting import until
from wbengine import task
from wbengine._limits import account_stores
from wbengine._limits.limit_changes import LimitChange
from wbengine._limits.permit_renewer import (
    MAX_LATE_SECONDS,
    Member,
    Membership,
    PermitRenewer,
    StoreClock,
    _Limit,
)
from wbengine._limits.permit_sharing import (
    HORIZON,
    KEPT_SECONDS,
    RESERVED_SECONDS,
    Account,
    Answer,
    PermitRequest,
)
from wbengine._tasks import limit_attributes
from wbengine._tasks.limit_attributes import Quota

TWO = Quota(None, None, 2)
TEN = Quota("10/s", 0.1, None)


@pytest.fixture
def account() -> Account:
    return Account()


def given(account: Account, quota: Quota, now: float, *asks: PermitRequest) -> dict[str, int]:
    answer = account.settle(quota, asks, now)
    return {flow: len(permits) for flow, permits in answer.permits.items()}


def grant(membership: Membership, permits: list[float], quota: Quota, now: float) -> None:
    answer = Answer({membership.member.flow: permits}, None, quota, now)
    membership.add(membership.request(), answer, now)


def ask(
    flow: str, held: int, wanted: int, costs: tuple[float, ...] = (), **options: Any
) -> PermitRequest:
    values = {"epoch": 1, "seconds": 15.0, **options}
    return PermitRequest(flow, held=held, wanted=wanted, costs=costs, **values)


def test_repeated_permit_request_grants_no_extra_permits(account: Account) -> None:
    """The reply may have been lost: only the number of held permits in the request counts."""
    assert given(account, TWO, 1, ask("a", 0, 2)) == {"a": 2}
    assert given(account, TWO, 2, ask("a", 0, 2)) == {"a": 2}
    assert given(account, TWO, 2, ask("b", 0, 1)) == {"b": 0}


def test_permits_are_shared_equally_among_flows() -> None:
    quota = Quota(None, None, 9)
    account = Account()
    assert given(account, quota, 1, ask("a", 0, 100)) == {"a": 9}
    assert given(account, quota, 1, ask("b", 0, 100)) == {"b": 0}
    assert given(account, quota, 1, ask("c", 0, 2)) == {"c": 0}
    held = {"a": 9, "b": 0, "c": 0}
    for _ in range(9):  # flow 'a' releases its permits one by one
        held["a"] -= 1
        account.settle(quota, [ask("a", held["a"], 100)], 2)
        held = {flow: row.held for flow, row in account.flows.items()}
        for flow, wanted in (("b", 100 - held["b"]), ("c", 2 - held["c"])):
            account.settle(quota, [ask(flow, held[flow], wanted)], 2)
            held = {flow: row.held for flow, row in account.flows.items()}
    assert held["c"] == 2 and abs(held["a"] - held["b"]) <= 1 and sum(held.values()) == 9


def test_flows_take_turns_with_a_single_permit() -> None:
    one = Quota(None, None, 1)
    account = Account()
    turns: list[str] = []
    membership = None
    for now in range(40):
        for flow in ("a", "b", "c"):
            if membership == flow:
                membership = None
            got = given(account, one, now, ask(flow, 0, 50))[flow]
            if got:
                assert membership is None
                membership = flow
                turns.append(flow)
    counts = [turns.count(flow) for flow in ("a", "b", "c")]
    assert max(counts) - min(counts) <= 2 and sum(counts) >= 30


def test_permit_request_with_old_epoch_is_ignored(account: Account) -> None:
    assert given(account, TWO, 1, ask("a", 1, 0, epoch=2)) == {"a": 0}
    assert given(account, TWO, 2, ask("a", 0, 0, epoch=1)) == {}
    assert given(account, TWO, 2, ask("a", 0, 5, epoch=1)) == {}
    assert account.flows["a"].held == 1
    assert given(account, TWO, 3, ask("a", 0, 2, epoch=3)) == {"a": 2}


def test_account_without_a_rate_ends_with_its_last_flow(account: Account) -> None:
    """Also if a flow died before: only permits of a rate may still be used then."""
    assert given(account, TWO, 1, ask("dead", 0, 1, seconds=1)) == {"dead": 1}
    assert given(account, TWO, 3, ask("b", 0, 1)) == {"b": 1}
    given(account, TWO, 3, ask("b", 0, 0))
    assert account.expires(3) <= 0


def test_account_without_costs_has_the_fields_of_earlier_releases(account: Account) -> None:
    account.settle(TEN, [ask("a", 0, 1)], 50.0)
    stored = account.to_dict()
    assert stored["flows"] == {"a": [1, 1, 0, 65.0, 1.0]}
    for added in ("defined", "last", "log"):
        del stored[added]
    read = Account.from_dict(stored)
    assert (read.next, read.quota, read.defined, read.log) == (50.1, TEN, TEN, None)


def test_rate_limit_spaces_permits_evenly(account: Account) -> None:
    (permits,) = account.settle(TEN, [ask("a", 0, 100)], 50.0).permits.values()
    assert permits == pytest.approx([number / 10 for number in range(11)])
    answer = account.settle(TEN, [ask("a", 11, 89)], 50.5)
    assert answer.permits["a"] == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])
    assert answer.retry_seconds == pytest.approx(HORIZON / 2 + 0.1)


def test_unused_rate_is_not_accumulated(account: Account) -> None:
    assert given(account, TEN, 1, ask("a", 0, 2)) == {"a": 2}
    assert given(account, TEN, 10, ask("a", 1, 0)) == {"a": 0}
    (permits,) = account.settle(TEN, [ask("a", 0, 30)], 20.0).permits.values()
    assert len(permits) == 11 and min(permits) == 0


def test_slow_rate_is_queried_shortly_before_next_permit() -> None:
    quota = Quota("10/h", 360.0, None)
    account = Account()
    answer = account.settle(quota, [ask("a", 0, 5)], 0.0)
    assert answer.permits["a"] == [0.0]
    assert answer.retry_seconds == 360 - HORIZON / 2
    assert given(account, quota, 358, ask("a", 0, 4)) == {"a": 0}
    assert account.settle(quota, [ask("a", 0, 4)], 359.5).permits["a"] == [0.5]


@pytest.mark.parametrize("jump", [0, -3600, -3, -0.5, 20, 3600])
def test_clock_change_neither_doubles_a_rate_nor_stops_it(jump: float) -> None:
    """The flows 'a' and 'b' take turns; the clock is set at 5 s, while permits are assigned."""
    account, starts = Account(), list[float]()
    for tenth in range(200):
        real = tenth / 10
        clock = 1e9 + real + (jump if real >= 5 else 0)
        flow = "ab"[tenth % 2]
        (permits,) = account.settle(TEN, [ask(flow, 0, 100)], clock).permits.values()
        starts += [real + seconds for seconds in permits]
    starts.sort()
    in_a_second = [bisect.bisect(starts, start + 0.999) - n for n, start in enumerate(starts)]
    assert max(in_a_second) <= 11
    assert len(starts) >= 200 - 2 * 10


@pytest.mark.parametrize("seed", range(20))
def test_random_flows_share_a_rate_equally_and_within_limit(seed: int) -> None:
    """The starts in any window are within the rate, and waiting flows have equal shares.

    Each flow sends its next request at the proposed time, with a delay of up to 0.1 s.
    """
    rng = random.Random(seed)
    many, rate = rng.randint(1, 5), rng.choice([5, 50, 400])
    quota = Quota(f"{rate}/s", 1 / rate, None)
    account = Account.from_dict(Account().to_dict())
    due = dict.fromkeys(map(str, range(many)), 0.0)
    starts: list[tuple[float, str]] = []
    while (flow := min(due, key=due.__getitem__)) and (now := due[flow]) < 60:
        now += rng.uniform(0, 0.1)
        answer = account.settle(quota, [ask(flow, 0, 100_000)], now)
        starts += [(now + seconds, flow) for seconds in answer.permits[flow]]
        assert answer.retry_seconds is not None
        due[flow] = now + answer.retry_seconds
        account = Account.from_dict(account.to_dict())
    starts.sort()
    for begin in (0.0, 7.3, 20.0):
        window = [flow for at, flow in starts if begin <= at < begin + 30]
        assert 30 * rate * 0.99 - 1 <= len(window) <= 30 * rate + 1
        if begin:
            counts = [window.count(flow) for flow in due]
            assert max(counts) - min(counts) <= rate * HORIZON + 1


def test_dead_flow_does_not_stop_a_rate() -> None:
    """Only its share is unused, until its request expires."""
    quota = Quota("50/s", 0.02, None)
    account = Account()
    now, begun = 0.0, 0
    account.settle(quota, [ask("dead", 0, 1000)], now)
    while now < 10:
        answer = account.settle(quota, [ask("b", 0, 1000)], now)
        begun += len(answer.permits["b"])
        assert answer.retry_seconds is not None
        now += answer.retry_seconds
    assert begun >= 10 * 50 * 0.5


def test_frequent_requests_get_no_larger_share() -> None:
    quota = Quota("50/s", 0.02, None)
    account = Account()
    got = {"often": 0, "seldom": 0}
    for step in range(6000):
        now = step / 100
        for flow in ("often", "seldom") if step % 50 == 0 else ("often",):
            got[flow] += len(account.settle(quota, [ask(flow, 0, 9999)], now).permits[flow])
    assert sum(got.values()) >= 59 * 50
    assert got["seldom"] >= 0.9 * got["often"]


def test_surplus_permits_are_released_to_waiting_flows() -> None:
    renewer, woken = PermitRenewer(account_stores.MemoryStore()), threading.Event()
    first = renewer.join("l", TWO, Member("a"), woken.set)
    first.set_wanted(2)
    until(lambda: first.ready == 2)
    second = renewer.join("l", TWO, Member("b"), woken.set)
    second.set_wanted(1)
    first.set_wanted(1)
    until(lambda: second.ready == 1)
    assert (first.held, first.ready) == (1, 1)
    renewer.leave([first, second])
    until(lambda: renewer.is_idle)


def test_permit_request_is_repeated_after_store_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(account_stores.MemoryStore):
        failures = 2

        def settle(self, wants):  # type: ignore[no-untyped-def]
            if self.failures:
                self.failures -= 1
                raise OSError("it is away")
            return super().settle(wants)

    renewer = PermitRenewer(Failing())
    membership = renewer.join("l", TWO, Member("a"), lambda: None)
    membership.set_wanted(1)
    until(lambda: membership.ready == 1, within=3)
    assert "it is away" in caplog.text
    renewer.leave([membership])


def test_permits_of_a_rate_that_are_not_used_in_time_are_lost() -> None:
    """A run loop that was blocked does not start a burst of tasks afterwards."""
    now = 0.0
    renewer = PermitRenewer(account_stores.MemoryStore(), lambda: now)
    membership = Membership(renewer, "l", TEN, Member("a"), lambda: None)
    membership.set_wanted(200)
    for _ in range(5):
        grant(membership, [number / 10 for number in range(10)], TEN, now)
        now += 1
    now -= 0.05
    assert (membership.ready, membership.held) == (1, 1)
    assert membership.request().wanted == 199
    now += 60
    assert membership.ready == 1, "a flow that is always late starts tasks, too"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_starts_of_late_engines_exceed_a_rate_by_a_bounded_number(seed: int) -> None:
    """Engines are late by up to half a second, and so are their answers; the rate changes twice.

    The permits are exact. The starts of a window are those of a window that is longer by
    `MAX_LATE_SECONDS`, and one late start of each engine. Engines notice a change within 1.1
    seconds.
    """
    rng, now = random.Random(seed), 1000.0
    store = account_stores.MemoryStore(lambda: now)
    quota = Quota("50/s", 0.02, None)
    renewer = PermitRenewer(store, lambda: now)
    engines = [
        Membership(renewer, "l", quota, Member(f"{number}"), lambda: None) for number in range(8)
    ]
    # Time at which an engine looks again, and a late answer with its request.
    events = [(now, number, engine, None) for number, engine in enumerate(engines)]
    answers: list[Any] = [None] * len(engines)
    permits, starts = list[float](), list[float]()
    changes = [(1070.0, "20/s"), (1140.0, "90/s")]
    while now < 1210:
        events.sort(key=lambda event: event[:2])
        now, number, engine, _ = events.pop(0)
        for _, rate in [change for change in changes if change[0] <= now]:
            store.change(LimitChange("l", rate))
        if answers[number] is not None:
            request, answer = answers[number]
            engine.add(request, answer, answer.now)
            answers[number] = None
        while engine.ready:
            start = engine.use_permit()
            assert start is not None and start <= now
            permits.append(start)
            starts.append(now)
        engine.set_wanted(1000)
        request = engine.request()
        answer = store.settle({"l": (quota, [request])})["l"]
        answers[number] = request, answer
        delay = rng.choice([0.0, 0.0, 0.0, rng.uniform(0, 0.5)])
        events.append((now + 0.02 + delay, number, engine, None))
    for begin, end, per_second in ((1000.0, 1070.0, 50), (1071.1, 1140, 20), (1141.1, 1210, 90)):
        for times, late, extra in ((permits, 0.0, 0), (starts, MAX_LATE_SECONDS, len(engines))):
            times.sort()
            part = times[bisect.bisect_left(times, begin) : bisect.bisect_left(times, end)]
            assert len(part) > (end - begin) * per_second / 2
            for width in (1.0, 5.0, 60.0):
                most = max(
                    bisect.bisect_left(part, each + width - 1e-6) - first
                    for first, each in enumerate(part)
                )
                assert most <= math.ceil((width + late) * per_second - 1e-6) + extra


def test_wait_for_a_permit_is_long_after_a_time_or_if_the_next_one_is_late() -> None:
    now = 100.0
    renewer = PermitRenewer(account_stores.MemoryStore(), lambda: now)
    membership = Membership(renewer, "l", TWO, Member("a"), lambda: None)
    assert membership.seconds_to_long_wait(5) == math.inf
    membership.set_wanted(1)

    def answer(permits: list[float], retry_seconds: float | None) -> float:
        reply = Answer({"a": permits}, retry_seconds, TWO, now)
        membership.add(membership.request(), reply, now)
        return membership.seconds_to_long_wait(5)

    assert answer([], None) == 5
    now = 103.0
    assert answer([], 0.5) == 2
    assert answer([], 60) == 0, "the rate is slow"
    now = 105.0
    assert answer([], None) == 0
    membership.set_wanted(0)
    membership.set_wanted(1)
    assert membership.seconds_to_long_wait(5) == math.inf, "another task waits"
    assert answer([], None) == 5
    assert answer([0.0], None) == math.inf


def test_slow_answer_makes_no_permits_late() -> None:
    clock = StoreClock()
    assert clock.local(100.0, 5.0, 5.4) == pytest.approx(5.4), "not before the answer"
    assert clock.local(101.0, 6.0, 6.1) == pytest.approx(6.1)
    assert clock.local(102.0, 7.0, 7.9) == pytest.approx(7.1)
    assert clock.local(50.0, 8.0, 8.2) == pytest.approx(8.2), "the store's clock was set back"
    assert clock.local(900.0, 9.0, 9.2) == pytest.approx(9.2), "and set forward"
    assert clock.local(960.0, 69.3, 69.4) == pytest.approx(69.4), "and runs at another rate"


def test_unused_permits_are_returned_when_quota_changes() -> None:
    now = 0.0
    renewer = PermitRenewer(account_stores.MemoryStore(), lambda: now)
    membership = Membership(renewer, "l", TEN, Member("a"), lambda: None)
    membership.set_wanted(8)
    grant(membership, [number / 10 for number in range(5)], TEN, 0)
    now = 0.1
    assert membership.ready == 2 and membership.use_permit() is not None
    grant(membership, [0.5], Quota("2/s", 0.5, None), 0.1)
    assert (membership.ready, membership.spare, membership.held) == (0, 1, 2)
    assert membership.request().wanted == 6


def test_changed_limit_applies_to_flow_that_waits_for_a_slow_rate() -> None:
    """The flow does not wait for the old interval of an hour."""
    slow, store = Quota("1/h", 3600.0, None), account_stores.MemoryStore()
    renewer = PermitRenewer(store)
    membership = renewer.join("l[a]", slow, Member("a"), lambda: None)
    membership.set_wanted(4)
    until(lambda: membership.ready == 1)
    assert membership.use_permit() is not None
    store.change(LimitChange("l", "1000/s", 3))
    until(lambda: membership.ready == 2, within=3)
    assert (membership.held, membership.quota_in_force) == (3, Quota("1000/s", 0.001, 3))
    assert store.remove_change("l")
    membership.set_wanted(0)
    membership.set_wanted(1)
    until(lambda: membership.quota_in_force == slow, within=3)
    renewer.leave([membership])


def test_changes_are_read_only_while_flows_wait_longer() -> None:
    class Counting(account_stores.MemoryStore):
        reads = 0

        def changes(self, limits: Any = None) -> dict[str, LimitChange]:
            self.reads += 1
            return super().changes(limits)

    store, now = Counting(), 0.0
    renewer = PermitRenewer(store, lambda: now)
    membership = Membership(renewer, "l", Quota("1/h", 3600.0, None), Member("a"), lambda: None)
    renewer._limits["l"] = _Limit()
    renewer._limits["l"].memberships["a"] = membership
    reads: dict[int, list[int]] = {}
    for wanted in (1, 0, 3):
        membership.set_wanted(wanted)
        renewer._limits["l"].due = math.inf
        renewer._settle({"l": (membership.quota, [membership.request()])})
        reads[wanted] = []
        for _ in range(3):
            now += 1
            renewer._poll_changes()
            reads[wanted].append(store.reads)
    assert reads == {1: [0, 0, 0], 0: [0, 0, 0], 3: [1, 2, 3]}
    store.change(LimitChange("l", "5/s"))
    now += 1
    renewer._poll_changes()
    assert renewer._limits["l"].due == 0, "the next request follows at once"


def test_permits_are_renewed_while_held() -> None:
    store = account_stores.MemoryStore()
    renewer = PermitRenewer(store)
    membership = renewer.join("l", TWO, Member("a", seconds=0.3), lambda: None)
    membership.set_wanted(2)
    until(lambda: membership.ready == 2)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        account, now = store.all()["l"]
        assert account.live(now)["a"].held == 2
        time.sleep(0.02)
    renewer.leave([membership])
    assert store.all() == {}


def limit(**options: object) -> limit_attributes.Limit:
    made = task.task(**options)(_call)()  # type: ignore[call-overload]
    return limit_attributes.limit_of(made, "task 'c'", "c", {"customer", "n"})


def _call(customer: str, n: int) -> None: ...


INVALID_LIMITS: dict[str, tuple[dict[str, object], str]] = {
    "unknown-period": (
        {"rate_limit": "100/x"},
        "a number from 1 per s, m, h or d, such as '100/m', got '100/x'",
    ),
    "rate-zero": ({"rate_limit": "0/s"}, "got '0/s'"),
    "rate-fraction": ({"rate_limit": "1.5/s"}, "got '1.5/s'"),
    "rate-number": ({"rate_limit": 100}, "got 100"),
    "rate-newline": ({"rate_limit": "100/m\n"}, "rate_limit"),
    "concurrency-zero": ({"concurrency": 0}, "a whole number from 1, got 0"),
    "concurrency-bool": ({"concurrency": True}, "got True"),
    "concurrency-float": ({"concurrency": 1.0}, r"got 1\.0"),
    "key-not-callable": (
        {"concurrency": 1, "concurrency_key": "customer"},
        "function of its arguments",
    ),
    "key-with-unknown-argument": (
        {"concurrency": 1, "concurrency_key": lambda custom: 1},
        "did you mean 'customer'",
    ),
    "key-without-limit": (
        {"concurrency_key": lambda customer: 1},
        "requires rate_limit or concurrency",
    ),
    "empty-name": ({"concurrency": 1, "limit": ""}, "must be a printable str"),
    "name-without-limit": ({"limit": "shop"}, "limit of a task requires"),
    "cost-without-limit": ({"cost": 3}, "cost of a task requires rate_limit"),
    "cost-without-rate": ({"concurrency": 3, "cost": 3}, "cost of a task requires rate_limit"),
    "cost-negative": ({"rate_limit": "1/s", "cost": -1}, "finite number of at least 0, got -1"),
    "cost-infinite": ({"rate_limit": "1/s", "cost": math.inf}, "number of at least 0, got inf"),
    "cost-nan": ({"rate_limit": "1/s", "cost": math.nan}, "finite number of at least 0, got nan"),
    "cost-bool": ({"rate_limit": "1/s", "cost": True}, "must be a number, got bool"),
    "cost-text": ({"rate_limit": "1/s", "cost": "3"}, "must be a number, got str"),
    "cost-with-unknown-argument": (
        {"rate_limit": "1/s", "cost": lambda custom: 1},
        "cost .*did you mean 'customer'",
    ),
}


@pytest.mark.parametrize(("options", "words"), INVALID_LIMITS.values(), ids=INVALID_LIMITS)
def test_invalid_limits_are_rejected(options: dict[str, object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        limit(**options)


def test_limit_key_is_part_of_limit_id() -> None:
    made = limit(rate_limit="100/m", concurrency=10, concurrency_key=lambda customer: customer)
    assert (made.quota.interval, made.quota.label) == (0.6, "100/m, 10 at once")
    assert made.id_of({"customer": "x", "n": 1}) == "c[x]"
    assert len(made.id_of({"customer": "x" * 999})) == 200
    assert made.id_of({"customer": "x" * 999}) != made.id_of({"customer": "x" * 998})


def test_limit_id_contains_no_secret_key() -> None:
    """The id is stored and displayed."""
    made = limit_attributes.Limit("c", key=lambda api_token: api_token, takes=("api_token",))
    found = made.id_of({"api_token": "sk_live"})
    assert "sk_live" not in found and found.startswith("c[#")
    assert found == made.id_of({"api_token": "sk_live"}) != made.id_of({"api_token": "sk_test"})


@pytest.mark.parametrize(
    "key",
    [object(), ["a"], 1.5, ("a", b"b"), {"a": 1}],
    ids=["object", "list", "float", "tuple-with-bytes", "dict"],
)
def test_limit_key_that_is_not_a_plain_value_is_rejected(key: object) -> None:
    """Equal arguments must have equal keys, but the text of an object can contain its address."""
    made = limit(concurrency=1, concurrency_key=lambda customer: key)
    with pytest.raises(TypeError, match=f"'c' must return .*, got {type(key).__name__}"):
        made.id_of({"customer": "x"})


@pytest.mark.parametrize(
    "key", ["a", 7, True, None, ("a", (7, None))], ids=["str", "int", "bool", "none", "tuple"]
)
def test_plain_limit_keys_are_accepted(key: object) -> None:
    made = limit(concurrency=1, concurrency_key=lambda customer: key)
    assert made.id_of({"customer": "x"}) == f"c[{key}]"


@pytest.mark.parametrize(
    "text",
    ["\ud800", "a\0b", "a\nb", "\x1b[2J"],
    ids=["lone-surrogate", "null", "newline", "escape-sequence"],
)
def test_limit_id_is_printable_for_any_key_text(text: str) -> None:
    made = limit(concurrency=1, concurrency_key=lambda customer: customer)
    found = made.id_of({"customer": text})
    assert found.isprintable() and found.encode()
    assert found != made.id_of({"customer": text * 2})


def test_cost_is_a_number_or_a_function_of_arguments() -> None:
    arguments = {"customer": "abc", "n": 2}
    assert limit(rate_limit="9/s").cost_of(arguments) == 1.0
    assert limit(rate_limit="9/s", cost=2.5).cost_of(arguments) == 2.5
    assert limit(rate_limit="9/s", cost=lambda customer: len(customer)).cost_of(arguments) == 3.0


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, "3", True, 10**400])
def test_function_of_cost_must_return_a_finite_number(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="cost of limit 'c' must be"):
        limit(rate_limit="9/s", cost=lambda n: value).cost_of({"n": 1})


def test_concurrency_key_of_task_class_is_not_bound_as_method() -> None:
    class Call(task.Task):
        concurrency = 3
        concurrency_key = lambda customer: customer  # noqa: E731

        def execute(self, customer: str) -> None: ...

    made = limit_attributes.limit_of(Call(), "task", "Call", {"customer"})
    assert made.id_of({"customer": 5}) == "Call[5]"


def test_next_run_of_a_flow_inherits_its_permit(account: Account) -> None:
    one = Quota(None, None, 1)
    assert given(account, one, 1, ask("a", 0, 1)) == {"a": 1}
    account.settle(one, [ask("a", 1, 0, seconds=KEPT_SECONDS)], 2)
    assert account.kept(1000) == ["a"]
    assert given(account, one, 1000, ask("b", 0, 1)) == {"b": 0}
    assert given(account, one, 1001, ask("b", 0, 1), ask("a", 0, 1, epoch=2)) == {"a": 1, "b": 0}
    assert account.kept(1001) == []
    assert given(account, one, 1002, ask("a", 1, 1, epoch=3)) == {"a": 0}


def test_next_run_inherits_no_permits_of_a_rate(account: Account) -> None:
    assert given(account, TEN, 1, ask("a", 0, 2)) == {"a": 2}
    answer = account.settle(TEN, [ask("a", 0, 2, epoch=2)], 1)
    assert answer.permits["a"] == pytest.approx([0.2, 0.3])


# Parked flows.


HUNDRED = Quota("100/m", 0.6, None)


def parked(account: Account, quota: Quota, now: float, **units: float) -> list[str]:
    """Return the flows of these that can get a permit now."""
    requests = [PermitRequest.of_parked(flow, each) for flow, each in units.items()]
    resumable = account.settle(quota, requests, now).resumable
    return [flow for flow in units if flow in resumable]


@pytest.mark.parametrize(
    ("quota", "wanted", "free"), [(TWO, 1, 1), (TWO, 5, 0), (TEN, 3, 8), (TEN, 20, 0)]
)
def test_as_many_parked_flows_are_resumable_as_permits_are_free(
    quota: Quota, wanted: int, free: int
) -> None:
    account = Account()
    account.settle(quota, [ask("a", 0, wanted)], 1)
    flows = {f"flow {number}": 1.0 for number in range(30)}
    assert parked(account, quota, 1, **flows) == list(flows)[:free]
    account = Account.from_dict(account.to_dict())
    assert list(account.flows)[1:] == list(flows)[: free + 1]
    for flow in list(flows)[:free]:
        assert len(account.settle(quota, [ask(flow, 0, 1)], 1).permits[flow]) == 1


def test_permit_of_a_resumed_flow_is_reserved_for_some_time() -> None:
    account, one = Account(), Quota(None, None, 1)
    assert parked(account, one, 1, a=1.0) == ["a"]
    assert parked(account, one, 2, b=1.0) == []
    assert given(account, one, 3, ask("later", 0, 1)) == {"later": 0}
    account.settle(one, [ask("later", 0, 0)], 3)
    assert parked(account, one, 1 + RESERVED_SECONDS, b=1.0) == ["b"]


def test_parked_flow_has_its_permit_before_later_flows() -> None:
    """Otherwise flows that do not wait yet would always get the next permit first."""
    account, now, starts = Account(), 100.0, list[str]()
    for turn in range(40):
        now += 0.3
        if "parked" not in starts and parked(account, HUNDRED, now, parked=1.0):
            answer = account.settle(HUNDRED, [ask("parked", 0, 1)], now)
            starts += ["parked"] * len(answer.permits["parked"])
        flow = f"flow {turn}"
        if account.settle(HUNDRED, [ask(flow, 0, 1)], now).permits[flow]:
            starts.append(flow)
        account.settle(HUNDRED, [ask(flow, 0, 0)], now)
    assert starts.index("parked") <= 2 and len(starts) >= 18


def test_parked_flow_keeps_its_turn_when_its_request_is_repeated() -> None:
    account, one = Account(), Quota(None, None, 1)
    account.settle(one, [ask("a", 0, 1)], 1)
    assert parked(account, one, 2, parked=1.0) == []
    account.settle(one, [ask("later", 0, 1)], 3)
    account.settle(one, [ask("a", 0, 0)], 4)
    assert parked(account, one, 4, parked=1.0) == ["parked"]
    assert given(account, one, 4, ask("later", 0, 1)) == {"later": 0}


def test_parked_flows_are_resumed_in_the_order_of_the_request() -> None:
    account, one = Account(), Quota(None, None, 1)
    account.settle(one, [ask("a", 0, 1)], 1)
    assert parked(account, one, 1, low=1.0) == []
    assert parked(account, one, 2, high=1.0) == []
    assert list(account.flows) == ["a", "low"], "one flow has a reservation"
    account.settle(one, [ask("a", 0, 0)], 3)
    assert parked(account, one, 3, high=1.0, low=1.0) == ["high"]
    assert parked(account, one, 3, low=1.0) == []


def test_large_cost_of_parked_flow_is_not_overtaken_forever() -> None:
    account, now = Account(), 6000.0
    account.settle(HUNDRED, [ask("first", 0, 1, (60.0,))], now)
    account.settle(HUNDRED, [ask("first", 0, 0)], now)
    now, small = now + 36, 0
    while not parked(account, HUNDRED, now, large=80.0) and now < 6200:
        answer = account.settle(HUNDRED, [ask("small", 0, 1, (1.0,))], now)
        small += len(answer.permits["small"])
        account.settle(HUNDRED, [ask("small", 0, 0)], now)
        now += 0.5
    assert small <= 1 and now <= 6000 + 62
    assert account.settle(HUNDRED, [ask("large", 0, 1, (80.0,))], now).permits["large"]


def test_parked_flows_of_all_costs_are_resumed_together_if_they_fit() -> None:
    account, fast = Account(), Quota("6000/m", 0.01, None)
    account.settle(fast, [ask("a", 0, 1, (5940.0,))], 6000.0)
    account.settle(fast, [ask("a", 0, 0)], 6000.0)
    assert parked(account, fast, 6059.5, b=20.0, c=0.5, d=30.0, e=20.0) == ["b", "c", "d"]


def test_parked_flow_whose_cost_is_above_the_limit_is_resumed_and_fails(account: Account) -> None:
    account.settle(HUNDRED, [ask("a", 0, 1, (100.0,))], 6000.0)
    assert parked(account, HUNDRED, 6001.0, b=101.0, c=1.0) == ["b"]


def test_end_of_a_reservation_delays_no_permit(account: Account) -> None:
    account.settle(TEN, [ask("a", 0, 1)], 100.0)
    assert parked(account, TEN, 100.5, gone=1.0) == ["gone"]
    assert account.settle(TEN, [ask("b", 0, 1)], 101 + RESERVED_SECONDS).permits["b"] == [0.0]


def test_run_of_a_flow_is_not_replaced_by_its_parked_request(account: Account) -> None:
    account.settle(TWO, [ask("a", 0, 1)], 1)
    assert parked(account, TWO, 2, a=1.0) == []
    assert account.flows["a"].held == 1
