"""How many messages a channel holds, and how many more it may be given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from wbengine.transports._store import Taken


class CreditWindow:
    """What was given to a channel and is not settled, by its number, and what may be given besides.

    At most `limit` (0: as much as there is) at a time, less what was asked for and is not there
    yet: by the thread that drains, and by those who order.  `found()` is called when there is room
    again after that thread was told that there is none.  Any thread, unless told otherwise.
    """

    def __init__(self, found: Callable[[], object]) -> None:
        self.limit = 0
        self.held: dict[int, Taken] = {}
        self._found = found
        self._released: set[int] = set()
        self._lock = threading.Lock()
        #: How many were asked for; 0 as soon as they are ready, or not there.
        self.asked = 0
        self._ordered = 0
        self._starved = False

    def ask(self, most: int, ready: int) -> int:
        """How many there is room for, up to `most`, beside `ready` ones; they are `asked` for from
        now on.  Of the thread that drains."""
        if not self.limit:
            return most
        self._starved = True  # before it looks: whoever makes room meanwhile sees one of both
        with self._lock:
            self.asked = 0
            self.asked = room = max(0, min(most, self._left(ready)))
        self._starved = room <= 0
        return room

    def look(self, ready: int) -> bool:
        """Whether there is room; as `ask`, but nothing is asked for."""
        if not self.limit:
            return True
        self._starved = True
        self._starved = starved = self._left(ready) <= 0
        return not starved

    def order(self, most: int, ready: int) -> int:
        """As `ask`, by another thread, until `delivered`; 0 unless the one that drains was told
        that there is none: else it sees to that itself."""
        if not self._starved:
            return 0
        with self._lock:
            room = max(0, min(most, self._left(ready)))
            self._ordered += room
        return room

    def delivered(self, ordered: int, count: int) -> None:
        """Of what was ordered so many came, which are held by now."""
        with self._lock:
            self._ordered -= ordered
        if count < ordered:
            self.made()

    def _left(self, ready: int) -> int:
        held = len(self.held) - len(self._released) + ready
        return self.limit - held - self.asked - self._ordered

    def release(self, numbers: Iterable[int]) -> None:
        """These count no more."""
        self._released |= self.held.keys() & set(numbers)

    def settle(self, numbers: Iterable[int]) -> list[Taken]:
        """These are not held any more; what of them was."""
        found: list[Taken] = []
        room = False
        for number in numbers:
            counted = number not in self._released
            self._released.discard(number)
            taken = self.held.pop(number, None)
            if taken is not None:
                found.append(taken)
                room = room or counted
        if room:
            self.made()
        return found

    def made(self) -> None:
        """There may be more than there was."""
        if self._starved:
            self._starved = False
            self._found()
