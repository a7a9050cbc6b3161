"""The checks of orders that are reverted during kills."""

from __future__ import annotations

import pytest

from tests.chaos import orders
from tests.chaos.orders import DO, EFFECTS, UNDO, Row

ALL = [Row("flow1", DO, effect) for effect in EFFECTS]
REVERSED = [Row("flow1", UNDO, effect) for effect in reversed(EFFECTS)]


def problems(rows: list[Row]) -> list[str]:
    return [text.partition(": ")[2] for text in orders.judge_effects("flow1", rows)]


def test_effects_in_reverse_order_are_right() -> None:
    assert problems(ALL + REVERSED) == []
    parcels = [Row("flow1", UNDO, f"pack{number}") for number in (1, 0, 2)]
    assert problems([*ALL, *REVERSED[:2], *parcels, *REVERSED[-1:]]) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (ALL + REVERSED[1:], "undo book happened 0 times, not 1"),
        (ALL + REVERSED + REVERSED[:1], "undo book happened 2 times, not 1"),
        (ALL[1:] + REVERSED, "do reserve happened 0 times, not 1"),
        (ALL + REVERSED[1::-1] + REVERSED[2:], "charge was undone before book"),
        (ALL[:-1] + REVERSED[1:2] + ALL[-1:] + REVERSED[:1] + REVERSED[2:],
         "charge was undone before the order was complete"),
    ],
)  # fmt: skip
def test_wrong_effects_are_problems(rows: list[Row], problem: str) -> None:
    assert problem in problems(rows)


def test_order_that_is_not_selected_must_stay_complete() -> None:
    rows = [row._replace(order="flow4") for row in [*ALL, *REVERSED[:1]]]
    assert list(orders.judge_effects("flow4", rows)) == ["flow4: undo book happened 1 times, not 0"]


def test_missed_and_repeated_reversions_are_counted() -> None:
    rows = [*ALL, *REVERSED[1:], REVERSED[1]]
    counts = orders.count_reversions(["flow1", "flow4"], rows)
    assert counts == {"undone": 6, "missed": 1, "twice": 1}
    assert orders.effects_to_undo(10) == 8 * len(EFFECTS)
