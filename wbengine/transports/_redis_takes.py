"""What a consumer took from a Redis, as far as he does not know of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from wbengine.transports._store import Taken


class Order(NamedTuple):
    """A take with the end of others: for whom, which, when it was asked for, and how."""

    who: str
    number: str
    at: float
    told: tuple[Any, ...]


class Takes:
    """The takes of one consumer; any thread.

    What came with an answer that he did not hear, and what he heard of and nobody saw, goes back
    when he leaves, as if it had never been taken.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        # `TAKE`, or `TAKE:NUMBER` of a message.
        self._left: set[str] = set()

    def begin(self) -> str:
        """The number of a take, whose answer is not heard until it is said to `end`."""
        number = str(next(self._numbers))
        self._left.add(number)
        return number

    def end(self, number: str, left: Sequence[Taken] = ()) -> None:
        """Its answer was heard, and all but those `left` is looked at."""
        for taken in left:
            self.miss(taken)
        self._left.discard(number)

    def miss(self, taken: Taken) -> None:
        """Nobody looks at it, until it `went` back."""
        self._left.add(_name(taken))

    def went(self, taken: Taken) -> None:
        """It went back."""
        self._left.discard(_name(taken))

    def left(self) -> str:
        """As the script `LEAVE` is told."""
        return " ".join(tuple(self._left))


def _name(taken: Taken) -> str:
    _, number, take = taken.token
    return f"{take}:{number}"
