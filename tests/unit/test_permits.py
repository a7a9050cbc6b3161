"""Accounts of limits: never more than they allow, the same share for each flow, nothing lost."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.support.waiting import until
from wbengine import task
from wbengine.permits import limits, stores
from wbengine.permits import renewer as renewers
from wbengine.permits.accounts import HORIZON, Account, PermitRequest
from wbengine.permits.limits import Quota

TWO = Quota(None, None, 2)
TEN = Quota("10/s", 0.1, None)


def given(account: Account, quota: Quota, now: float, *asks: PermitRequest) -> dict[str, int]:
    answer = account.settle(quota, asks, now)
    return {flow: len(permits) for flow, permits in answer.permits.items()}


def ask(flow: str, held: int, wanted: int, epoch: int = 1, seconds: float = 15.0) -> PermitRequest:
    return PermitRequest(flow, epoch, held, wanted, seconds)


def test_no_more_are_held_at_once_than_allowed() -> None:
    account = Account()
    assert given(account, TWO, 1, ask("a", 0, 5)) == {"a": 2}
    assert given(account, TWO, 2, ask("a", 2, 3)) == {"a": 0}
    assert given(account, TWO, 3, ask("a", 1, 3)) == {"a": 1}


def test_who_says_the_same_twice_changes_nothing() -> None:
    """An answer that was lost is given again: what a flow says it holds is what it holds."""
    account = Account()
    assert given(account, TWO, 1, ask("a", 0, 2)) == {"a": 2}
    assert given(account, TWO, 2, ask("a", 0, 2)) == {"a": 2}
    assert given(account, TWO, 2, ask("b", 0, 1)) == {"b": 0}


def test_each_flow_has_the_same_share() -> None:
    quota = Quota(None, None, 9)
    account = Account()
    assert given(account, quota, 1, ask("a", 0, 100)) == {"a": 9}
    assert given(account, quota, 1, ask("b", 0, 100)) == {"b": 0}
    assert given(account, quota, 1, ask("c", 0, 2)) == {"c": 0}
    held = {"a": 9, "b": 0, "c": 0}
    for _ in range(9):  # each of the first gives back one after the other
        held["a"] -= 1
        account.settle(quota, [ask("a", held["a"], 100)], 2)
        held = {flow: row.held for flow, row in account.flows.items()}
        for flow, wanted in (("b", 100 - held["b"]), ("c", 2 - held["c"])):
            account.settle(quota, [ask(flow, held[flow], wanted)], 2)
            held = {flow: row.held for flow, row in account.flows.items()}
    assert held["c"] == 2 and abs(held["a"] - held["b"]) <= 1 and sum(held.values()) == 9


def test_who_waits_for_the_only_permit_has_it_in_turn() -> None:
    one = Quota(None, None, 1)
    account = Account()
    turns: list[str] = []
    holder = None
    for now in range(40):
        for flow in ("a", "b", "c"):
            if holder == flow:
                holder = None
            got = given(account, one, now, ask(flow, 0, 50))[flow]
            if got:
                assert holder is None
                holder = flow
                turns.append(flow)
    counts = [turns.count(flow) for flow in ("a", "b", "c")]
    assert max(counts) - min(counts) <= 2 and sum(counts) >= 30


def test_permits_of_a_dead_flow_are_free_when_its_time_is_over() -> None:
    account = Account()
    assert given(account, TWO, 1, ask("dead", 0, 5, seconds=15)) == {"dead": 2}
    assert given(account, TWO, 15.9, ask("b", 0, 5)) == {"b": 0}
    assert given(account, TWO, 16.1, ask("b", 0, 5)) == {"b": 2}


def test_an_engine_that_lost_its_flow_has_nothing_to_say() -> None:
    account = Account()
    assert given(account, TWO, 1, ask("a", 1, 0, epoch=2)) == {"a": 0}
    assert given(account, TWO, 2, ask("a", 0, 0, epoch=1)) == {}
    assert given(account, TWO, 2, ask("a", 0, 5, epoch=1)) == {}
    assert account.flows["a"].held == 1
    assert given(account, TWO, 3, ask("a", 0, 2, epoch=3)) == {"a": 2}


def test_permits_of_a_rate_are_spaced() -> None:
    account = Account()
    (permits,) = account.settle(TEN, [ask("a", 0, 100)], 50.0).permits.values()
    assert permits == pytest.approx([number / 10 for number in range(11)])
    answer = account.settle(TEN, [ask("a", 11, 89)], 50.5)
    assert answer.permits["a"] == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])
    assert answer.again == pytest.approx(HORIZON / 2 + 0.1)


def test_what_was_not_used_of_a_rate_is_lost() -> None:
    account = Account()
    assert given(account, TEN, 1, ask("a", 0, 2)) == {"a": 2}
    (permits,) = account.settle(TEN, [ask("a", 0, 30)], 1000.0).permits.values()
    assert len(permits) == 11 and min(permits) == 0


def test_a_slow_rate_is_asked_for_when_the_next_is_near() -> None:
    quota = Quota("10/h", 360.0, None)
    account = Account()
    answer = account.settle(quota, [ask("a", 0, 5)], 0.0)
    assert answer.permits["a"] == [0.0]
    assert answer.again == 360 - HORIZON / 2
    assert given(account, quota, 358, ask("a", 0, 4)) == {"a": 0}
    assert account.settle(quota, [ask("a", 0, 4)], 359.5).permits["a"] == [0.5]


def test_a_clock_that_is_set_back_holds_up_nobody() -> None:
    account = Account()
    account.settle(TEN, [ask("a", 0, 5)], 1e9)
    (permits,) = account.settle(TEN, [ask("b", 0, 1)], 1e9 - 3600).permits.values()
    answer = account.settle(TEN, [ask("b", 0, 1)], 1e9 - 3600 + 0.5)
    assert permits or answer.permits["b"]


@pytest.mark.parametrize("seed", range(20))
def test_rates_and_shares_of_random_flows(seed: int) -> None:
    """As many as allowed begin in any window, and flows that wait get the same, whoever asks when.

    Each asks when it was told to, with up to 0.1 s of delay.
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
        assert answer.again is not None
        due[flow] = now + answer.again
        account = Account.from_dict(account.to_dict())
    starts.sort()
    for begin in (0.0, 7.3, 20.0):
        window = [flow for at, flow in starts if begin <= at < begin + 30]
        assert 30 * rate * 0.99 - 1 <= len(window) <= 30 * rate + 1
        if begin:
            counts = [window.count(flow) for flow in due]
            assert max(counts) - min(counts) <= rate * HORIZON + 1


def test_a_flow_that_died_does_not_stop_a_rate() -> None:
    """Its share is lost at most, and only until its time is over."""
    quota = Quota("50/s", 0.02, None)
    account = Account()
    now, begun = 0.0, 0
    account.settle(quota, [ask("dead", 0, 1000)], now)
    while now < 10:
        answer = account.settle(quota, [ask("b", 0, 1000)], now)
        begun += len(answer.permits["b"])
        assert answer.again is not None
        now += answer.again
    assert begun >= 10 * 50 * 0.5


def test_who_asks_often_gets_no_more() -> None:
    quota = Quota("50/s", 0.02, None)
    account = Account()
    got = {"often": 0, "seldom": 0}
    for step in range(6000):
        now = step / 100
        for flow in ("often", "seldom") if step % 50 == 0 else ("often",):
            got[flow] += len(account.settle(quota, [ask(flow, 0, 9999)], now).permits[flow])
    assert sum(got.values()) >= 59 * 50
    assert got["seldom"] >= 0.9 * got["often"]


def test_what_is_spare_is_given_back() -> None:
    """What nobody here waits for any more is somebody else's at once."""
    renewer, woken = renewers.PermitRenewer(stores.MemoryStore()), threading.Event()
    first = renewer.join("l", TWO, renewers.Member("a"), woken.set)
    first.want(2)
    until(lambda: first.ready == 2)
    second = renewer.join("l", TWO, renewers.Member("b"), woken.set)
    second.want(1)
    first.want(1)
    until(lambda: second.ready == 1)
    assert (first.held, first.ready) == (1, 1)
    renewer.leave([first, second])
    until(lambda: renewer.idle)


def test_a_store_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(stores.MemoryStore):
        failures = 2

        def settle(self, wants):  # type: ignore[no-untyped-def]
            if self.failures:
                self.failures -= 1
                raise OSError("it is away")
            return super().settle(wants)

    renewer = renewers.PermitRenewer(Failing())
    holder = renewer.join("l", TWO, renewers.Member("a"), lambda: None)
    holder.want(1)
    until(lambda: holder.ready == 1, within=3)
    assert "it is away" in caplog.text
    renewer.leave([holder])


def test_what_is_not_taken_of_a_rate_is_lost() -> None:
    """A run loop that is busy for long begins no more than a moment's worth after it."""
    now = 0.0
    renewer = renewers.PermitRenewer(stores.MemoryStore(), lambda: now)
    holder = renewers.Holder(renewer, "l", TEN, renewers.Member("a"), lambda: None)
    holder.want(200)
    for now in range(5):
        holder.add([number / 10 for number in range(10)], now)
        assert holder.collect_due(now + 1)
    assert (holder.ready, holder.held) == (5, 5)
    assert holder.request().wanted == 195


def test_permits_are_renewed() -> None:
    store = stores.MemoryStore()
    renewer = renewers.PermitRenewer(store)
    holder = renewer.join("l", TWO, renewers.Member("a", seconds=0.3), lambda: None)
    holder.want(2)
    until(lambda: holder.ready == 2)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        account, now = store.all()["l"]
        assert account.live(now)["a"].held == 2
        time.sleep(0.02)
    renewer.leave([holder])
    assert store.all() == {}


def limit(**options: object) -> limits.Limit:
    made = task.task(**options)(_call)()  # type: ignore[call-overload]
    return limits.limit_of(made, "task 'c'", "c", {"customer", "n"})


def _call(customer: str, n: int) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate_limit": "100/x"}, "a number from 1 per s, m, h or d, such as '100/m', not '100/x'"),
        ({"rate_limit": "0/s"}, "not '0/s'"),
        ({"rate_limit": "1.5/s"}, "not '1.5/s'"),
        ({"rate_limit": 100}, "not 100"),
        ({"rate_limit": "100/m\n"}, "rate_limit"),
        ({"concurrency": 0}, "a whole number from 1, not 0"),
        ({"concurrency": True}, "not True"),
        ({"concurrency": 1.0}, r"not 1\.0"),
        ({"concurrency": 1, "concurrency_key": "customer"}, "function of its arguments"),
        ({"concurrency": 1, "concurrency_key": lambda custom: 1}, "did you mean 'customer'"),
        ({"concurrency_key": lambda customer: 1}, "neither rate_limit nor concurrency"),
        ({"concurrency": 1, "limit": ""}, "named by a text"),
        ({"limit": "shop"}, "The limit of a task limits nothing"),
    ],
)
def test_wrong_limits_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        limit(**options)


def test_limits_are_counted_by_their_key() -> None:
    made = limit(rate_limit="100/m", concurrency=10, concurrency_key=lambda customer: customer)
    assert (made.quota.interval, made.quota.label) == (0.6, "100/m, 10 at once")
    assert made.id_of({"customer": "x", "n": 1}) == "c[x]"
    assert len(made.id_of({"customer": "x" * 999})) == 200
    assert made.id_of({"customer": "x" * 999}) != made.id_of({"customer": "x" * 998})


def test_no_secret_is_in_the_name_of_a_limit() -> None:
    """It is kept in stores, and shown."""
    made = limits.Limit("c", key=lambda api_token: api_token, takes=("api_token",))
    found = made.id_of({"api_token": "sk_live"})
    assert "sk_live" not in found and found.startswith("c[#")
    assert found == made.id_of({"api_token": "sk_live"}) != made.id_of({"api_token": "sk_test"})


@pytest.mark.parametrize("key", [object(), ["a"], 1.5, ("a", b"b"), {"a": 1}])
def test_keys_are_plain(key: object) -> None:
    """What is the same has the same key: no address is counted by, and no coroutine."""
    made = limit(concurrency=1, concurrency_key=lambda customer: key)
    with pytest.raises(TypeError, match=f"'c' returned a {type(key).__name__}: it is a text"):
        made.id_of({"customer": "x"})


@pytest.mark.parametrize("key", ["a", 7, True, None, ("a", (7, None))])
def test_plain_keys_are_counted_by(key: object) -> None:
    made = limit(concurrency=1, concurrency_key=lambda customer: key)
    assert made.id_of({"customer": "x"}) == f"c[{key}]"


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "a\nb", "\x1b[2J"])
def test_keys_are_texts_that_every_store_can_keep(text: str) -> None:
    made = limit(concurrency=1, concurrency_key=lambda customer: customer)
    found = made.id_of({"customer": text})
    assert found.isprintable() and found.encode()
    assert found != made.id_of({"customer": text * 2})


def test_a_key_of_a_class_is_no_method() -> None:
    class Call(task.Task):
        concurrency = 3
        concurrency_key = lambda customer: customer  # noqa: E731

        def execute(self, customer: str) -> None: ...

    made = limits.limit_of(Call(), "task", "Call", {"customer"})
    assert made.id_of({"customer": 5}) == "Call[5]"
