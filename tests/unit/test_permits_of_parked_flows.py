"""Accounts of limits with parked flows: which can be resumed, and which permits are reserved."""

from __future__ import annotations

import pytest

from wbengine._limits.permit_sharing import RESERVED_SECONDS, Account, PermitRequest
from wbengine._tasks.limit_attributes import Quota

TWO = Quota(None, None, 2)
TEN = Quota("10/s", 0.1, None)
HUNDRED = Quota("100/m", 0.6, None)


def ask(flow: str, held: int, wanted: int, costs: tuple[float, ...] = ()) -> PermitRequest:
    return PermitRequest(flow, 1, held, wanted, 15.0, costs)


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
    assert account.settle(one, [ask("later", 0, 1)], 3).permits["later"] == []
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
    assert account.settle(one, [ask("later", 0, 1)], 4).permits["later"] == []


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


def test_parked_flow_whose_cost_is_above_the_limit_is_resumed_and_fails() -> None:
    account = Account()
    account.settle(HUNDRED, [ask("a", 0, 1, (100.0,))], 6000.0)
    assert parked(account, HUNDRED, 6001.0, b=101.0, c=1.0) == ["b"]


def test_end_of_a_reservation_delays_no_permit() -> None:
    account = Account()
    account.settle(TEN, [ask("a", 0, 1)], 100.0)
    assert parked(account, TEN, 100.5, gone=1.0) == ["gone"]
    assert account.settle(TEN, [ask("b", 0, 1)], 101 + RESERVED_SECONDS).permits["b"] == [0.0]


def test_run_of_a_flow_is_not_replaced_by_its_parked_request() -> None:
    account = Account()
    account.settle(TWO, [ask("a", 0, 1)], 1)
    assert parked(account, TWO, 2, a=1.0) == []
    assert account.flows["a"].held == 1
