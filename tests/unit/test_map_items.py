"""Order, limits and results of the items of a Map."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import states
from wbengine._calls import invocation
from wbengine._runtime import maps
from wbengine.persistence import models
from wbengine.types import failure as ft

ALL = 10**6


def failure(text: str = "no") -> ft.Failure:
    return ft.Failure.from_exception(ValueError(text))


def made(count: int, limit: int | None = None, **options: Any) -> maps.Fanout:
    action = options.pop("action", invocation.EXECUTE)
    return maps.Fanout(models.Items(1, range(count)), action, limit, **options)


def take(fanout: maps.Fanout, most: int = ALL) -> list[int]:
    return [item.index for item in fanout.take(most)]


def end(fanout: maps.Fanout, index: int, value: Any = None) -> models.ItemDetail:
    return fanout.put(index, invocation.Outcome(value, "w", 1.0, 2.0))


def test_item_failed_stops_other_items_before_its_result_arrives() -> None:
    """If failures are collected, a failed item does not stop the others."""
    fanout, collecting = made(3, 1), made(3, 1, collect=True)
    for each in (fanout, collecting):
        take(each)
        each.item_failed()
        end(each, 0)
    assert take(fanout) == [] and fanout.over and not fanout.decided
    assert take(collecting) == [1]


def finished(*orders: int, bad: int = -1) -> models.Items:
    """Return items that finished in this order (0: not finished)."""
    items = models.Items(1, range(len(orders)))
    for item, order in zip(items, orders, strict=True):
        if order:
            item.order = order
            if item.index == bad:
                item.put(states.FAILURE, failure())
            else:
                item.put(states.SUCCESS, item.index)
    return items


def test_recorded_item_failure_ends_map_unless_collected() -> None:
    fanout = maps.Fanout(finished(2, 0, 1, bad=2), invocation.EXECUTE)
    assert fanout.over and isinstance(fanout.value, ft.Failure)
    fanout = maps.Fanout(finished(2, 0, 1, bad=2), invocation.EXECUTE, collect=True)
    assert take(fanout) == [1]


def test_failed_item_reversion_ends_map_reversion() -> None:
    """The option `collect` does not affect reversions."""
    fanout = maps.Fanout(finished(1, 2, 3), invocation.REVERT, 1, collect=True)
    take(fanout)
    end(fanout, 2, failure("stuck"))
    assert fanout.over and fanout.value.exception_str == "stuck"
    again = maps.Fanout(fanout.items, invocation.REVERT, 1)
    assert again.over and again.value.exception_str == "stuck"


@given(st.integers(0, 30), st.none() | st.integers(1, 7), st.booleans(), st.data())
def test_map_hands_out_each_item_once_within_limit_and_ends(
    count: int, limit: int | None, collect: bool, data: Any
) -> None:
    items = models.Items(1, range(count))
    fanout = maps.Fanout(items, invocation.EXECUTE, limit, collect=collect)
    out: list[int] = []
    handed: list[int] = []
    failed: list[int] = []
    while not fanout.over:
        new = take(fanout, data.draw(st.integers(1, 9)))
        handed += new
        out += new
        assert limit is None or len(out) <= limit
        index = out.pop(data.draw(st.integers(0, len(out) - 1)))
        if data.draw(st.integers(0, 9)) == 0:
            failed.append(index)
            end(fanout, index, failure(str(index)))
        else:
            end(fanout, index, index)
        if data.draw(st.integers(0, 5)) == 0:  # another engine resumes from the records
            for other in out:
                fanout.return_item(other)
                handed.remove(other)
            out.clear()
            fanout = maps.Fanout(items.copy(), invocation.EXECUTE, limit, collect=collect)
            items = fanout.items
    assert len(set(handed)) == len(handed)
    if collect or not failed:
        assert sorted(handed) == list(range(count)) and len(fanout.value) == count
        assert [n for n, value in enumerate(fanout.value) if value != n] == sorted(failed)
    else:
        assert fanout.value.exception_str == str(failed[0])


@pytest.mark.parametrize("size", [100, 10_000])
def test_cost_per_item_does_not_grow_with_map_size(size: int) -> None:
    """Each item is read once when it is taken, and once when it ends."""

    class Counting(models.Items):
        __slots__ = ("touched",)

        def __getitem__(self, index: int) -> models.ItemDetail:
            self.touched += 1
            return super().__getitem__(index)

    items = Counting(1, range(size))
    items.touched = 0
    fanout = maps.Fanout(items, invocation.EXECUTE, 4)
    waiting: list[int] = []
    while not fanout.over:
        waiting += take(fanout)
        end(fanout, waiting.pop(0), 1)
    assert items.touched == 2 * size


def test_items_maybe_sent_earlier_are_handed_out_after_a_failure() -> None:
    """The number is limited to the items that an earlier run may have sent."""
    items = models.Items(1, range(6))
    items[1].put(states.FAILURE, failure())
    fanout = maps.Fanout(items, invocation.EXECUTE, 3, maybe_sent=True)
    assert fanout.can_take and fanout.may_be_under_way and not fanout.over
    assert take(fanout) == [0, 2, 3]
    assert not fanout.can_take and not fanout.may_be_under_way
    fanout.return_item(2, maybe_sent=True)  # an earlier run may have sent it
    assert fanout.may_be_under_way and take(fanout) == [2]
    fanout.return_item(2)  # it did certainly not start
    assert not fanout.can_take and not fanout.may_be_under_way
    end(fanout, 0)
    assert not fanout.over
    end(fanout, 3)
    assert fanout.over and fanout.decided


def test_items_maybe_sent_earlier_are_handed_out_if_one_of_them_fails() -> None:
    fanout = made(4, 2, maybe_sent=True)
    assert take(fanout, 1) == [0]
    end(fanout, 0, failure())
    assert not fanout.over and take(fanout) == [1]
    end(fanout, 1)
    assert fanout.over


def test_returned_item_that_was_lost_is_submitted_again_after_the_end() -> None:
    """An earlier copy may have run, so its result has to be known before the reversion."""
    fanout = made(3, 2)
    assert take(fanout) == [0, 1]
    fanout.stop()
    fanout.return_item(1, maybe_sent=True, lost=True)
    fanout.return_item(0)
    assert fanout.may_be_under_way and not fanout.over
    assert take(fanout) == [1] and fanout.lost == {1}
    end(fanout, 1, failure())
    assert fanout.over and fanout.done == 1
