"""Numbers of received messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wbengine.engines.worker_based._requests.seen_numbers import SeenNumbers


@given(st.lists(st.integers(0, 12)))
def test_number_counts_once_in_any_order(numbers: list[int]) -> None:
    seen, expected = SeenNumbers(), set[int]()
    for number in numbers:
        assert seen.add(number) == (number not in expected)
        expected.add(number)
