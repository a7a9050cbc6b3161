"""What a worker remembers of tasks that it does not have: a bounded number of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Final

__all__ = ["ENDED", "REVOKED", "Ended", "Remembered", "Revoked", "Spared"]

#: How many tasks that ended are remembered, so that repeats of them are not run, and how many that
#: were revoked, so that they are not run when they come.
ENDED: Final = 10_000
REVOKED: Final = 50_000

#: How many stamps are remembered of which all tasks are revoked.
_STAMPS: Final = 10_000


class Remembered:
    """The latest things that were noted, `most` of them.  O(1)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._things: OrderedDict[Hashable, None] = OrderedDict()

    def note(self, thing: Hashable) -> None:
        """Remember it, as the latest one."""
        self._things[thing] = None
        self._things.move_to_end(thing)
        if len(self._things) > self._most:
            self._things.popitem(last=False)

    def forget(self, thing: Hashable) -> None:
        """It may come again."""
        self._things.pop(thing, None)

    def __contains__(self, thing: Hashable) -> bool:
        return thing in self._things

    def __iter__(self) -> Iterator[Any]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


class Ended:
    """The latest tasks that ended, `most` of them: by id, and the number of the try.  O(1).

    A later try is only made when those before it have ended.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def note(self, key: tuple[str, int]) -> None:
        """Remember it, as the latest one."""
        id, attempt = key
        self._attempts[id] = max(attempt, self._attempts.get(id, 0))
        self._attempts.move_to_end(id)
        if len(self._attempts) > self._most:
            self._attempts.popitem(last=False)

    def attempt(self, id: str) -> int:
        """The number of the last try that ended; 0: none is known."""
        return self._attempts.get(id, 0)

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key[1] <= self._attempts.get(key[0], 0)


class Spared:
    """The latest tasks of which a note may say that they began here, and did not; `most` of them.

    What is taken is forgotten: it may begin now.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._notes: OrderedDict[str, list[str]] = OrderedDict()

    def note(self, id: str, note: str) -> None:
        """Remember it, as the latest one."""
        self._notes.setdefault(id, []).append(note)
        self._notes.move_to_end(id)
        if len(self._notes) > self._most:
            self._notes.popitem(last=False)

    def take(self, id: str, note: str) -> bool:
        """Whether it is one of them."""
        notes = self._notes.get(id, [])
        if note not in notes:
            return False
        notes.remove(note)
        return True

    def take_all(self, id: str) -> list[str]:
        """The notes of a task."""
        return self._notes.pop(id, [])


class Revoked:
    """The tasks that are not to run: by id, or by one of their stamps."""

    def __init__(self) -> None:
        self.ids = Remembered(REVOKED)
        self._stamps = Remembered(_STAMPS)

    def add(self, ids: Iterable[Any]) -> frozenset[str]:
        """Remember these; returns those that are ids."""
        found = [one for one in ids if isinstance(one, str)]
        for one in found:
            self.ids.note(one)
        return frozenset(found)

    def add_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Remember that all tasks with one of these values under one of these names are revoked."""
        for name, values in stamps.items():
            for value in _each(values):
                self._stamps.note((name, value))

    def covers(self, id: str, stamps: Mapping[str, Any]) -> bool:
        """Whether a task with this id and these stamps is revoked."""
        if id in self.ids:
            return True
        if not (stamps and len(self._stamps)):
            return False
        return any(
            (name, value) in self._stamps
            for name, given in stamps.items()
            for value in _each(given)
        )


def _each(values: Any) -> list[Hashable]:
    several = values if isinstance(values, list | tuple | set | frozenset) else (values,)
    return [value for value in several if isinstance(value, str | int | float | bool | None)]
