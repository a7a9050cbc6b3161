"""The check of linearizability of histories, and the model of a row."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crashing.histories import model
from tests.support.linearizability import UNKNOWN, Operation, find_violation

#: Operations of this length overlap the next one.
_LONG = 1.5


def history(*operations: tuple[Any, ...]) -> list[Operation]:
    """Return operations (duration, reply, name, arguments...), of which one starts each second."""
    return [
        Operation(
            "p", name, tuple(arguments), start, float("inf") if reply is UNKNOWN else start + lasts,
            reply,
        )
        for start, (lasts, reply, name, *arguments) in enumerate(operations)
    ]  # fmt: skip


def granted(holder: str, epoch: int = 1) -> tuple[Any, ...]:
    return ["GRANTED", epoch, None, holder], "claim", epoch, holder


OPEN = (0.5, None, "open", 1)
CLAIMED = [1, "claimed", "a", None]


@pytest.mark.parametrize(
    "operations",
    [
        [OPEN, (0.5, *granted("a")), (0.5, True, "finish", 1, "a", "r"),
         (0.5, "r", "reopen", 2), (0.5, None, "drop"), (0.5, None, "state")],
        [OPEN, (_LONG, *granted("a")), (0.5, [1, "open", None, None], "state")],
        [OPEN, (_LONG, *granted("a")), (0.5, CLAIMED, "state")],
        [OPEN, (_LONG, *granted("a")), (_LONG, None, "reopen", 2), (0.5, *granted("b", 2))],
    ],
)  # fmt: skip
def test_order_of_operations_is_found(operations: Any) -> None:
    assert find_violation(history(*operations), model.step, None) is None


@pytest.mark.parametrize("seen", [[1, "open", None, None], CLAIMED])
def test_operation_without_reply_happens_later_or_never(seen: Any) -> None:
    operations = [OPEN, (0, UNKNOWN, "claim", 1, "a"), (0.5, [1, "open", None, None], "state"),
                  (0.5, seen, "state")]  # fmt: skip
    assert find_violation(history(*operations), model.step, None) is None


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param([OPEN, (_LONG, *granted("a")), (0.5, *granted("b"))], id="two grants"),
        pytest.param([OPEN, (0.5, *granted("a")), (0.5, [1, "open", None, None], "state")],
                     id="late read of an earlier state"),
        pytest.param([OPEN, (0.5, [1, "claimed", "a", None], "state"),
                      (0, UNKNOWN, "claim", 1, "a")], id="effect before the start"),
        pytest.param([OPEN, (0.5, *granted("a")), (0.5, None, "reopen", 2),
                      (0.5, *granted("a", 2)), (0.5, True, "finish", 1, "a", "r")],
                     id="result of an earlier epoch"),
        pytest.param([OPEN, (0.5, *granted("a")), (0.5, True, "finish", 1, "a", "r"),
                      (0.5, None, "reopen", 2), (0.5, [2, "open", None, None], "state")],
                     id="result was lost"),
        pytest.param([OPEN, (0.5, *granted("a")), (0.5, True, "revoke", None)],
                     id="claimed request was revoked"),
    ],
)  # fmt: skip
def test_history_without_possible_order_is_reported(operations: Any) -> None:
    assert find_violation(history(*operations), model.step, None) is not None


def test_operations_without_reply_or_effect_do_not_multiply_the_search() -> None:
    steps: list[Operation] = []

    def step(row: model.Row | None, operation: Operation) -> Any:
        steps.append(operation)
        assert len(steps) < 1000
        return model.step(row, operation)

    missed = [(0, UNKNOWN, "claim", epoch, "dead") for epoch in range(2, 32)]
    operations = history(OPEN, *missed, (0.5, *granted("a")), (0.5, *granted("b")))
    assert find_violation(operations, step, None) is not None


def test_violation_shows_longest_order_and_next_operations() -> None:
    operations = history(OPEN, (0.5, *granted("a")), (0.5, *granted("b")), (0.5, None, "drop"))
    violation = find_violation(operations, model.step, None)
    assert violation is not None
    assert violation.order == operations[:2] and violation.next == operations[2:3]
    assert violation.state == (1, "claimed", "a", None)
    assert "not next: p claim(1, 'b') -> ['GRANTED', 1, None, 'b']" in str(violation)
