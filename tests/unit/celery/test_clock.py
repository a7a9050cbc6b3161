"""Lamport's clock."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kombu import clocks

from wbengine.interop.celery import clock


def test_it_only_goes_forward() -> None:
    made = clock.Clock()
    assert [made.forward(), made.forward(), made.adjust(1), made.adjust(10)] == [1, 2, 3, 11]
    assert (made.forward(), made.value) == (12, 12)
    assert repr(made) == "<Clock 12>"


def test_it_counts_as_kombus() -> None:
    ours, theirs = clock.Clock(5), clocks.LamportClock(5)
    for heard in (None, 3, 5, 6, 7, None, 100, 0, 101, None):
        if heard is None:
            assert ours.forward() == theirs.forward()
        else:
            assert ours.adjust(heard) == theirs.adjust(heard)


@pytest.mark.parametrize(
    "nonsense", [None, "7", 7.5, True, -3, 2**63, 10**400, [], {}, float("nan")]
)
def test_nonsense_is_counted_and_not_believed(nonsense: Any) -> None:
    made = clock.Clock(1)
    assert made.adjust(nonsense) == 2


def test_the_highest_that_is_believed() -> None:
    made = clock.Clock()
    assert made.adjust(clock.LARGEST) == clock.LARGEST + 1


def test_no_two_threads_get_the_same() -> None:
    made = clock.Clock()
    found: list[int] = []

    def count() -> None:
        mine = [made.forward() for _ in range(2000)]
        found.extend(mine)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 8001))
