"""The check of linearizability agrees with an oracle that tries all orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.crashing.histories import model
from tests.support.linearizability import UNKNOWN, Operation, find_violation

_CALLS = st.one_of(
    st.tuples(st.sampled_from(["open", "reopen", "revoke"]), st.tuples(st.integers(1, 2))),
    st.tuples(st.just("claim"), st.tuples(st.integers(1, 2), st.sampled_from("ab"))),
    st.tuples(st.just("finish"), st.tuples(st.integers(1, 2), st.sampled_from("ab"), st.just("r"))),
    st.tuples(st.sampled_from(["drop", "state"]), st.just(())),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Return operations with replies of an execution one after another, and with other times."""
    state: Any = None
    operations = []
    for place, (name, arguments) in enumerate(draw(st.lists(_CALLS, min_size=1, max_size=6))):
        ((reply, state),) = model.step(state, Operation("p", name, arguments, 0))
        started = place - draw(st.floats(0, 2))
        ended = place + draw(st.floats(0, 2))
        if draw(st.integers(0, 5)) == 0:
            reply, ended = UNKNOWN, math.inf
        elif draw(st.integers(0, 5)) == 0:
            started, ended = started + 2, ended + 2
        operations.append(Operation("p", name, arguments, started, ended, reply))
    return operations


def is_linearizable(operations: Sequence[Operation]) -> bool:
    certain = [each for each in operations if each.reply is not UNKNOWN]
    others = [each for each in operations if each.reply is UNKNOWN]
    return any(
        is_order(order)
        for count in range(len(others) + 1)
        for some in itertools.combinations(others, count)
        for order in itertools.permutations([*certain, *some])
    )


def is_order(order: Sequence[Operation]) -> bool:
    state: Any = None
    for place, operation in enumerate(order):
        if any(later.ended < operation.started for later in order[place:]):
            return False
        ((reply, state),) = model.step(state, operation)
        if operation.reply is not UNKNOWN and reply != operation.reply:
            return False
    return True


@given(histories())
def test_check_agrees_with_all_orders(operations: list[Operation]) -> None:
    violation = find_violation(operations, model.step, None)
    assert (violation is None) == is_linearizable(operations)
