"""Which items of a Map go next, what came back, and what it amounts to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import invocation, states
from wbengine.persistence import models
from wbengine.runtime import maps
from wbengine.types import failure as ft

ALL = 10**6


def failure(text: str = "no") -> ft.Failure:
    return ft.Failure.from_exception(ValueError(text))


def made(count: int, limit: int | None = None, **options: Any) -> maps.Fanout:
    action = options.pop("action", invocation.EXECUTE)
    return maps.Fanout(models.Items(1, range(count)), action, limit, **options)


def take(fan: maps.Fanout, most: int = ALL) -> list[int]:
    return [item.index for item in fan.take(most)]


def end(fan: maps.Fanout, index: int, value: Any = None) -> models.ItemDetail:
    return fan.put(index, invocation.Outcome(value, "w", 1.0, 2.0))


def test_without_a_limit_all_go_at_once() -> None:
    """In the order of the items; the results keep it, whatever the order of finishing."""
    fan = made(3)
    assert take(fan) == [0, 1, 2] and take(fan) == []
    for index in (2, 0, 1):
        assert not fan.over
        end(fan, index, index * 10)
    assert fan.over and fan.decided and fan.value == [0, 10, 20]
    assert [item.order for item in fan.items] == [2, 3, 1]
    assert (fan.items[2].worker, fan.items[2].started, fan.items[2].ended) == ("w", 1.0, 2.0)


def test_a_limit_is_never_exceeded_and_always_used() -> None:
    """Whatever comes back makes room."""
    fan = made(5, 2)
    assert take(fan) == [0, 1] and not fan.hungry
    end(fan, 1)
    assert fan.hungry and take(fan) == [2] and take(fan) == []
    end(fan, 0)
    end(fan, 2)
    assert take(fan, 1) == [3] and fan.hungry and take(fan) == [4]


def test_no_items_are_over_at_once() -> None:
    """There is nothing to wait for."""
    fan = made(0)
    assert fan.over and fan.decided and fan.value == [] and not fan.hungry


def test_a_failure_ends_it_once_nothing_is_under_way() -> None:
    """Nothing more is handed out; the first failure counts."""
    fan = made(5, 3)
    take(fan)
    end(fan, 1, failure("first"))
    assert not fan.over and not fan.hungry and take(fan) == []
    end(fan, 0, failure("second"))
    end(fan, 2, 7)
    assert fan.over and fan.decided
    assert fan.value.exception_str == "first"
    assert [item.state for item in fan.items] == [
        states.FAILURE, states.FAILURE, states.SUCCESS, states.PENDING, states.PENDING,
    ]  # fmt: skip


def test_collected_failures_take_their_places() -> None:
    """They end nothing."""
    fan = made(3, 1, collect=True)
    for value in (0, failure(), 2):
        (item,) = fan.take(1)
        end(fan, item.index, value)
    assert fan.over and fan.value[0] == 0 and fan.value[2] == 2
    assert isinstance(fan.value[1], ft.Failure)


def test_spoiling_stops_it_before_the_outcome_is_there() -> None:
    """Whoever sees the failure first may say so; where failures are collected it means nothing."""
    fan, collecting = made(3, 1), made(3, 1, collect=True)
    for each in (fan, collecting):
        take(each)
        each.spoil()
        end(each, 0)
    assert take(fan) == [] and fan.over and not fan.decided
    assert take(collecting) == [1]


def test_what_is_given_back_waits_again() -> None:
    """It is not done, and can be stopped for."""
    fan = made(3)
    take(fan)
    end(fan, 1)
    fan.give_back(2)
    fan.give_back(0)
    assert fan.idle and fan.hungry and not fan.over and not fan.decided
    fan.stop()
    assert fan.over and not fan.decided and fan.done == 1


def finished(*orders: int, bad: int = -1) -> models.Items:
    """Items that finished in this order (0: not at all)."""
    items = models.Items(1, range(len(orders)))
    for item, order in zip(items, orders, strict=True):
        if order:
            item.order = order
            if item.index == bad:
                item.put(states.FAILURE, failure())
            else:
                item.put(states.SUCCESS, item.index)
    return items


def test_it_goes_on_with_what_is_missing() -> None:
    """Counts, orders and results go on from what is recorded."""
    fan = maps.Fanout(finished(2, 0, 1, 0), invocation.EXECUTE, 1)
    assert (fan.done, fan.total) == (2, 4)
    assert take(fan) == [1]
    assert end(fan, 1, 1).order == 3
    assert take(fan) == [3]
    end(fan, 3, 3)
    assert fan.value == [0, 1, 2, 3]


def test_a_recorded_failure_still_ends_it() -> None:
    """Unless failures are collected."""
    fan = maps.Fanout(finished(2, 0, 1, bad=2), invocation.EXECUTE)
    assert fan.over and isinstance(fan.value, ft.Failure)
    fan = maps.Fanout(finished(2, 0, 1, bad=2), invocation.EXECUTE, collect=True)
    assert take(fan) == [1]


def test_reverting_goes_from_the_latest_to_the_first() -> None:
    """Of those that finished, however they did; the others are left alone."""
    fan = maps.Fanout(finished(2, 0, 3, 1, bad=3), invocation.REVERT, 2)
    assert take(fan) == [2, 0]
    end(fan, 2, "x")
    assert take(fan) == [3]
    end(fan, 3, "y")
    end(fan, 0, "z")
    assert fan.over and fan.decided and fan.value == ["z", None, "x", "y"]
    assert fan.items[3].failure is not None and fan.items[3].state == states.REVERTED


def test_a_failed_reversion_ends_the_reverting() -> None:
    """Also when the failures of executing are collected."""
    fan = maps.Fanout(finished(1, 2, 3), invocation.REVERT, 1, collect=True)
    take(fan)
    end(fan, 2, failure("stuck"))
    assert fan.over and fan.value.exception_str == "stuck"
    again = maps.Fanout(fan.items, invocation.REVERT, 1)
    assert again.over and again.value.exception_str == "stuck"


@given(st.integers(0, 30), st.none() | st.integers(1, 7), st.booleans(), st.data())
def test_whatever_happens(count: int, limit: int | None, collect: bool, data: Any) -> None:
    """Each item is handed out once, never more than the limit, and it always comes to an end."""
    items = models.Items(1, range(count))
    fan = maps.Fanout(items, invocation.EXECUTE, limit, collect=collect)
    out: list[int] = []
    handed: list[int] = []
    failed: list[int] = []
    while not fan.over:
        new = take(fan, data.draw(st.integers(1, 9)))
        handed += new
        out += new
        assert limit is None or len(out) <= limit
        index = out.pop(data.draw(st.integers(0, len(out) - 1)))
        if data.draw(st.integers(0, 9)) == 0:
            failed.append(index)
            end(fan, index, failure(str(index)))
        else:
            end(fan, index, index)
        if data.draw(st.integers(0, 5)) == 0:  # somebody reads it back and goes on
            for other in out:
                fan.give_back(other)
                handed.remove(other)
            out.clear()
            fan = maps.Fanout(items.copy(), invocation.EXECUTE, limit, collect=collect)
            items = fan.items
    assert len(set(handed)) == len(handed)
    if collect or not failed:
        assert sorted(handed) == list(range(count)) and len(fan.value) == count
        assert [n for n, value in enumerate(fan.value) if value != n] == sorted(failed)
    else:
        assert fan.value.exception_str == str(failed[0])


@pytest.mark.parametrize("size", [100, 10_000])
def test_the_cost_of_an_item_does_not_grow(size: int) -> None:
    """Taking touches what it returns; ending touches one."""

    class Counting(models.Items):
        __slots__ = ("touched",)

        def __getitem__(self, index: int) -> models.ItemDetail:
            self.touched += 1
            return super().__getitem__(index)

    items = Counting(1, range(size))
    items.touched = 0
    fan = maps.Fanout(items, invocation.EXECUTE, 4)
    waiting: list[int] = []
    while not fan.over:
        waiting += take(fan)
        end(fan, waiting.pop(0), 1)
    assert items.touched == 2 * size


def test_what_may_be_under_way_is_handed_out_although_another_failed() -> None:
    """As many as an earlier run may have handed out, and no more."""
    items = models.Items(1, range(6))
    items[1].put(states.FAILURE, failure())
    fan = maps.Fanout(items, invocation.EXECUTE, 3, doubtful=True)
    assert fan.hungry and fan.in_doubt and not fan.over
    assert take(fan) == [0, 2, 3]
    assert not fan.hungry and not fan.in_doubt
    fan.give_back(2, doubtful=True)  # not in this run
    assert fan.in_doubt and take(fan) == [2]
    fan.give_back(2)  # it was found out that it did not start
    assert not fan.hungry and not fan.in_doubt
    end(fan, 0)
    assert not fan.over
    end(fan, 3)
    assert fan.over and fan.decided


def test_what_may_be_under_way_is_handed_out_although_one_of_it_failed() -> None:
    fan = made(4, 2, doubtful=True)
    assert take(fan, 1) == [0]
    end(fan, 0, failure())
    assert not fan.over and take(fan) == [1]
    end(fan, 1)
    assert fan.over
