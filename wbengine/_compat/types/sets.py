"""Sets that keep the order of their members."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Hashable)


class OrderedSet(AbstractSet[_T], Hashable):
    """An immutable set that keeps its members in the order of their first appearance.

    Comparison and hash ignore the order, as for other sets.
    """

    __slots__ = ("_members",)

    def __init__(self, iterable: Iterable[_T] | None = None) -> None:
        self._members: dict[_T, None] = dict.fromkeys(iterable or ())

    def __contains__(self, value: object) -> bool:
        return value in self._members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[_T]:
        return iter(self._members)

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._members)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self._members),)

    def copy(self) -> OrderedSet[_T]:
        """Return a set with the same members in the same order."""
        return type(self)(self)

    def union(self, *others: Iterable[_T]) -> OrderedSet[_T]:
        """Return the members of this set, then further members of the others in their order."""
        return type(self)([*self, *(value for other in others for value in other)])

    def intersection(self, *others: Iterable[_T]) -> OrderedSet[_T]:
        """Return the members that are in all others, in this set's order."""
        sets = [set(other) for other in others]
        return type(self)(value for value in self if all(value in other for other in sets))

    def difference(self, *others: Iterable[_T]) -> OrderedSet[_T]:
        """Return the members that are in none of the others, in this set's order."""
        removed = {value for other in others for value in other}
        return type(self)(value for value in self if value not in removed)

    def issubset(self, other: Iterable[_T]) -> bool:
        """Return True if all members are in `other`."""
        return self._members.keys() <= set(other)

    def issuperset(self, other: Iterable[_T]) -> bool:
        """Return True if this set contains all elements of `other`."""
        return all(value in self._members for value in other)
