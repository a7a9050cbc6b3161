"""What changed of a flow in memory, and when: turns are counted, and each change has its number."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from wbengine.persistence import changes

__all__ = ["Turns"]

_K = TypeVar("_K")


class Turns:
    """The writes of one flow.  What changed last is last in its dict: so it is found first."""

    __slots__ = ("_atoms", "_items", "_name", "count", "number", "updated")

    def __init__(self, number: int) -> None:
        #: Among all flows of the store, in the order of their making.
        self.number = number
        self.count = 0
        self.updated = time.time()
        # What this store calls this flow in cursors.
        self._name = secrets.token_hex(6)
        self._atoms: dict[str, int] = {}
        self._items: dict[tuple[str, int], int] = {}

    @property
    def cursor(self) -> str:
        """Where who has seen everything goes on."""
        return f"{self._name}.{self.count}"

    def since(self, cursor: str | None) -> int | None:
        """The turn that a cursor of this flow tells; None: it is no cursor of this flow."""
        name, _, count = (cursor or "").partition(".")
        if name != self._name or not changes.is_number(count) or int(count) > self.count:
            return None
        return int(count)

    def begin(self) -> None:
        """What changes from now on is of the next turn."""
        self.count += 1
        self.updated = time.time()

    def touch(self, atom_uuid: str, items: Iterable[int] = ()) -> None:
        """An atom's row has changed, or its items of these indexes have."""
        self.touch_rows((atom_uuid,))
        for index in items:
            _put_last(self._items, (atom_uuid, index), self.count)

    def touch_rows(self, atom_uuids: Iterable[str]) -> None:
        """The rows of these atoms have changed."""
        known, count = self._atoms, self.count
        for uuid in atom_uuids:
            known.pop(uuid, None)
            known[uuid] = count

    def atoms(self, since: int) -> list[str]:
        """The uuids of the atoms that changed after a turn, in the order in which they did."""
        return list(_after(self._atoms, since))[::-1]

    def items(self, since: int) -> list[tuple[str, int]]:
        """The items that changed after a turn: the uuid of the atom, and the index."""
        return list(_after(self._items, since))[::-1]


def _put_last(known: dict[_K, int], key: _K, turn: int) -> None:
    known.pop(key, None)
    known[key] = turn


def _after(known: dict[_K, int], since: int) -> Iterator[_K]:
    for key in reversed(known):
        if known[key] <= since:
            return
        yield key
