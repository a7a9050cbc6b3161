"""What could not be said to a Redis that was away: who connects to it again says it first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from wbengine.transports._redis_link import Place

#: Who left, as `LEAVE` is told.
Left = tuple[str, str]

_unsaid: Final[deque[tuple[Place, Left]]] = deque(maxlen=1000)


def keep(where: Place, left: Left) -> None:
    """Say it another time."""
    _unsaid.append((where, left))


def take(where: Place) -> Iterator[Left]:
    """What is to be said there; each is forgotten when it is given."""
    for _ in range(len(_unsaid)):
        try:
            other, left = _unsaid.popleft()
        except IndexError:
            return
        if other == where:
            yield left
        else:
            keep(other, left)
