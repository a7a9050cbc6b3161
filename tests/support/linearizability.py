"""A checker of linearizability: it searches one order of recorded operations that a model allows.

The order must be that of real time for operations that did not overlap. The algorithm is that of
Wing and Gong, and remembers the states that it has reached, as Lowe proposed. An operation without
a reply may happen at any time after its start, or never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Reply of an operation whose process was killed.
UNKNOWN: Final = object()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, and its start and end on a clock that all processes share."""

    process: str
    name: str
    arguments: tuple[Any, ...]
    started: float
    ended: float = math.inf
    reply: Any = UNKNOWN

    def __str__(self) -> str:
        reply = "no reply" if self.reply is UNKNOWN else repr(self.reply)
        arguments = ", ".join(map(repr, self.arguments))
        times = f"{self.started:.6f} to {self.ended:.6f}"
        return f"{self.process} {self.name}({arguments}) -> {reply}, {times}"


#: Returns the possible replies of an operation in a state, each with the next state.
Step = Callable[[Any, Operation], Sequence[tuple[Any, Hashable]]]
#: The performed operations, as bits, and the state after them.
_Point = tuple[int, Hashable]


@dataclass(frozen=True, slots=True)
class Violation:
    """A history that is not linearizable: the longest order, its last state, and the others.

    None of the operations that could be `next` has a reply that the model allows in this state.
    """

    order: Sequence[Operation]
    state: Hashable
    next: Sequence[Operation]

    def __str__(self) -> str:
        return "\n".join(
            (*map(str, self.order), f"state: {self.state}", *(f"not next: {o}" for o in self.next))
        )


def find_violation(history: Sequence[Operation], step: Step, state: Hashable) -> Violation | None:
    """Return None if the operations are linearizable, beginning with this state."""
    operations = sorted(history, key=lambda operation: operation.started)
    start = longest = 0, state
    # Each point, with the one before and the operation between them.
    origins: dict[_Point, tuple[_Point, int] | None] = {start: None}
    waiting: list[_Point] = [start]
    while waiting:
        point = waiting.pop()
        if point[0].bit_count() > longest[0].bit_count():
            longest = point
        candidates = _candidates(operations, point[0])
        if all(operations[index].reply is UNKNOWN for index in candidates):
            return None
        for successor, index in _successors(operations, step, point, candidates):
            if successor not in origins:
                origins[successor] = point, index
                waiting.append(successor)
    order = []
    point = longest
    while (origin := origins[point]) is not None:
        point, index = origin
        order.append(operations[index])
    following = [operations[index] for index in _candidates(operations, longest[0])]
    return Violation(order[::-1], longest[1], following)


def _candidates(operations: Sequence[Operation], done: int) -> list[int]:
    """Return the operations that started before any of the others ended.

    The most promising is the last one: it has a reply, and its end is the earliest.
    """
    indexes: list[int] = []
    first_end = math.inf
    others = ~done & ((1 << len(operations)) - 1)
    while others:  # Only these: operations without a reply stay among them from their start on.
        lowest = others & -others
        index = lowest.bit_length() - 1
        if operations[index].started > first_end:
            break
        indexes.append(index)
        first_end = min(first_end, operations[index].ended)
        others ^= lowest
    return sorted(indexes, key=lambda index: operations[index].ended, reverse=True)


def _successors(
    operations: Sequence[Operation], step: Step, point: _Point, candidates: Sequence[int]
) -> Iterator[tuple[_Point, int]]:
    done, state = point
    for index in candidates:
        operation = operations[index]
        for reply, successor in step(state, operation):
            if operation.reply is UNKNOWN:
                is_possible = successor != state  # Otherwise, it may as well never happen.
            else:
                is_possible = reply == operation.reply
            if is_possible:
                yield (done | 1 << index, successor), index
